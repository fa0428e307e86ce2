package main

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/pods"
)

// A dropin is the part of dcgm-exporter's command line that is understood here, so that
// its chart and its operator can start this program in its place. What of it is only
// accepted is in foreign.go.
type dropin struct {
	fields     string
	configMap  string
	intervalMS int
	ours       func() bool // whether the command line has our interval, and not the one of dcgm-exporter
	engine     string
	devices    [3]string // of which values are shown, in the order of selections
	xidMS      int
	clockMS    int
	systemd    bool
	debug      bool
	kubernetes bool
	pods       pods.Options
	allow      []string // labels of pods, as expressions
	spell      collector.Spelling
	given      map[string]string // of what is only accepted, by flag

	badEnv []error
}

// flags declares the flags, with the variables of the environment that stand for them.
func (d *dropin) flags(f *pflag.FlagSet, listen *string) {
	f.StringVarP(&d.fields, "collectors", "f", os.Getenv("DCGM_EXPORTER_COLLECTORS"),
		"list of fields that the source dcgm reads, in dcgm-exporter's form; read again when it changes (env DCGM_EXPORTER_COLLECTORS)")
	f.StringVarP(&d.configMap, "configmap-data", "m", os.Getenv("DCGM_EXPORTER_CONFIGMAP_DATA"),
		"namespace:name of a ConfigMap whose key metrics has such a list; it comes before --collectors, and is followed (env DCGM_EXPORTER_CONFIGMAP_DATA)")
	f.StringVarP(listen, "address", "a", *listen, "the same as --listen (env DCGM_EXPORTER_LISTEN)")
	f.BoolVar(&d.systemd, "web-systemd-socket", d.yes("DCGM_EXPORTER_SYSTEMD_SOCKET"),
		"serve on the socket that systemd has opened, and not on --listen (env DCGM_EXPORTER_SYSTEMD_SOCKET)")
	f.IntVarP(&d.intervalMS, "collect-interval", "c", d.number("DCGM_EXPORTER_INTERVAL"),
		"--interval in milliseconds, if not 0 (env DCGM_EXPORTER_INTERVAL)")
	f.StringVarP(&d.engine, "remote-hostengine-info", "r", os.Getenv("DCGM_REMOTE_HOSTENGINE_INFO"),
		"the same as --dcgm-engine (env DCGM_REMOTE_HOSTENGINE_INFO)")
	for i, x := range d.selections(nil) {
		f.StringVarP(&d.devices[i], x.name, x.short, cmp.Or(strings.TrimSpace(os.Getenv(x.env)), "f"), x.usage+" are shown: f, g[:numbers], i[:numbers] or both with a + (env "+x.env+")")
	}
	f.IntVarP(&d.xidMS, "xid-count-window-size", "x", d.number("DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE"),
		"milliseconds for which DCGM_EXP_XID_ERRORS_COUNT counts, 300000 if 0 (env DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE)")
	f.IntVar(&d.clockMS, "clock-events-count-window-size", d.number("DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE"),
		"milliseconds for which DCGM_EXP_CLOCK_EVENTS_COUNT counts, 300000 if 0 (env DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE)")
	f.BoolVarP(&d.spell.Old, "use-old-namespace", "o", d.yes("DCGM_EXPORTER_USE_OLD_NAMESPACE"),
		"call labels as exporters before 2.0: uuid, pod_name, pod_namespace, container_name (env DCGM_EXPORTER_USE_OLD_NAMESPACE)")
	f.BoolVar(&d.spell.JoinModel, "replace-blanks-in-model-name", d.yes("DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME"),
		"put - between the words of modelName; also -rbmn (env DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME)")
	f.StringVar(&d.spell.Host, "host-label", "", "hostname or Hostname: what the label of the node's name is called; as the source has it, else hostname, if empty")
	f.BoolVar(&d.debug, "debug", d.yes("DCGM_EXPORTER_DEBUG"), "the same as --log-level debug (env DCGM_EXPORTER_DEBUG)")
	d.podFlags(f)
	d.foreignFlags(f)
	d.ours = func() bool { return f.Changed("interval") && !f.Changed("collect-interval") }
}

