package alertmanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-openapi/strfmt"
	"github.com/prometheus/alertmanager/api/v2/models"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/rules"
)

// Our own silences end by themselves soon after nobody renews them any more.
const (
	silenceFor   = 30 * time.Minute
	silenceRenew = 15 * time.Minute // what is left when it is renewed

	// author names us in Alertmanager. Only what bears it is ours to change.
	author = "stoker"
	// commentStart is before the name of the incident in the comment.
	commentStart = "incident "

	stateExpired = "expired"
)

// An ownSilence is one that we have set.
type ownSilence struct {
	id    string
	until time.Time
	node  string
}

// ownIDs are the silences of ours.
func ownIDs(all []models.GettableSilence) map[string]bool {
	own := map[string]bool{}
	for _, g := range all {
		if g.ID != nil && incidentOf(g) != "" {
			own[*g.ID] = true
		}
	}
	return own
}

// incidentOf is the incident that one of our silences is for; empty when it is not ours.
func incidentOf(g models.GettableSilence) string {
	if g.CreatedBy == nil || *g.CreatedBy != author || g.Comment == nil {
		return ""
	}
	rest, ok := strings.CutPrefix(*g.Comment, commentStart)
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, ":")
	return name
}

// takeSilence sorts a silence into ours and those of people, once. One that cannot be
// read is taken for one that covers everything: somebody wants quiet, and we do not
// know where.
func (s *Source) takeSilence(g models.GettableSilence, seen map[string]bool) {
	if g.ID == nil || seen[*g.ID] || g.Status != nil && g.Status.State != nil && *g.Status.State == stateExpired {
		return
	}
	seen[*g.ID] = true
	out := fleet.Silence{ID: *g.ID}
	if g.StartsAt != nil {
		out.From = time.Time(*g.StartsAt)
	}
	if g.EndsAt != nil {
		out.Until = time.Time(*g.EndsAt)
	}
	name := incidentOf(g)
	by, comment := "somebody", ""
	if g.CreatedBy != nil && *g.CreatedBy != "" {
		by = *g.CreatedBy
	}
	if g.Comment != nil {
		comment = *g.Comment
	}
	out.By = strings.ToValidUTF8(fmt.Sprintf("%.100s: %.200s", by, comment), "")
	node := ""
	for _, m := range g.Matchers {
		if m == nil || m.Name == nil || m.Value == nil {
			continue
		}
		op := "="
		switch is, re := m.IsEqual == nil || *m.IsEqual, m.IsRegex != nil && *m.IsRegex; {
		case is && re:
			op = "=~"
		case re:
			op = "!~"
		case !is:
			op = "!="
		}
		if *m.Name == "node" && op == "=" {
			node = *m.Value
		}
		read, err := fleet.NewMatcher(*m.Name, op, *m.Value)
		if err != nil {
			s.log.Warn("silence not understood, it counts for everything", "silence", out.ID, "err", err)
			everything, _ := fleet.NewMatcher("alertname", "=~", ".*") // it can be read
			out.Matchers = []fleet.Matcher{everything}
			break
		}
		out.Matchers = append(out.Matchers, read)
	}
	if name != "" {
		s.own[name] = append(s.own[name], ownSilence{*g.ID, out.Until, node})
		return
	}
	s.silences = append(s.silences, out)
}

// Keep makes Alertmanager's list have one silence for each incident in which Stoker has
// taken a node out and works on it, and none of ours beside them. It covers what is
// told of that node. Stoker itself goes on hearing of it, from the collector and by
// asking; a person hears again as soon as an incident is closed or needs one.
func (s *Source) Keep(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	own, known := s.own, !s.told.IsZero() && now.Sub(s.told) <= s.o.Every+askWithin
	s.mu.Unlock()
	if !known {
		return nil // what there is already is not known
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askWithin, fmt.Errorf("no answer within %v", askWithin))
	defer cancel()
	var errs []error
	wanted := map[string]bool{}
	for _, in := range s.incidents() {
		if !worked(in) {
			continue
		}
		wanted[in.Name] = true
		id := ""
		if have := own[in.Name]; len(have) > 0 {
			if have[0].until.Sub(now) > silenceRenew {
				continue
			}
			id = have[0].id
		}
		errs = append(errs, s.silence(ctx, now, id, in))
	}
	for name, list := range own {
		if wanted[name] {
			list = list[1:] // another leader has set one at the same time
		}
		for _, o := range list {
			errs = append(errs, s.some(func(url string) error {
				return s.call(ctx, "DELETE", url+"/api/v2/silence/"+o.id, nil, nil)
			}))
		}
	}
	return errors.Join(errs...)
}

// worked reports whether a node of the incident is out because of what Stoker does.
func worked(in remedy.Incident) bool {
	if in.Phase != remedy.PhaseOpen && in.Phase != remedy.PhaseActing || in.Subject.Node == "" {
		return false
	}
	for _, s := range in.Steps {
		if s.Role == remedy.RoleHold && s.Ending == remedy.Done {
			return true
		}
	}
	return false
}

func (s *Source) silence(ctx context.Context, now time.Time, id string, in remedy.Incident) error {
	start, end := strfmt.DateTime(now), strfmt.DateTime(now.Add(silenceFor))
	comment := fmt.Sprintf("%s%s: Stoker is healing %s on %s and lifts this when it is done", commentStart, in.Name, in.Class, in.Subject)
	by := author
	body, err := json.Marshal(models.PostableSilence{ID: id, Silence: models.Silence{
		Comment: &comment, CreatedBy: &by, StartsAt: &start, EndsAt: &end,
		Matchers: models.Matchers{
			{Name: new("node"), Value: &in.Subject.Node, IsRegex: new(false), IsEqual: new(true)},
			{Name: new("alertname"), Value: new(rules.Watchdog), IsRegex: new(false), IsEqual: new(false)},
		},
	}})
	if err != nil {
		return err
	}
	return s.some(func(url string) error { return s.call(ctx, "POST", url+"/api/v2/silences", body, nil) })
}

// some tells one member after the other until one has taken it: they tell each other.
func (s *Source) some(tell func(url string) error) error {
	var errs []error
	for _, url := range s.o.URLs {
		err := tell(url)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
