package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/pflag"

	"stoker.dev/stoker/collector"
	"stoker.dev/stoker/collector/dcgm"
	"stoker.dev/stoker/collector/exporter"
	"stoker.dev/stoker/collector/kmsg"
	"stoker.dev/stoker/collector/nvml"
	"stoker.dev/stoker/collector/push"
)

// settings are the command line.
type settings struct {
	node       string
	listen     string
	webConfig  string
	sources    []string
	exporter   string
	file       string
	dcgm       dcgm.Options
	dropin     dropin
	kmsg       kmsg.Options
	fileMaxAge time.Duration
	interval   time.Duration
	watchdog   time.Duration
	staleAfter time.Duration
	state      string
	bootID     string
	hostRoot   string
	push       []string
	pushToken  string
	pushAM     []string
	logLevel   slog.Level
	logFormat  string
}

func (s *settings) flags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringSliceVar(&s.sources, "source", nil, "where telemetry comes from: "+sourceNames+"; may be repeated")
	f.StringVar(&s.exporter, "exporter", "http://localhost:9400/metrics", "address of the dcgm-exporter that the source exporter scrapes")
	f.StringVar(&s.file, "file", "", "the page that the source file reads")
	f.DurationVar(&s.fileMaxAge, "file-max-age", 0, "age over which the file no longer tells of the present; 0 is no limit")
	f.StringSliceVar(&s.dcgm.Addresses, "dcgm-engine", nil, "where the source dcgm looks for an engine: host, host:port or the path of a socket; localhost:5555 and /tmp/nv-hostengine if empty; may be repeated")
	f.BoolVar(&s.dcgm.Embed, "dcgm-embed", false, "start an engine in this process where none answers")
	f.StringSliceVar(&s.dcgm.Libraries, "dcgm-library", nil, "libdcgm to open; libdcgm.so.4, then .3, if empty")
	f.DurationVar(&s.dcgm.XIDFor, "xid-show-for", 0, "for how long DCGM_FI_DEV_XID_ERRORS shows the last XID; 0 is for ever")
	f.StringVar(&s.kmsg.Path, "kmsg-path", "/dev/kmsg", "the kernel's log that the source kmsg reads")
	f.StringVar(&s.node, "node", os.Getenv("NODE_NAME"), "name of the node; the host's name if empty (env NODE_NAME)")
	f.BoolVar(&s.dcgm.Compatible, "compatible", false, "be as dcgm-exporter also where that is wrong: types, windows, text format, labels of pods on the series of GPUs")
	f.StringVar(&s.listen, "listen", cmp.Or(os.Getenv("DCGM_EXPORTER_LISTEN"), ":9400"), "address on which /metrics and /healthz are served")
	f.StringVar(&s.webConfig, "web-config-file", os.Getenv("DCGM_EXPORTER_WEB_CONFIG_FILE"),
		"TLS and passwords of the server, in the form that Prometheus' exporters have (env DCGM_EXPORTER_WEB_CONFIG_FILE)")
	f.DurationVar(&s.interval, "interval", 5*time.Second, "time between two readings of a source")
	f.DurationVar(&s.watchdog, "watchdog", 10*time.Second, "how long a reading may take before its source counts as down")
	f.DurationVar(&s.staleAfter, "stale-after", 0, "age over which values are not shown; 0 is twice the interval and the watchdog")
	f.StringVar(&s.state, "state", "", "file in which the counters survive a restart; without one they start from 0")
	f.StringVar(&s.bootID, "boot-id", "", "identifies the node's boot; the kernel's if empty")
	f.StringVar(&s.hostRoot, "host-root", "/", "folder in which the node's /sys and /proc are")
	f.StringSliceVar(&s.push, "push", nil, "address of the service, told at once of XIDs, lost GPUs and failed health checks; may be repeated")
	f.StringVar(&s.pushToken, "push-token-file", "", "bearer token for --push, such as a projected one of the service account")
	f.StringSliceVar(&s.pushAM, "push-alertmanager", nil, "address of an Alertmanager that is told the same; may be repeated")
	s.dropin.flags(f, &s.listen)
	f.TextVar(&s.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	f.StringVar(&s.logFormat, "log-format", cmp.Or(os.Getenv("DCGM_EXPORTER_LOG_FORMAT"), "text"), "text or json (env DCGM_EXPORTER_LOG_FORMAT)")
}

// sourceNames are the names that --source takes.
const sourceNames = "dcgm, exporter, file, kmsg, nvml"

// sourceKinds are the same.
var sourceKinds = strings.Split(sourceNames, ", ")

