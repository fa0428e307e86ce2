package main

import (
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// A foreign flag is one of dcgm-exporter's that changes nothing here. It is accepted, so that
// its command line and environment can be left as they are. Where it asks for something
// else than what is done here anyway, the log says what that is.
type foreign struct {
	name, short string
	env         string
	switches    bool   // it takes no value
	same        string // the value that asks for what is done anyway; with any it is so
	instead     string // what is done
}

const anyValue = "*"

// foreignFlags are all of them.
var foreignFlags = []foreign{
	{"no-hostname", "n", "DCGM_EXPORTER_NO_HOSTNAME", true, "", "series keep the name of the node, as they do in dcgm-exporter"},
	{"fake-gpus", "", "DCGM_EXPORTER_USE_FAKE_GPUS", true, anyValue, "a GPU that can't be identified is shown by its number"},
	{"enable-dcgm-log", "", "DCGM_EXPORTER_ENABLE_DCGM_LOG", true, "", "the engine writes its own log"},
	{"dcgm-log-level", "", "DCGM_EXPORTER_DCGM_LOG_LEVEL", false, "NONE", "the engine writes its own log"},
	{"hpc-job-mapping-dir", "", "DCGM_HPC_JOB_MAPPING_DIR", false, "", "no series has the label hpc_job"},
	{"dump-enabled", "", "DCGM_EXPORTER_DUMP_ENABLED", true, "", "nothing is dumped; --log-level debug says more"},
	{"dump-directory", "", "DCGM_EXPORTER_DUMP_DIRECTORY", false, anyValue, "nothing is dumped"},
	{"dump-retention", "", "DCGM_EXPORTER_DUMP_RETENTION", false, anyValue, "nothing is dumped"},
	{"dump-compression", "", "DCGM_EXPORTER_DUMP_COMPRESSION", true, anyValue, "nothing is dumped"},
	{"disable-startup-validate", "", "DISABLE_STARTUP_VALIDATE", true, anyValue, "what is missing never keeps the program from starting"},
	{"enable-gpu-bind-unbind-watch", "", "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", true, anyValue, "a driver that is attached or detached is always noticed"},
	{"gpu-bind-unbind-poll-interval", "", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", false, "1s", "it is noticed within a second"},
	{"enable-pprof", "", "DCGM_EXPORTER_ENABLE_PPROF", true, "", "no profiles are served"},
}

// foreignFlags declares them.
func (d *dropin) foreignFlags(f *pflag.FlagSet) {
	d.given = map[string]string{}
	for _, x := range foreignFlags {
		if v := strings.TrimSpace(os.Getenv(x.env)); v != "" {
			d.given[x.name] = v
		}
		if x.switches {
			f.BoolP(x.name, x.short, false, "")
		} else {
			f.StringP(x.name, x.short, "", "")
		}
		flag := f.Lookup(x.name)
		flag.Hidden = true
		flag.Value = &noted{flag.Value, func(v string) { d.given[x.name] = v }}
	}
}

// A noted value tells to what it is set.
type noted struct {
	pflag.Value
	set func(string)
}

// Set is pflag.Value's.
func (n *noted) Set(s string) error {
	err := n.Value.Set(s)
	if err == nil {
		n.set(n.String())
	}
	return err
}

// warn says, once for each, what is done instead of what was asked for.
func (d *dropin) warn(log *slog.Logger) {
	for _, x := range foreignFlags {
		v := d.given[x.name] // empty when not given
		off := false
		if on, err := strconv.ParseBool(v); x.switches && err == nil {
			off = !on
		}
		if v == "" || off || v == x.same || x.same == anyValue {
			continue
		}
		log.Warn("flag of dcgm-exporter has no effect here", "flag", "--"+x.name, "value", v, "instead", x.instead)
	}
}
