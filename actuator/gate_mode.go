package actuator

import (
	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/remedy"
)

// A Mode says how much Stoker does by itself. One that is not known is a dry run.
type Mode string

// The modes, the strictest first.
const (
	ModeDryRun  Mode = "dry-run" // nothing is written to the cluster, but what only gives back
	ModeApprove Mode = "approve" // harm waits for a person; asking and looking do not
	ModeAuto    Mode = "auto"
)

var modes = []string{string(ModeDryRun), string(ModeApprove), string(ModeAuto)}

// Validate makes a mode that is left out a dry run.
func (m *Mode) Validate(path string) error {
	switch *m {
	case "":
		*m = ModeDryRun
	case ModeDryRun, ModeApprove, ModeAuto:
	default:
		return config.Errorf(path, "%s", config.Unknown("mode", string(*m), modes))
	}
	return nil
}

// Stricter is the mode in force where both apply: a playbook's own mode can take
// freedom from the service's and never give it more.
func (m Mode) Stricter(o Mode) Mode {
	switch {
	case m.rank() <= o.rank():
		return m
	default:
		return o
	}
}

func (m Mode) rank() int {
	switch m {
	case ModeAuto:
		return 2
	case ModeApprove:
		return 1
	case ModeDryRun:
	}
	return 0
}

// modeGate is the mode of the service, made stricter by that of the playbook.
type modeGate struct{ mode Mode }

func (modeGate) Name() string { return "mode" }

func (g modeGate) Ask(q Question) remedy.GateResult {
	mode, whose := g.mode, "the service"
	if own := Mode(q.Incident.Mode); own != "" && own.rank() < mode.rank() {
		mode, whose = mode.Stricter(own), "playbook "+q.Incident.Playbook
	}
	first := q.Orders[0]
	switch mode {
	case ModeAuto:
		return pass("auto")
	case ModeApprove:
		for _, o := range q.Orders {
			if harmful(o) && byItself(o) {
				return wait("%s of %s waits for a person: the mode of %s is approve", o.Action, targets(q.Orders), whose)
			}
		}
		if harmful(first) {
			return pass("asked for by %s", first.Actor)
		}
		return pass("%s takes nothing away", first.Action)
	case ModeDryRun:
	}
	return wait("would %s %s: the mode of %s is dry-run", first.Action, targets(q.Orders), whose)
}

// byItself reports whether no person has asked for the order.
func byItself(o remedy.Order) bool { return o.Actor == "" || o.Actor == "stoker" }
