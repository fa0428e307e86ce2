package fleet

// A Route is one node of the tree by which Alertmanager decides who is told of an
// alert, with what mutes it just now.
type Route struct {
	Receiver string
	Matchers []Matcher
	Continue bool   // whether the routes beside it are asked too when it matches
	Muted    string // why nothing is sent by it now; empty: it is
	Routes   []Route
}

// Match returns the routes that an alert with these labels takes, as Alertmanager
// chooses them: the deepest that match, in order.
func (r Route) Match(labels map[string]string) []Route {
	for _, m := range r.Matchers {
		if !m.Matches(labels[m.name]) {
			return nil
		}
	}
	var all []Route
	for _, child := range r.Routes {
		found := child.Match(labels)
		all = append(all, found...)
		if len(found) > 0 && !child.Continue {
			break
		}
	}
	if len(all) == 0 {
		all = append(all, r)
	}
	return all
}

// MutedFor says why the receiver is told nothing of an alert with these labels just now;
// empty when it would be told, or would not be at any time.
func (r Route) MutedFor(receiver string, labels map[string]string) string {
	why := ""
	for _, at := range r.Match(labels) {
		if at.Receiver != receiver {
			continue
		}
		if at.Muted == "" {
			return ""
		}
		why = at.Muted
	}
	return why
}
