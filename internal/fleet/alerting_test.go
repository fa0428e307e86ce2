package fleet

import (
	"testing"
	"time"
)

func TestSilenceCovers(t *testing.T) {
	t0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	matcher := func(name, op, value string) Matcher {
		m, err := NewMatcher(name, op, value)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	node := matcher("node", "=", "a")
	for name, tc := range map[string]struct {
		silence Silence
		want    bool
	}{
		"equal":                              {Silence{Matchers: []Matcher{node}}, true},
		"not equal":                          {Silence{Matchers: []Matcher{matcher("node", "!=", "a")}}, false},
		"an expression is for whole values":  {Silence{Matchers: []Matcher{matcher("class", "=~", "gpu")}}, false},
		"an expression that fits":            {Silence{Matchers: []Matcher{matcher("class", "=~", "gpu-.*|node")}}, true},
		"not that expression":                {Silence{Matchers: []Matcher{matcher("class", "!~", "gpu-.*")}}, false},
		"all must fit":                       {Silence{Matchers: []Matcher{node, matcher("class", "=", "other")}}, false},
		"a label that is missing is empty":   {Silence{Matchers: []Matcher{matcher("rack", "=", "")}}, true},
		"without a condition it is for none": {Silence{}, false},
		"not yet":                            {Silence{Matchers: []Matcher{node}, From: t0.Add(time.Second)}, false},
		"not any more":                       {Silence{Matchers: []Matcher{node}, Until: t0}, false},
		"in its time":                        {Silence{Matchers: []Matcher{node}, From: t0, Until: t0.Add(1)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.silence.Covers(t0, map[string]string{"node": "a", "class": "gpu-lost"}); got != tc.want {
				t.Errorf("Covers = %v, want %v", got, tc.want)
			}
		})
	}
	for _, bad := range [][2]string{{"=~", "("}, {"==", "a"}} {
		if m, err := NewMatcher("node", bad[0], bad[1]); err == nil {
			t.Errorf("NewMatcher(%q, %q) = %v, want an error", bad[0], bad[1], m)
		}
	}
}

func TestRoutes(t *testing.T) {
	on := func(name, op, value string) []Matcher {
		m, err := NewMatcher(name, op, value)
		if err != nil {
			t.Fatal(err)
		}
		return []Matcher{m}
	}
	tree := Route{Receiver: "mail", Routes: []Route{
		{Receiver: "pager", Matchers: on("severity", "=", "critical"), Continue: true, Muted: "nights"},
		{Receiver: "stoker", Matchers: on("class", "=~", "gpu-.+"), Routes: []Route{
			{Receiver: "stoker", Matchers: on("pool", "=", "dev"), Muted: "maintenance"},
		}},
	}}
	for name, tc := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"another's mute is not ours":        {map[string]string{"class": "gpu-lost", "severity": "critical"}, ""},
		"the deepest route decides":         {map[string]string{"class": "gpu-lost", "pool": "dev"}, "maintenance"},
		"what never comes to us is no mute": {map[string]string{"class": "none"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tree.MutedFor("stoker", tc.labels); got != tc.want {
				t.Errorf("MutedFor = %q, want %q", got, tc.want)
			}
		})
	}
}
