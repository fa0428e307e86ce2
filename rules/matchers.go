package rules

import (
	"fmt"

	"github.com/prometheus/alertmanager/pkg/labels"
)

// Matchers select evidence by its labels, in Alertmanager's syntax. The zero value
// matches everything.
type Matchers struct{ list []*labels.Matcher }

// ParseMatchers reads one matcher or more from each text, such as `pool!="dev"`.
func ParseMatchers(texts ...string) (Matchers, error) {
	var m Matchers
	for _, t := range texts {
		if t == "" {
			return Matchers{}, fmt.Errorf("an empty matcher matches nothing that was meant; leave it out")
		}
		ms, err := labels.ParseMatchers(t)
		if err != nil {
			return Matchers{}, fmt.Errorf("matcher %q: %w", t, err)
		}
		m.list = append(m.list, ms...)
	}
	return m, nil
}

// Matches reports whether all matchers match. A label that is not there is empty.
func (m Matchers) Matches(set map[string]string) bool {
	for _, x := range m.list {
		if !x.Matches(set[x.Name]) {
			return false
		}
	}
	return true
}
