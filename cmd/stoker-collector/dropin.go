package main

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/pods"
)

// A dropin is the part of dcgm-exporter's command line that is understood here, so that
// its chart and its operator can start this program in its place.
type dropin struct {
	fields     string
	intervalMS int
	engine     string
	windowMS   int
	kubernetes bool
	pods       pods.Options
	allow      []string // labels of pods, as expressions
	ignored    []string // flags that were given and have no effect

	badEnv []error
}

// flags declares the flags, with the variables of the environment that stand for them.
func (d *dropin) flags(f *pflag.FlagSet, listen *string) {
	f.StringVarP(&d.fields, "collectors", "f", os.Getenv("DCGM_EXPORTER_COLLECTORS"),
		"list of fields that the source dcgm reads, in dcgm-exporter's form; read again when it changes (env DCGM_EXPORTER_COLLECTORS)")
	f.StringVarP(listen, "address", "a", *listen, "the same as --listen (env DCGM_EXPORTER_LISTEN)")
	f.IntVarP(&d.intervalMS, "collect-interval", "c", d.number("DCGM_EXPORTER_INTERVAL"),
		"--interval in milliseconds, if not 0 (env DCGM_EXPORTER_INTERVAL)")
	f.StringVarP(&d.engine, "remote-hostengine-info", "r", os.Getenv("DCGM_REMOTE_HOSTENGINE_INFO"),
		"the same as --dcgm-engine (env DCGM_REMOTE_HOSTENGINE_INFO)")
	f.IntVarP(&d.windowMS, "xid-count-window-size", "x", d.number("DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE"),
		"milliseconds for which DCGM_EXP_XID_ERRORS_COUNT counts, 300000 if 0 (env DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE)")
	d.podFlags(f)
	// What has no effect is accepted, and said in the log.
	for _, x := range []struct{ name, short string }{
		{"use-old-namespace", "o"},
		{"no-hostname", "n"},
		{"fake-gpus", ""},
		{"replace-blanks-in-model-name", ""},
		{"enable-dcgm-log", ""},
		{"disable-startup-validate", ""},
		{"enable-gpu-bind-unbind-watch", ""},
		{"debug", ""},
	} {
		f.BoolP(x.name, x.short, false, "")
		d.hide(f, x.name)
	}
	for _, x := range []struct{ name, short string }{
		{"cpu-devices", "p"},
		{"devices", "d"},
		{"switch-devices", "s"},
		{"configmap-data", "m"},
		{"clock-events-count-window-size", ""},
		{"dcgm-log-level", ""},
		{"hpc-job-mapping-dir", ""},
		{"gpu-bind-unbind-poll-interval", ""},
	} {
		f.StringP(x.name, x.short, "", "")
		d.hide(f, x.name)
	}
}

func (d *dropin) hide(f *pflag.FlagSet, name string) {
	flag := f.Lookup(name)
	flag.Hidden = true
	flag.Value = &noted{flag.Value, func() { d.ignored = append(d.ignored, "--"+name) }}
}

// A noted value tells when it is set.
type noted struct {
	pflag.Value
	set func()
}

// Set is pflag.Value's.
func (n *noted) Set(s string) error {
	n.set()
	return n.Value.Set(s)
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

// apply makes our settings of them, and returns what is wrong.
func (d *dropin) apply(o *dcgm.Options, interval *time.Duration) []error {
	var errs []error
	for _, n := range []struct {
		flag string
		ms   int
	}{{"collect-interval", d.intervalMS}, {"xid-count-window-size", d.windowMS}} {
		if n.ms < 0 {
			errs = append(errs, fmt.Errorf("--%s: %d is negative", n.flag, n.ms))
		}
	}
	if d.intervalMS > 0 {
		*interval = time.Duration(d.intervalMS) * time.Millisecond
	}
	o.XIDWindow = time.Duration(max(0, d.windowMS)) * time.Millisecond
	if d.engine != "" {
		o.Addresses = append(o.Addresses, d.engine)
	}
	if d.fields != "" {
		// Read here too, so that what is wrong with it is told before anything starts.
		fields, err := dcgm.ReadFields(d.fields)
		if err != nil {
			errs = append(errs, fmt.Errorf("--collectors: %w", err))
		}
		o.Fields, o.FieldsFile = fields, d.fields
	}
	return errs
}

// warn says what of the command line has no effect.
func (d *dropin) warn(log *slog.Logger) {
	if len(d.ignored) > 0 {
		log.Warn("flags of dcgm-exporter that have no effect here", "flags", strings.Join(d.ignored, " "))
	}
}
