// Package programs builds what the end-to-end tests run: a Kubernetes control
// plane, kwok and Alertmanager from pinned Go modules, and Stoker itself from
// this checkout. It owns the cache folder of built programs and starts nothing.
//
// Each folder below this one with a go.mod pins some of the programs. Nothing is
// downloaded but Go modules, through the ordinary module proxy.
package programs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
)

// CacheEnv names the environment variable that moves the cache of built
// programs. Without it they lie in the user's cache folder, under stoker-e2e.
const CacheEnv = "STOKER_E2E_BIN"

// Paths says where each pinned program lies. All are absolute.
type Paths struct {
	Etcd              string
	APIServer         string
	ControllerManager string
	Scheduler         string
	Kwok              string
	Alertmanager      string
	Prometheus        string
}

// Stoker says where the programs of this checkout lie. Both paths are absolute.
type Stoker struct {
	Service   string // cmd/stoker
	Collector string // cmd/stoker-collector
}

// A program is one executable of a pinned module.
type program struct {
	name   string // of the executable
	module string // folder with the go.mod that pins it, below this package
	pkg    string // its main package
	// versionOf is the module whose version is written into the executable. Kubernetes
	// needs that: without it clients that parse the server's version give up.
	versionOf string
	tags      string // build tags, with commas
	path      func(*Paths) *string
}

// pinned lists the programs in the order in which they are built: what others
// share comes first, so that the seconds printed for it are the cold ones.
var pinned = []program{
	{"kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes", "", func(p *Paths) *string { return &p.APIServer }},
	{"kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", "k8s.io/kubernetes", "", func(p *Paths) *string { return &p.Scheduler }},
	{"kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes", "", func(p *Paths) *string { return &p.ControllerManager }},
	{"etcd", "kubernetes", "go.etcd.io/etcd/server/v3", "", "", func(p *Paths) *string { return &p.Etcd }},
	{"alertmanager", "alertmanager", "github.com/prometheus/alertmanager/cmd/alertmanager", "", "", func(p *Paths) *string { return &p.Alertmanager }},
	// The discovery of clouds' targets is most of what Prometheus is made of; no test needs it.
	{"prometheus", "prometheus", "github.com/prometheus/prometheus/cmd/prometheus", "", "remove_all_sd", func(p *Paths) *string { return &p.Prometheus }},
	{"kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "", "", func(p *Paths) *string { return &p.Kwok }},
}

// Build builds every pinned program that the cache lacks and returns where all of
// them lie. Progress goes to log, one line per program with its seconds.
//
// A cold build takes 20 to 40 minutes on 2 cores; with a full cache Build returns
// in milliseconds. Two processes may call it at once: the later waits for the
// earlier, and no program is ever seen half written.
func Build(ctx context.Context, log io.Writer) (Paths, error) {
	root, err := Root()
	if err != nil {
		return Paths{}, err
	}
	cache, err := cacheDir()
	if err != nil {
		return Paths{}, err
	}
	goVersion, err := goEnv(ctx, root, "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return Paths{}, err
	}
	var paths Paths
	for _, p := range pinned {
		out, err := p.build(ctx, log, filepath.Join(root, "internal", "e2e", "programs", p.module), cache, goVersion)
		if err != nil {
			return Paths{}, fmt.Errorf("build %s: %w", p.name, err)
		}
		*p.path(&paths) = out
	}
	return paths, nil
}

// build returns the path of p, building it first where the cache lacks it.
func (p program) build(ctx context.Context, log io.Writer, module, cache, goVersion string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	sum, err := os.ReadFile(filepath.Join(module, "go.sum"))
	if err != nil {
		return "", err
	}
	flags, err := p.flags(mod)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, p.module+"-"+key(mod, sum, []byte(strings.Join(flags, "\n")), []byte(goVersion)))
	out := filepath.Join(dir, p.name)
	if isFile(out) {
		return out, nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, log, filepath.Join(dir, p.name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if isFile(out) { // built by whom we waited for
		return out, nil
	}
	return out, goBuild(ctx, log, module, out, noCgo, flags, p.pkg)
}

// flags returns the go build flags of p, given the go.mod that pins it.
func (p program) flags(mod []byte) ([]string, error) {
	ldflags := []string{"-s", "-w"}
	if p.versionOf != "" {
		version, err := requiredVersion(mod, p.versionOf)
		if err != nil {
			return nil, err
		}
		part := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
		if len(part) != 3 {
			return nil, fmt.Errorf("version %q of %s is not vMAJOR.MINOR.PATCH", version, p.versionOf)
		}
		const in = "k8s.io/component-base/version."
		ldflags = append(ldflags, "-X", in+"gitVersion="+version, "-X", in+"gitMajor="+part[0],
			"-X", in+"gitMinor="+part[1], "-X", in+"gitTreeState=clean")
	}
	flags := []string{"-trimpath", "-ldflags", strings.Join(ldflags, " ")}
	if p.tags != "" {
		flags = append(flags, "-tags", p.tags)
	}
	return flags, nil
}

// requiredVersion returns the version of module that the go.mod in mod requires.
func requiredVersion(mod []byte, module string) (string, error) {
	f, err := modfile.ParseLax("go.mod", mod, nil)
	if err != nil {
		return "", err
	}
	for _, r := range f.Require {
		if r.Mod.Path == module {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("go.mod does not require %s", module)
}

// BuildStoker builds the service and the collector of this checkout, always
// anew: Go's own build cache knows best what has changed.
func BuildStoker(ctx context.Context, log io.Writer) (Stoker, error) {
	service, err := BuildService(ctx, log)
	if err != nil {
		return Stoker{}, err
	}
	collector, err := BuildCollector(ctx, log)
	if err != nil {
		return Stoker{}, err
	}
	return Stoker{Service: service, Collector: collector}, nil
}

// BuildService builds cmd/stoker alone, without cgo, and returns its path.
func BuildService(ctx context.Context, log io.Writer) (string, error) {
	return buildCommand(ctx, log, "./cmd/stoker", cgo)
}

// BuildCollector builds cmd/stoker-collector alone, which needs cgo, and returns its path.
func BuildCollector(ctx context.Context, log io.Writer) (string, error) {
	return buildCommand(ctx, log, "./cmd/stoker-collector", cgo)
}

// The two values of CGO_ENABLED.
const (
	noCgo = "CGO_ENABLED=0"
	cgo   = "CGO_ENABLED=1"
)

// buildCommand builds the main package pkg of the root module.
func buildCommand(ctx context.Context, log io.Writer, pkg, cgoEnv string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	// Checkouts do not share programs.
	dir := filepath.Join(cache, "checkout-"+key([]byte(root)))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	out := filepath.Join(dir, path.Base(pkg))
	if err := goBuild(ctx, log, root, out, cgoEnv, nil, pkg); err != nil {
		return "", fmt.Errorf("build %s: %w", pkg, err)
	}
	return out, nil
}

// goBuild builds pkg of the module in dir into out, which appears at once and
// whole.
func goBuild(ctx context.Context, log io.Writer, dir, out, cgoEnv string, flags []string, pkg string) error {
	if err := removeAbandoned(filepath.Dir(out), time.Now()); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), unfinished)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()

	start := time.Now()
	_, _ = fmt.Fprintf(log, "building %s\n", filepath.Base(out))
	built := filepath.Join(tmp, filepath.Base(out))
	args := append([]string{"build", "-o", built}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...) //nolint:gosec // the arguments are constants and paths of this package
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), cgoEnv, "GOWORK=off")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go build then ends its compilers
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("go build %s in %s: %w", pkg, dir, err), context.Cause(ctx))
	}
	info, err := os.Stat(built)
	if err != nil {
		return err
	}
	if err := os.Rename(built, out); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(log, "built %s in %.0f s, %d MB\n", filepath.Base(out), time.Since(start).Seconds(), info.Size()/1e6)
	return nil
}

