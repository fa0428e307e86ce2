package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"
)

// TestMain lets the test binary be the program itself, so that signals can be tested.
func TestMain(m *testing.M) {
	if os.Getenv("STOKER_COLLECTOR_MAIN") != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

const page = `# HELP DCGM_FI_DEV_GPU_TEMP Temperature, in C.
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",device="nvidia0",modelName="H100",Hostname="x"} 40
DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",device="nvidia0",modelName="H100",Hostname="x",window_size_in_ms="300000",xid="79"} 1
`

// A process is the program as a child of the test.
type process struct {
	*exec.Cmd
	log     *bytes.Buffer
	address string
	logged  chan struct{} // closed when its log has ended
}

// start starts the program and waits until it serves.
func start(t testing.TB, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "STOKER_COLLECTOR_MAIN=1")
	return launch(t, cmd)
}

// launch starts a program and waits until it serves.
func launch(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	cmd.Args = append(cmd.Args, "--listen", "127.0.0.1:0")
	p := &process{Cmd: cmd, log: new(bytes.Buffer), logged: make(chan struct{})}
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() })
	serving := make(chan string, 1)
	go func() {
		defer close(p.logged)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			p.log.WriteString(lines.Text() + "\n")
			if m := regexp.MustCompile(`msg=serving address=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
				serving <- m[1]
			}
		}
	}()
	select {
	case p.address = <-serving:
	case <-p.logged:
		t.Fatalf("the program ended:\n%s", p.log)
	case <-time.After(20 * time.Second):
		t.Fatal("the program does not serve after 20s")
	}
	return p
}

// await scrapes until the page has the text.
func (p *process) await(t testing.TB, want string) string {
	t.Helper()
	got := ""
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		got = get(t, "http://"+p.address+"/metrics")
		if strings.Contains(got, want) {
			return got
		}
	}
	t.Fatalf("no %q after 20s in\n%s", want, got)
	return ""
}

func get(t testing.TB, url string) string {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// end waits for the program and returns its status.
func (p *process) end(t *testing.T) int {
	t.Helper()
	<-p.logged
	if err := p.Wait(); err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatalf("%v (%v)", err, e)
		}
	}
	return p.ProcessState.ExitCode()
}

func writePage(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

const (
	xid79  = `stoker_gpu_xid_errors_total{node="n",gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",xid="79"} `
	last79 = `stoker_gpu_xid_last_event_timestamp_seconds{node="n",gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",xid="79"} `
)

// TestKilledAndStartedAgain: after kill -9 the 79 that the window still shows is no
// new event, and one that comes meanwhile is.
func TestKilledAndStartedAgain(t *testing.T) {
	dir := t.TempDir()
	file, state := filepath.Join(dir, "gpu.prom"), filepath.Join(dir, "state")
	args := []string{"--source", "file", "--file", file, "--node", "n", "--interval", "100ms", "--state", state, "--boot-id", "b"}
	writePage(t, file, page)
	p := start(t, args...)
	before := p.await(t, xid79+"1\n")
	if !strings.Contains(before, `stoker_node_boot_info{node="n",boot_id="b"} 1`) {
		t.Errorf("the page lacks the boot:\n%s", before)
	}
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.end(t)

	q := start(t, args...)
	after := q.await(t, "stoker_gpu_up")
	line := func(page string) string {
		_, rest, _ := strings.Cut(page, last79)
		at, _, _ := strings.Cut(rest, "\n")
		return at
	}
	if !strings.Contains(after, xid79+"1\n") || line(before) == "" || line(before) != line(after) {
		t.Errorf("after the restart the 79 is of %s, before it was of %s\n%s", line(after), line(before), after)
	}
	_, second, _ := strings.Cut(page, "} 40\n")
	writePage(t, file, page+strings.Replace(second, `xid="79"`, `xid="95"`, 1))
	if got := q.await(t, strings.Replace(xid79, `xid="79"`, `xid="95"`, 1)+"1\n"); !strings.Contains(got, xid79+"1\n") {
		t.Errorf("with the 95 another 79 was counted:\n%s", got)
	}
	if err := q.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := q.end(t); code != 0 {
		t.Errorf("status %d after SIGTERM, want 0", code)
	}
	if !regexp.MustCompile(`msg=stopping cause="?terminated`).MatchString(q.log.String()) {
		t.Errorf("the log does not name the cause of the end:\n%s", q.log)
	}
}

// TestFileComesAndGoes is the whole program, in this process, over a file that is
// there, is damaged, goes away and comes back.
func TestFileComesAndGoes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpu.prom")
	p := start(t, "--source", "file", "--file", file, "--node", "n", "--interval", "100ms")
	up := `stoker_collector_source_up{node="n",source="file"} `
	p.await(t, up+"0\n")
	for _, step := range []struct {
		do           func()
		want, health string
	}{
		{func() { writePage(t, file, page) }, up + "1\n", "file: up\n"},
		{func() { writePage(t, file, page[:len(page)-9]) }, up + "0\n", "file: down: page does not end with a line break: it is cut off\n"},
		{func() { writePage(t, file, page) }, up + "1\n", "file: up\n"},
		{func() { _ = os.Remove(file) }, up + "0\n", "file: down: stat " + file + ": no such file or directory\n"},
		{func() { writePage(t, file, page) }, up + "1\n", "file: up\n"},
	} {
		step.do()
		got := p.await(t, step.want)
		if !strings.Contains(got, xid79+"1\n") || !strings.Contains(got, `DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",pci_bus_id="00000000:1A:00.0",device="nvidia0",modelName="H100",Hostname="n"} 40`) {
			t.Errorf("want the 79 once and the temperature in\n%s", got)
		}
		if health := get(t, "http://"+p.address+"/healthz"); !strings.HasPrefix(health, step.health) {
			t.Errorf("/healthz: %q, want %q", health, step.health)
		}
	}
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("status %d after an interrupt, want 0:\n%s", code, p.log)
	}
}

