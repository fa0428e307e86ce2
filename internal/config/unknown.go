package config

import (
	"fmt"
	"strings"
)

// listed is how many names a message lists at most.
const listed = 12

// Unknown says that a name is none of those that are known, and which one is likely
// meant: `unknown key "paralel"; did you mean "parallel"?`. What is the kind of thing,
// such as "key" or "action".
func Unknown(what, got string, known []string) string {
	text := fmt.Sprintf("unknown %s %q", what, shortWord(got))
	best, dist := "", 3 // two slips at most
	for _, k := range known {
		if d := distance(strings.ToLower(got), strings.ToLower(k)); d < dist && d < len(k) {
			best, dist = k, d
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("%s; did you mean %q?", text, best)
	case len(known) == 0:
		return text + "; there is none to set here"
	case len(known) <= listed:
		return text + "; known: " + strings.Join(known, ", ")
	}
	return text
}

func shortWord(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return s
}

// distance is how many letters have to be put in, taken out or changed to make b of a.
// Names of very different length are far apart, and not compared.
func distance(a, b string) int {
	ra, rb := []rune(a), []rune(b)
	if d := len(ra) - len(rb); d > 2 || d < -2 {
		return len(ra) + len(rb)
	}
	row := make([]int, len(rb)+1)
	for j := range row {
		row[j] = j
	}
	for i, ca := range ra {
		diagonal := row[0]
		row[0] = i + 1
		for j, cb := range rb {
			change := diagonal
			if ca != cb {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(rb)]
}