// unfinished begins the names of the folders that builds work in, and a build that
// is older than abandonedAfter was killed.
const (
	unfinished     = ".build-"
	abandonedAfter = 24 * time.Hour
)

// removeAbandoned removes what builds in dir that were killed left behind.
func removeAbandoned(dir string, now time.Time) error {
	left, err := filepath.Glob(filepath.Join(dir, unfinished+"*"))
	if err != nil {
		return err
	}
	for _, name := range left {
		info, err := os.Stat(name)
		if err != nil || now.Sub(info.ModTime()) < abandonedAfter {
			continue // it may be gone already, or still at work
		}
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	return nil
}

// Root returns the root of the checkout that the working directory lies in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if isFile(filepath.Join(at, "internal", "e2e", "go.mod")) {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s lies in no checkout: no parent has internal/e2e/go.mod", dir)
		}
	}
}

// cacheDir returns the folder that keeps built programs.
func cacheDir() (string, error) {
	if dir := os.Getenv(CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder, set %s: %w", CacheEnv, err)
	}
	return filepath.Join(dir, "stoker-e2e"), nil
}

// goEnv returns the values of the named go environment variables, one a line.
func goEnv(ctx context.Context, dir string, names ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"env"}, names...)...) //nolint:gosec // the names are constants
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	return string(out), nil
}

// key returns a short name for the parts, different when any part is.
func key(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:", len(p)) // a hash takes everything
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}
