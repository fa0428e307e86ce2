package sim

import (
	"strings"
	"testing"
)

// TestScenariosNameEveryMistakeWithItsLine holds that a file is wrong as a whole, not one
// mistake at a time.
func TestScenariosNameEveryMistakeWithItsLine(t *testing.T) {
	_, err := ParseScenario("bad.txtar", []byte(`Why.

-- fleet --
nodes many
colour red
-- jobs --
a/b soon 1x1 1h
a/c 1m 1x1
-- faults --
20m gpu-lost
20m gpu-lost n1 forever
-- expected --
cordons 1
-- expect --
cordons about 3
`))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"bad.txtar:4:", "bad.txtar:5: setting \"colour\"", "bad.txtar:7:", "bad.txtar:8:", "bad.txtar:10:", "bad.txtar:11: \"forever\"", "bad.txtar:12: section \"expected\"", "bad.txtar:15:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not have %q:\n%v", want, err)
		}
	}
	for text, want := range map[string]string{
		"-- jobs --\na/b 0s 1x1 1h\na/b 0s 1x9 1h\n":            "x.txtar:3: a/b: is there twice\nx.txtar:3: a/b: 1 workers of 9 GPUs",
		"-- jobs --\na/b 0s 1x1 1ms\n":                          "x.txtar:2: a/b: 0 iterations",
		"-- faults --\n# here\n20m gpu-lost nowhere\n":          "x.txtar:3: gpu-lost: there is no node nowhere",
		"-- faults --\n20m gpu-lots gpu-a-01\n":                 "x.txtar:2: gpu-lots: no such kind",
		"-- faults --\n20m telemetry-lost gpu-a-01 for\n":       "x.txtar:2: \"for\" is neither `for` and a length",
		"-- fleet --\nspot 9\n":                                 "x.txtar: section fleet: market: 9 of 8 nodes are spot",
		"-- fleet --\nnodes 0\n":                                "x.txtar:2: nodes 0: there must be some",
		"-- fleet --\nfor -1h\n":                                "x.txtar:2: for -1h: it must take some time",
		"-- fleet --\nqueue a many\n":                           "x.txtar:2: \"many\" is not a number of GPUs",
		"-- expect --\nno incident gpu-lots\n":                  "x.txtar:2: unknown class \"gpu-lots\"",
		"-- expect --\nincident gpu-lost * done\n":              "x.txtar:2: unknown phase \"done\"",
		"-- expect --\nincident gpu-lost * resolved cord reb\n": "x.txtar:2: unknown step \"cord\"",
	} {
		if !strings.Contains(text, "expect") {
			text += "-- expect --\ncordons 0\n"
		}
		if _, err := ParseScenario("x.txtar", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
