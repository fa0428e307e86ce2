package fleet

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Alerting is what is known of the system that alerts come from. Its zero value says
// that nothing is asked of it.
type Alerting struct {
	// Wanted says that silences are to be respected; without an answer nobody knows them.
	Wanted   bool
	Told     time.Time // when Alertmanager last told of its silences; zero: never
	Silences []Silence // in force or yet to come
	Routes   Route     // with what is muted at the time of the snapshot
	Receiver string    // ours among those of Routes; empty: it is not known, and mutes are not respected

	// Path is True while the alert that always fires arrives in time, False once it is
	// late, Unknown where it is not awaited. While it is late, that no alert comes says nothing.
	Path     Condition
	Watchdog time.Time // when that alert last arrived; zero: never
}

// A Silence keeps alerts quiet for a time: a person's wish that nothing be done about
// what they tell of.
type Silence struct {
	ID       string
	By       string // who made it, and why, in one line
	Matchers []Matcher
	From     time.Time
	Until    time.Time // zero: no end is known
}

// Covers reports whether the silence is in force at now for something with these labels.
func (s Silence) Covers(now time.Time, labels map[string]string) bool {
	if now.Before(s.From) || !s.Until.IsZero() && !now.Before(s.Until) || len(s.Matchers) == 0 {
		return false
	}
	for _, m := range s.Matchers {
		if !m.Matches(labels[m.name]) {
			return false
		}
	}
	return true
}

// A Matcher is one condition on a label. Make it with [NewMatcher].
type Matcher struct {
	name, op, value string
	re              *regexp.Regexp // nil: value itself is compared
}

// NewMatcher returns a matcher with one of the operators =, !=, =~ and !~. A regular
// expression matches whole values; one that cannot be read is an error.
func NewMatcher(name, op, value string) (Matcher, error) {
	m := Matcher{name: name, op: op, value: value}
	switch op {
	case "=", "!=":
		return m, nil
	case "=~", "!~":
		re, err := regexp.Compile("^(?:" + value + ")$")
		if err != nil {
			return Matcher{}, fmt.Errorf("matcher of %s: %w", name, err)
		}
		m.re = re
		return m, nil
	}
	return Matcher{}, fmt.Errorf("matcher of %s: %q is no operator", name, op)
}

// Matches reports whether a label's value fulfils the condition. A label that is not
// there has the empty value.
func (m Matcher) Matches(value string) bool {
	is := value == m.value
	if m.re != nil {
		is = m.re.MatchString(value)
	}
	return is == !strings.HasPrefix(m.op, "!")
}

// String returns the matcher as people write it.
func (m Matcher) String() string { return fmt.Sprintf("%s%s%q", m.name, m.op, m.value) }
