// Package alerts owns the Prometheus rule files: which series make which alert. The
// files can be given to a Prometheus as they are; the program that has none evaluates
// the same bytes in its own process. The package only carries them, it evaluates
// nothing.
//
// recording.rules.yaml gives what the others read names that hide how the exporter
// spells its labels. xid.rules.yaml is written by go generate from the XID catalogue; the
// others are written by hand. The promtool tests of each file stand beside it.
package alerts

import (
	"embed"
	"io/fs"
)

//go:generate go run ./gen -o xid.rules.yaml

//go:embed *.rules.yaml
var files embed.FS

// Files are the rule files, at the top of the returned tree.
func Files() fs.FS { return files }

// A Group is one rule group of one file.
type Group struct {
	File string // name in [Files]
	Name string // name of the group
}

// Groups lists the rule groups, by file and in their order there.
func Groups() []Group {
	return []Group{
		{"fleet.rules.yaml", "stoker-fleet"},
		{"gpu.rules.yaml", "stoker-gpu"},
		{"health.rules.yaml", "stoker-health"},
		{"recording.rules.yaml", "stoker-recording"},
		{"training.rules.yaml", "stoker-training"},
		{"xid.rules.yaml", "stoker-xid"},
	}
}