// TestRunNamesWhyItStops is in this process, so that goleak sees what is left.
func TestRunNamesWhyItStops(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"--source", "file", "--file", "/nowhere", "--listen", "127.0.0.1:0", "--log-format", "json"}, w, w)
		_ = w.Close()
	}()
	log := ""
	for lines := bufio.NewScanner(r); lines.Scan(); {
		log += lines.Text() + "\n"
		if strings.Contains(lines.Text(), `"msg":"serving"`) {
			stop(errors.New("the test is over"))
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if !strings.Contains(log, `"msg":"stopping","cause":"the test is over"`) {
		t.Errorf("the log does not name the cause:\n%s", log)
	}
}

func TestUsage(t *testing.T) {
	ok := []string{"--source", "file", "--file", "x"}
	fields := filepath.Join(t.TempDir(), "fields.csv")
	writePage(t, fields, "DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DEV_NONE, gauge, x\nx\n")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no source": {nil, "--source: none is given, there are: dcgm, exporter, file, kmsg, nvml"},
		"all mistakes at once": {
			[]string{"--source", "smi,smi", "--file", "x", "--listen", "9400", "--interval", "1ms", "--watchdog", "0", "--stale-after", "-1s", "--file-max-age", "-1s", "--log-format", "xml"},
			`--source: "smi" is none of: dcgm, exporter, file, kmsg, nvml
--source: "smi" is none of: dcgm, exporter, file, kmsg, nvml
--source: "smi" is given twice
--file: only the source file reads it
--listen: address 9400: missing port in address
--interval: 1ms is under 100ms
--watchdog: 0s is under 100ms
--stale-after: -1s is under 0s
--file-max-age: -1s is under 0s
--log-format: "xml" is neither text nor json`,
		},
		"an engine nobody asks": {append(ok, "--dcgm-embed"), "--dcgm-engine: only the source dcgm uses it, --dcgm-embed and --dcgm-library"},
		"what dcgm-exporter's flags can't be": {
			[]string{"--source", "dcgm", "-c", "-1", "-x=-2", "-m", "fields", "--host-label", "host"},
			"--collect-interval: -1 is negative\n--xid-count-window-size: -2 is negative\n--configmap-data: \"fields\" is not namespace:name\n--host-label: \"host\" is neither hostname nor Hostname",
		},
		"a web configuration that is wrong": {
			append(ok, "--web-config-file", fields), "--web-config-file: " + fields + ": yaml: unmarshal errors:\n  line 1: cannot unmarshal !!str `DCGM_FI...` into web.Config",
		},
		"no file":             {[]string{"--source", "file"}, "--file: the source file needs one"},
		"stale at once":       {append(ok, "--stale-after", "1s"), "--stale-after: 1s is under the interval of 5s"},
		"an unknown flag":     {append(ok, "--fiel", "y"), "unknown flag: --fiel"},
		"a level that is not": {append(ok, "--log-level", "loud"), `invalid argument "loud" for "--log-level" flag: slog: level string "loud": unknown name`},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), tc.args, io.Discard, io.Discard)
			if err == nil || err.Error() != tc.want {
				t.Errorf("err = %v, want\n%s", err, tc.want)
			}
			if code := exitCode(err); code != 2 {
				t.Errorf("status %d, want 2", code)
			}
		})
	}
	err := run(t.Context(), append(ok, "--listen", "127.0.0.1:99999"), io.Discard, io.Discard)
	if err == nil || !strings.HasPrefix(err.Error(), "listen: ") || exitCode(err) != 1 {
		t.Errorf("a port that can't be: %v, status %d; want one of listen, 1", err, exitCode(err))
	}
}

