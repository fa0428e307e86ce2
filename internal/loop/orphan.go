package loop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// orphanAfter is for how long a mark of ours may be on a node without an open incident:
// what the cluster shows lags behind what was done.
const orphanAfter = time.Minute

// orphans tells of nodes that bear a mark of ours for no incident that is open. Nobody
// would give them back: their incident was deleted, or the store was lost. That they are
// well is not known, so they are left as they are, and a person is told.
func (l *Loop) orphans(now time.Time, f fleet.Snapshot) {
	found := map[string]time.Time{}
	for _, name := range f.NodeNames() {
		var without []string
		for _, in := range slices.Sorted(maps.Keys(f.Nodes[name].Hold.Incidents)) {
			if have, ok := l.incidents[in]; !ok || have.Phase.Closed() {
				without = append(without, in)
			}
		}
		if len(without) == 0 {
			continue
		}
		since, known := l.orphaned[name]
		if !known {
			since = now
		}
		found[name] = since
		if known && now.Sub(since) >= orphanAfter && l.told(now, "orphan|"+name) {
			l.tell(now, Entry{Kind: EntryTrouble, Subject: name, Text: fmt.Sprintf(
				"%s bears our mark for %s, which is not open: nobody gives it back. If it is well, uncordon it and remove its annotation stoker.dev/hold", name, strings.Join(without, ", "))})
		}
	}
	l.orphaned = found
	n := 0
	for _, since := range found {
		if now.Sub(since) >= orphanAfter {
			n++
		}
	}
	l.metrics.orphans.Set(float64(n))
}