// validate names all mistakes at once.
func (s *settings) validate() error {
	var errs []error
	bad := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}
	errs = append(errs, s.dropin.badEnv...)
	errs = append(errs, s.dropin.applyInterval(&s.interval)...)
	errs = append(errs, s.dropin.applyPods(s.node)...)
	usesDCGM := slices.Contains(s.sources, "dcgm")
	if usesDCGM {
		errs = append(errs, s.dropin.apply(&s.dcgm)...)
	}
	if len(s.sources) == 0 {
		bad("source", "none is given, there are: %s", sourceNames)
	}
	for i, name := range s.sources {
		if !slices.Contains(sourceKinds, name) {
			bad("source", "%q is none of: %s", name, sourceNames)
		}
		if slices.Contains(s.sources[:i], name) {
			bad("source", "%q is given twice", name)
		}
	}
	if reads := slices.Contains(s.sources, "file"); reads && s.file == "" {
		bad("file", "the source file needs one")
	} else if !reads && s.file != "" {
		bad("file", "only the source file reads it")
	}
	if !usesDCGM && (len(s.dcgm.Addresses) > 0 || s.dcgm.Embed || len(s.dcgm.Libraries) > 0) {
		bad("dcgm-engine", "only the source dcgm uses it, --dcgm-embed and --dcgm-library")
	}
	if err := exporter.ValidAddress(s.exporter); err != nil {
		bad("exporter", "%v", err)
	}
	if s.webConfig != "" {
		if err := web.Validate(s.webConfig); err != nil {
			bad("web-config-file", "%s: %v", s.webConfig, err)
		}
	}
	if _, _, err := net.SplitHostPort(s.listen); err != nil {
		bad("listen", "%v", err)
	}
	for _, d := range []struct {
		flag     string
		got, min time.Duration
	}{
		{"interval", s.interval, 100 * time.Millisecond},
		{"watchdog", s.watchdog, 100 * time.Millisecond},
		{"stale-after", s.staleAfter, 0},
		{"file-max-age", s.fileMaxAge, 0},
		{"xid-show-for", s.dcgm.XIDFor, 0},
	} {
		if d.got < d.min {
			bad(d.flag, "%v is under %v", d.got, d.min)
		}
	}
	if s.staleAfter > 0 && s.staleAfter < s.interval {
		bad("stale-after", "%v is under the interval of %v", s.staleAfter, s.interval)
	}
	for flag, urls := range map[string][]string{"push": s.push, "push-alertmanager": s.pushAM} {
		for _, u := range urls {
			if p, err := url.Parse(u); err != nil || p.Scheme != "http" && p.Scheme != "https" || p.Host == "" {
				bad(flag, "%q is not an address such as http://stoker.stoker-system:8080", u)
			}
		}
	}
	if s.pushToken != "" && len(s.push) == 0 {
		bad("push-token-file", "there is no --push that it is for")
	}
	if h := s.dropin.spell.Host; h != "" && h != "hostname" && h != "Hostname" {
		bad("host-label", "%q is neither hostname nor Hostname", h)
	}
	if s.dropin.debug {
		s.logLevel = slog.LevelDebug
	}
	if s.logFormat != "text" && s.logFormat != "json" {
		bad("log-format", "%q is neither text nor json", s.logFormat)
	}
	return errors.Join(errs...)
}

// nodeOf is the name of the node, as far as the command line says it.
func (s *settings) nodeOf() string {
	if s.node == "" && slices.Contains(s.sources, "dcgm") {
		return s.dropin.engineNode()
	}
	return s.node
}

// configMap makes the list of fields of the cluster, nil where there is none.
func (s *settings) configMap(log *slog.Logger) (*dcgm.ConfigMap, error) {
	if s.dropin.configMap == "" || !slices.Contains(s.sources, "dcgm") {
		return nil, nil
	}
	m, err := dcgm.NewConfigMap(log, s.dropin.configMap, s.dropin.pods.ServiceAccount)
	s.dcgm.ConfigMap = m
	return m, err
}

// open makes the sources, in the order in which they were given, and what they tell of
// themselves.
func (s *settings) open(log *slog.Logger) (out []collector.Source, own []func([]byte) []byte) {
	for _, name := range s.sources {
		switch name {
		case "dcgm":
			d := dcgm.New(log, s.dcgm)
			out, own = append(out, d), append(own, d.AppendPage)
		case "nvml":
			out = append(out, nvml.New(log))
		case "kmsg":
			out = append(out, kmsg.New(log, s.kmsg))
		case "exporter":
			// Not through a proxy: it is on this node.
			out = append(out, exporter.NewHTTP(log, &http.Client{Transport: &http.Transport{IdleConnTimeout: idleTimeout}}, s.exporter))
		case "file":
			out = append(out, exporter.NewFile(log, s.file, exporter.FileOptions{MaxAge: s.fileMaxAge}))
		}
	}
	return out, own
}

// targets are whom to tell at once.
func (s *settings) targets() []push.Target {
	var out []push.Target
	for _, u := range s.push {
		out = append(out, push.Target{Name: "service", URL: u, TokenFile: s.pushToken})
	}
	for _, u := range s.pushAM {
		out = append(out, push.Target{Name: "alertmanager", URL: u})
	}
	return out
}