// TestAPassword: with a web configuration nobody reads the page without one.
func TestAPassword(t *testing.T) {
	dir := t.TempDir()
	file, config := filepath.Join(dir, "gpu.prom"), filepath.Join(dir, "web.yml")
	writePage(t, file, page)
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	writePage(t, config, "basic_auth_users:\n  prometheus: "+string(hash)+"\n")
	p := start(t, "--source", "file", "--file", file, "--node", "n", "--web-config-file", config)
	for password, want := range map[string]int{"": 401, "wrong": 401, "secret": 200} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if password != "" {
			req.SetBasicAuth("prometheus", password)
		}
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("with the password %q: %d, want %d", password, r.StatusCode, want)
		}
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("status %d after SIGTERM, want 0:\n%s", code, p.log)
	}
}

// TestAWebConfigurationThatBreaks: while it is wrong the log says why, nobody gets in, and the
// collector goes on.
func TestAWebConfigurationThatBreaks(t *testing.T) {
	dir := t.TempDir()
	file, config := filepath.Join(dir, "gpu.prom"), filepath.Join(dir, "web.yml")
	writePage(t, file, page)
	writePage(t, config, "http_server_config: {headers: {X-Content-Type-Options: nosniff}}\n")
	p := start(t, "--source", "file", "--file", file, "--node", "n", "--interval", "100ms", "--web-config-file", config)
	p.await(t, xid79+"1\n")
	writePage(t, config, "basic_auth_user: {x: y}\n")
	p.await(t, "Internal Server Error")
	writePage(t, file, page[:len(page)-9]) // the source breaks meanwhile
	writePage(t, config, "{}\n")
	p.await(t, `stoker_collector_source_up{node="n",source="file"} 0`)
	p.stop(t)
	if !strings.Contains(p.log.String(), "field basic_auth_user not found") {
		t.Errorf("the log does not say what is wrong:\n%s", p.log)
	}
}

func TestBootID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "boot_id")
	if _, err := readBootID(path); err == nil {
		t.Error("a file that is not there gave a boot")
	}
	writePage(t, path, "\n")
	if _, err := readBootID(path); err == nil {
		t.Error("an empty file gave a boot")
	}
	writePage(t, path, "3f1c\n")
	if id, err := readBootID(path); err != nil || id != "3f1c" {
		t.Errorf("got %q, %v; want 3f1c", id, err)
	}
}

// TestNothingOfTheServiceIsLinkedIn follows the imports of the program through our
// own packages.
func TestNothingOfTheServiceIsLinkedIn(t *testing.T) {
	const module = "stoker.dev/stoker/"
	may := regexp.MustCompile(`^(collector(/[a-z]+)*|internal/fleet|internal/xid|cmd/stoker-collector)$`)
	outside := regexp.MustCompile(`^(github\.com/prometheus/(client_golang|client_model|common|exporter-toolkit)|github\.com/spf13/(cobra|pflag)|google\.golang\.org/grpc|k8s\.io/kubelet|github\.com/NVIDIA/go-nvml|golang\.org/x/sys)(/|$)`)
	seen := map[string]bool{}
	var follow func(pkg string)
	follow = func(pkg string) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		if !may.MatchString(pkg) {
			t.Errorf("%s is linked in", pkg)
			return
		}
		files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pkg, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, imp := range f.Imports {
				path, err := strconv.Unquote(imp.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if ours, ok := strings.CutPrefix(path, module); ok {
					follow(ours)
					continue
				}
				if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") && !outside.MatchString(path) {
					t.Errorf("%s imports %s", file, path)
				}
			}
		}
	}
	follow("cmd/stoker-collector")
	for _, want := range []string{"collector", "collector/dcgm", "collector/exporter", "collector/kmsg", "internal/fleet", "internal/xid"} {
		if !seen[want] {
			t.Errorf("%s was not followed", want)
		}
	}
}