// number reads a variable of the environment; 0 where it is not set.
func (d *dropin) number(name string) int {
	text := strings.TrimSpace(os.Getenv(name))
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		d.badEnv = append(d.badEnv, fmt.Errorf("%s: %q is no number", name, text))
	}
	return n
}

// yes reads a variable of the environment that says yes or no.
func (d *dropin) yes(name string) bool {
	text := strings.TrimSpace(os.Getenv(name))
	if text == "" {
		return false
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		d.badEnv = append(d.badEnv, fmt.Errorf("%s: %q is neither true nor false", name, text))
	}
	return yes
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// A selection is a flag that says of which devices values are shown.
type selection struct {
	name, short, env, usage string
	into                    *dcgm.Selection
}

func (d *dropin) selections(o *dcgm.Options) []selection {
	if o == nil {
		o = &dcgm.Options{}
	}
	return []selection{
		{"devices", "d", "DCGM_EXPORTER_DEVICES_STR", "which GPUs (g) and MIG instances (i)", &o.Devices},
		{"switch-devices", "s", "DCGM_EXPORTER_OTHER_DEVICES_STR", "which NVSwitches (g) and NVLinks (i)", &o.SwitchDevices},
		{"cpu-devices", "p", "DCGM_EXPORTER_CPU_DEVICES_STR", "which CPUs (g) and cores (i)", &o.CPUDevices},
	}
}

// applyInterval makes our interval of the one in milliseconds, and returns what is wrong.
func (d *dropin) applyInterval(interval *time.Duration) []error {
	var errs []error
	for _, n := range []struct {
		flag string
		ms   int
	}{{"collect-interval", d.intervalMS}, {"xid-count-window-size", d.xidMS}, {"clock-events-count-window-size", d.clockMS}} {
		if n.ms < 0 {
			errs = append(errs, fmt.Errorf("--%s: %d is negative", n.flag, n.ms))
		}
	}
	if d.intervalMS > 0 && !d.ours() { // a variable of the environment is for who says nothing
		*interval = time.Duration(d.intervalMS) * time.Millisecond
	}
	return errs
}

// apply makes settings of the source dcgm of them, and returns what is wrong.
func (d *dropin) apply(o *dcgm.Options) []error {
	var errs []error
	for i, x := range d.selections(o) {
		var err error
		if *x.into, err = dcgm.ParseSelection(d.devices[i]); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", x.name, err))
		}
	}
	o.XIDWindow = time.Duration(max(0, d.xidMS)) * time.Millisecond
	o.ClockWindow = time.Duration(max(0, d.clockMS)) * time.Millisecond
	if d.engine != "" {
		o.Addresses = append(o.Addresses, d.engine)
	}
	if d.configMap == "none" { // dcgm-exporter's default
		d.configMap = ""
	}
	if d.configMap != "" {
		if _, _, err := dcgm.ConfigMapName(d.configMap); err != nil {
			errs = append(errs, fmt.Errorf("--configmap-data: %w", err))
		}
	}
	// What is wrong with the list itself is told by the source, and costs nothing else.
	o.FieldsFile = d.fields
	return errs
}

// engineNode is the node that a remote engine is on, by its address: without pods nobody
// else says whose GPUs these are. Empty for an engine on this node.
func (d *dropin) engineNode() string {
	if d.engine == "" || d.kubernetes || strings.Contains(d.engine, "/") {
		return ""
	}
	host, _, err := net.SplitHostPort(d.engine)
	if err != nil {
		host = d.engine
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return ""
	}
	return host
}

// asWritten returns arguments as pflag reads them: dcgm-exporter also takes -collectors and
// --f, and calls one of its flags -rbmn.
func asWritten(args []string, known func(name string) bool) []string {
	out := make([]string, 0, len(args))
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		name, value, valued := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch dashes := len(arg) - len(strings.TrimLeft(arg, "-")); {
		case dashes == 0 || dashes > 2 || name == "":
		case name == "rbmn":
			arg = "--replace-blanks-in-model-name"
			if valued {
				arg += "=" + value
			}
		case dashes == 2 && len(name) == 1:
			arg = arg[1:]
		case dashes == 1 && len(name) > 1 && known(name):
			arg = "-" + arg
		}
		out = append(out, arg)
	}
	return out
}
