package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// exporterFlags are all flags of dcgm-exporter, with the variables that stand for them, and
// what each does here: what works has a value that is set and a look at what it changed; what
// is so anyway has no look and no warning, and the rest has a warning that says what is done
// instead.
var exporterFlags = []struct {
	name, alias, env string
	value            string
	look             func(settings) any
	want             any
	instead          string
}{
	{"collectors", "f", "DCGM_EXPORTER_COLLECTORS", "", func(s settings) any { return filepath.Base(s.dcgm.FieldsFile) }, "fields.csv", ""},
	{"address", "a", "DCGM_EXPORTER_LISTEN", ":9999", func(s settings) any { return s.listen }, ":9999", ""},
	{"collect-interval", "c", "DCGM_EXPORTER_INTERVAL", "30000", func(s settings) any { return s.interval }, 30 * time.Second, ""},
	{"kubernetes", "k", "DCGM_EXPORTER_KUBERNETES", "true", func(s settings) any { return s.dropin.kubernetes }, true, ""},
	{"kubernetes-enable-pod-labels", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "true", func(s settings) any { return s.dropin.pods.About.Labels }, true, ""},
	{"kubernetes-enable-pod-uid", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", "true", func(s settings) any { return s.dropin.pods.About.UID }, true, ""},
	{"kubernetes-gpu-id-type", "", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", "device-name", nil, nil, ""},
	{"kubernetes-pod-label-allowlist-regex", "", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", "^app", func(s settings) any { return len(s.dropin.pods.About.Allow) }, 1, ""},
	{"use-old-namespace", "o", "DCGM_EXPORTER_USE_OLD_NAMESPACE", "true", func(s settings) any { return s.dropin.spell.Old }, true, ""},
	{"cpu-devices", "p", "DCGM_EXPORTER_CPU_DEVICES_STR", "g:0", func(s settings) any { return s.dcgm.CPUDevices.String() }, "g:0", ""},
	{"devices", "d", "DCGM_EXPORTER_DEVICES_STR", "g:0,2-3", func(s settings) any { return s.dcgm.Devices.String() }, "g:0,2-3", ""},
	{"switch-devices", "s", "DCGM_EXPORTER_OTHER_DEVICES_STR", "i:4", func(s settings) any { return s.dcgm.SwitchDevices.String() }, "i:4", ""},
	{"configmap-data", "m", "DCGM_EXPORTER_CONFIGMAP_DATA", "gpus:fields", func(s settings) any { return s.dropin.configMap }, "gpus:fields", ""},
	{"remote-hostengine-info", "r", "DCGM_REMOTE_HOSTENGINE_INFO", "node-3:5555", func(s settings) any { return strings.Join(s.dcgm.Addresses, " ") + s.dropin.engineNode() }, "node-3:5555node-3", ""},
	{"no-hostname", "n", "DCGM_EXPORTER_NO_HOSTNAME", "true", nil, nil, "series keep the name of the node, as they do in dcgm-exporter"},
	{"fake-gpus", "", "DCGM_EXPORTER_USE_FAKE_GPUS", "true", nil, nil, ""},
	{"web-config-file", "", "DCGM_EXPORTER_WEB_CONFIG_FILE", "/etc/web.yml", func(s settings) any { return s.webConfig }, "/etc/web.yml", ""},
	{"web-systemd-socket", "", "DCGM_EXPORTER_SYSTEMD_SOCKET", "true", func(s settings) any { return s.dropin.systemd }, true, ""},
	{"xid-count-window-size", "x", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", "60000", func(s settings) any { return s.dcgm.XIDWindow }, time.Minute, ""},
	{"clock-events-count-window-size", "", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE", "60000", func(s settings) any { return s.dcgm.ClockWindow }, time.Minute, ""},
	{"replace-blanks-in-model-name", "rbmn", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", "true", func(s settings) any { return s.dropin.spell.JoinModel }, true, ""},
	{"debug", "", "DCGM_EXPORTER_DEBUG", "true", func(s settings) any { return s.logLevel }, slog.LevelDebug, ""},
	{"log-format", "", "DCGM_EXPORTER_LOG_FORMAT", "json", func(s settings) any { return s.logFormat }, "json", ""},
	{"enable-dcgm-log", "", "DCGM_EXPORTER_ENABLE_DCGM_LOG", "true", nil, nil, "the engine writes its own log"},
	{"dcgm-log-level", "", "DCGM_EXPORTER_DCGM_LOG_LEVEL", "DEBUG", nil, nil, "the engine writes its own log"},
	{"pod-resources-kubelet-socket", "", "DCGM_POD_RESOURCES_KUBELET_SOCKET", "/k.sock", func(s settings) any { return s.dropin.pods.Socket }, "/k.sock", ""},
	{"hpc-job-mapping-dir", "", "DCGM_HPC_JOB_MAPPING_DIR", "/run/jobs", nil, nil, "no series has the label hpc_job"},
	{"nvidia-resource-names", "", "NVIDIA_RESOURCE_NAMES", "a/gpu,b/gpu", func(s settings) any { return strings.Join(s.dropin.pods.Resources, " ") }, "a/gpu b/gpu", ""},
	{"kubernetes-virtual-gpus", "", "KUBERNETES_VIRTUAL_GPUS", "true", func(s settings) any { return s.dropin.pods.Replicas }, true, ""},
	{"kubernetes-enable-dra", "", "KUBERNETES_ENABLE_DRA", "true", func(s settings) any { return s.dropin.pods.Published }, true, ""},
	{"dump-enabled", "", "DCGM_EXPORTER_DUMP_ENABLED", "true", nil, nil, "nothing is dumped; --log-level debug says more"},
	{"dump-directory", "", "DCGM_EXPORTER_DUMP_DIRECTORY", "/tmp", nil, nil, ""},
	{"dump-retention", "", "DCGM_EXPORTER_DUMP_RETENTION", "24h", nil, nil, ""},
	{"dump-compression", "", "DCGM_EXPORTER_DUMP_COMPRESSION", "true", nil, nil, ""},
	{"disable-startup-validate", "", "DISABLE_STARTUP_VALIDATE", "true", nil, nil, ""},
	{"enable-gpu-bind-unbind-watch", "", "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", "true", nil, nil, ""},
	{"gpu-bind-unbind-poll-interval", "", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", "5s", nil, nil, "it is noticed within a second"},
	{"enable-pprof", "", "DCGM_EXPORTER_ENABLE_PPROF", "true", nil, nil, "no profiles are served"},
}

// parsed is what the program makes of a command line, and what it warns of.
func parsed(t *testing.T, args ...string) (settings, string) {
	t.Helper()
	var s settings
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.flags(f)
	if err := f.Parse(asWritten(append([]string{"--source", "dcgm", "--node", "n"}, args...), func(name string) bool { return f.Lookup(name) != nil })); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	if err := s.validate(); err != nil && !strings.Contains(err.Error(), "web.yml") {
		t.Fatalf("%q: %v", args, err)
	}
	log := new(bytes.Buffer)
	s.dropin.warn(slog.New(slog.NewTextHandler(log, nil)))
	return s, log.String()
}

// TestEveryFlagOfDcgmExporter: each is accepted by its name, its other name, with one dash,
// and as a variable; it either works, or asks for what is done anyway, or has one warning.
func TestEveryFlagOfDcgmExporter(t *testing.T) {
	list := filepath.Join(t.TempDir(), "fields.csv")
	writePage(t, list, "DCGM_FI_DEV_GPU_TEMP, gauge, x\n")
	doc, err := os.ReadFile("../../docs/sources/dcgm.md")
	if err != nil {
		t.Fatal(err)
	}
	none, warned := parsed(t)
	if warned != "" {
		t.Errorf("a warning of nothing: %s", warned)
	}
	seen := map[string]bool{}
	for _, x := range exporterFlags {
		seen[x.name] = true
		t.Run(x.name, func(t *testing.T) {
			if x.name == "collectors" {
				x.value = list
			}
			check := func(how string, s settings, warned string) {
				t.Helper()
				if x.look != nil {
					if d := cmp.Diff(x.want, x.look(s)); d != "" {
						t.Errorf("%s (-want +got):\n%s", how, d)
					}
					if cmp.Equal(x.want, x.look(none)) {
						t.Errorf("%s: it is so without it too: the test looks at the wrong place", how)
					}
				}
				want := ""
				if x.instead != "" {
					want = "level=WARN msg=\"flag of dcgm-exporter has no effect here\" flag=--" + x.name + " value=" + x.value + " instead=" + quoted(x.instead) + "\n"
				}
				_, got, _ := strings.Cut(warned, " ") // without the time
				if got != want {
					t.Errorf("%s: warning %q, want %q", how, got, want)
				}
			}
			ways := []string{"--" + x.name, "-" + x.name}
			if x.alias != "" {
				ways = append(ways, "-"+x.alias, "--"+x.alias)
			}
			for _, way := range ways {
				s, warned := parsed(t, way+"="+x.value)
				check(way, s, warned)
			}
			if x.value == "true" {
				s, warned := parsed(t, ways[len(ways)-1])
				check("without a value", s, warned)
			} else {
				s, warned := parsed(t, ways[len(ways)-1], x.value)
				check("its value apart", s, warned)
			}
			t.Setenv(x.env, x.value)
			s, warned := parsed(t)
			check(x.env, s, warned)

			row := "| `--" + x.name + "`"
			if x.alias != "" {
				row += ", `-" + x.alias + "`"
			}
			row += " | `" + x.env + "` | "
			_, does, ok := strings.Cut(string(doc), row)
			does, _, _ = strings.Cut(does, "\n")
			switch {
			case !ok:
				t.Errorf("docs/sources/dcgm.md has no row %q", row)
			case x.instead != "" && !strings.HasPrefix(does, "no effect, a warning: "+x.instead+" |"):
				t.Errorf("the document says %q, the warning %q", does, x.instead)
			case x.instead == "" && x.look == nil && !strings.HasPrefix(does, "nothing to do: "):
				t.Errorf("the document says %q; want that there is nothing to do", does)
			case x.look != nil && !strings.HasPrefix(does, "works"):
				t.Errorf("the document says %q; want that it works", does)
			}
		})
	}
	for _, x := range foreignFlags {
		if !seen[x.name] {
			t.Errorf("--%s is accepted, and is no flag of dcgm-exporter", x.name)
		}
	}
}

func quoted(s string) string { return `"` + s + `"` }

// TestWhatAsksForWhatIsDoneAnyway has no warning.
func TestWhatAsksForWhatIsDoneAnyway(t *testing.T) {
	for _, args := range [][]string{{"--dcgm-log-level", "NONE"}, {"--enable-pprof=false"}, {"--dump-enabled=0"}, {"--gpu-bind-unbind-poll-interval", "1s"}} {
		if _, warned := parsed(t, args...); warned != "" {
			t.Errorf("%q: %s", args, warned)
		}
	}
}

// TestTheIntervalIsOfEverySource, whatever the other flags of dcgm-exporter are for.
// TestTheIntervalIsOfEverySource, and the command line says it before the environment does.
func TestTheIntervalIsOfEverySource(t *testing.T) {
	for args, want := range map[string]time.Duration{
		"": 20 * time.Second, "-c 30000": 30 * time.Second, "--interval 2s": 2 * time.Second, "--interval 2s -c 30000": 30 * time.Second,
	} {
		t.Setenv("DCGM_EXPORTER_INTERVAL", "20000")
		var s settings
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		s.flags(f)
		if err := errors.Join(f.Parse(append(strings.Fields(args), "--source", "nvml")), s.validate()); err != nil || s.interval != want {
			t.Errorf("%q: %v, %v; want %v", args, s.interval, err, want)
		}
	}
}

func TestWhichNodeAnEngineIsOn(t *testing.T) {
	for engine, want := range map[string]string{
		"": "", "localhost:5555": "", "127.0.0.1": "", "[::1]:5555": "", "/run/engine": "", "unix:///run/engine": "",
		"node-3": "node-3", "node-3:5555": "node-3", "10.0.0.7:5555": "10.0.0.7",
	} {
		if got := (&dropin{engine: engine}).engineNode(); got != want {
			t.Errorf("%q: %q, want %q", engine, got, want)
		}
	}
	if got := (&dropin{engine: "node-3", kubernetes: true}).engineNode(); got != "" {
		t.Errorf("with pods: %q, want that of this node", got)
	}
}
