package alertmanager

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/alertmanager/api/v2/models"
	"github.com/prometheus/alertmanager/pkg/labels"
	"github.com/prometheus/alertmanager/timeinterval"
	"go.yaml.in/yaml/v3"

	"stoker.dev/stoker/internal/fleet"
)

// routes are the part of Alertmanager's configuration that says who is told of an
// alert, and when not.
type routes struct {
	root      route
	intervals map[string][]timeinterval.TimeInterval
}

type route struct {
	receiver     string
	matchers     []fleet.Matcher
	goesOn       bool
	mute, active []string // names of intervals
	routes       []route
}

// rawConfig is what is read of the file; the rest is none of our business.
type rawConfig struct {
	Route         rawRoute      `yaml:"route"`
	Intervals     []rawInterval `yaml:"time_intervals"`
	MuteIntervals []rawInterval `yaml:"mute_time_intervals"`
}

type rawRoute struct {
	Receiver string            `yaml:"receiver"`
	Match    map[string]string `yaml:"match"`
	MatchRE  map[string]string `yaml:"match_re"`
	Matchers []string          `yaml:"matchers"`
	Continue bool              `yaml:"continue"`
	Mute     []string          `yaml:"mute_time_intervals"`
	Active   []string          `yaml:"active_time_intervals"`
	Routes   []rawRoute        `yaml:"routes"`
}

type rawInterval struct {
	Name      string                      `yaml:"name"`
	Intervals []timeinterval.TimeInterval `yaml:"time_intervals"`
}

// parseRoutes reads the configuration that an Alertmanager says it has.
func parseRoutes(c *models.AlertmanagerConfig) (routes, error) {
	if c == nil || c.Original == nil {
		return routes{}, fmt.Errorf("the status has no configuration")
	}
	var raw rawConfig
	if err := yaml.Unmarshal([]byte(*c.Original), &raw); err != nil {
		return routes{}, fmt.Errorf("its configuration: %w", err)
	}
	r := routes{intervals: map[string][]timeinterval.TimeInterval{}}
	for _, i := range slices.Concat(raw.Intervals, raw.MuteIntervals) {
		r.intervals[i.Name] = i.Intervals
	}
	var err error
	if r.root, err = raw.Route.read(rawRoute{}, 0); err != nil {
		return routes{}, fmt.Errorf("its configuration: route: %w", err)
	}
	return r, nil
}

// maxDepth bounds how deep a tree of routes is read.
const maxDepth = 50

// read takes over from the parent what a route does not say itself.
func (r rawRoute) read(parent rawRoute, depth int) (route, error) {
	if depth > maxDepth {
		return route{}, fmt.Errorf("is more than %d deep", maxDepth)
	}
	if r.Receiver == "" {
		r.Receiver = parent.Receiver
	}
	out := route{receiver: r.Receiver, goesOn: r.Continue, mute: r.Mute, active: r.Active}
	add := func(name, op, value string) error {
		m, err := fleet.NewMatcher(name, op, value)
		out.matchers = append(out.matchers, m)
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.Match)) {
		if err := add(name, "=", r.Match[name]); err != nil {
			return route{}, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.MatchRE)) {
		if err := add(name, "=~", r.MatchRE[name]); err != nil {
			return route{}, err
		}
	}
	for _, text := range r.Matchers {
		ms, err := labels.ParseMatchers(text)
		if err != nil {
			return route{}, err
		}
		for _, m := range ms {
			if err := add(m.Name, m.Type.String(), m.Value); err != nil {
				return route{}, err
			}
		}
	}
	for i, child := range r.Routes {
		c, err := child.read(r, depth+1)
		if err != nil {
			return route{}, fmt.Errorf("routes[%d]: %w", i, err)
		}
		out.routes = append(out.routes, c)
	}
	return out, nil
}

// at is the tree with what is muted at now.
func (r routes) at(now time.Time) fleet.Route { return r.root.at(r.intervals, now) }

func (r route) at(intervals map[string][]timeinterval.TimeInterval, now time.Time) fleet.Route {
	out := fleet.Route{Receiver: r.receiver, Matchers: r.matchers, Continue: r.goesOn}
	within := func(name string) bool {
		return slices.ContainsFunc(intervals[name], func(t timeinterval.TimeInterval) bool { return t.ContainsTime(now.UTC()) })
	}
	for _, name := range r.mute {
		if within(name) {
			out.Muted = fmt.Sprintf("it is within %q", name)
		}
	}
	if len(r.active) > 0 && !slices.ContainsFunc(r.active, within) {
		out.Muted = fmt.Sprintf("it is outside of %q", r.active)
	}
	for _, child := range r.routes {
		out.Routes = append(out.Routes, child.at(intervals, now))
	}
	return out
}
