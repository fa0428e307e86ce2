package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The tests of this file need no cluster.

func TestAwait(t *testing.T) {
	away := errors.New("connection refused")
	stopped := errors.New("etcd ended by itself")
	for name, tc := range map[string]struct {
		look    func(n int) (bool, string, error)
		cancel  error // after 1 s
		want    string
		wantFor time.Duration
	}{
		"what is there already is not waited for": {
			look: func(int) (bool, string, error) { return true, "", nil },
		},
		"an error passes": {
			look: func(n int) (bool, string, error) {
				if n < 3 {
					return false, "", away
				}
				return true, "", nil
			},
			wantFor: 3 * pollEvery,
		},
		"the end of patience tells what was seen last": {
			look:    func(int) (bool, string, error) { return false, "7 of 8", nil },
			want:    "waited 5.0 s for nodes: not within 5s; last seen: 7 of 8",
			wantFor: 5 * time.Second,
		},
		"an obstacle that did not pass is what was seen last": {
			look:    func(int) (bool, string, error) { return false, "", away },
			want:    "waited 5.0 s for nodes: not within 5s; last seen: connection refused",
			wantFor: 5 * time.Second,
		},
		"a wait that is called off says why": {
			look:    func(int) (bool, string, error) { return false, "7 of 8", nil },
			cancel:  stopped,
			want:    "waited 1.0 s for nodes: etcd ended by itself; last seen: 7 of 8",
			wantFor: time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tc.cancel != nil {
					time.AfterFunc(time.Second, func() { cancel(tc.cancel) })
				}
				start, n := time.Now(), 0
				err := Await(ctx, "nodes", 5*time.Second, func(context.Context) (bool, string, error) {
					defer func() { n++ }()
					return tc.look(n)
				})
				got := ""
				if err != nil {
					got = err.Error()
				}
				if got != tc.want {
					t.Errorf("err = %q, want %q", got, tc.want)
				}
				if d := time.Since(start); d != tc.wantFor {
					t.Errorf("waited %v, want %v", d, tc.wantFor)
				}
			})
		})
	}
}

const auditLine = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"a","stage":"ResponseComplete",` +
	`"requestURI":"/api/v1/namespaces/train/pods/a-0/eviction","verb":"create","user":{"username":"system:serviceaccount:stoker-system:stoker"},` +
	`"userAgent":"stoker/1","objectRef":{"resource":"pods","namespace":"train","name":"a-0","apiVersion":"v1","subresource":"eviction"},` +
	`"responseStatus":{"metadata":{},"code":201},"requestObject":{"kind":"Eviction"},` +
	`"requestReceivedTimestamp":"2026-11-30T14:00:00.5Z","stageTimestamp":"2026-11-30T14:00:00.6Z"}`

var auditEvent = AuditEvent{
	Time: time.Date(2026, 11, 30, 14, 0, 0, 5e8, time.UTC), User: "system:serviceaccount:stoker-system:stoker", Agent: "stoker/1",
	Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "train", Name: "a-0",
	URI: "/api/v1/namespaces/train/pods/a-0/eviction", Code: 201, Object: []byte(`{"kind":"Eviction"}`),
}

func TestAuditLogIsReadOnceAndWhole(t *testing.T) {
	watch := func(stage string) string {
		return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"` + stage + `","verb":"watch","user":{"username":"u"}}` + "\n"
	}
	log := auditLog{path: filepath.Join(t.TempDir(), "audit.log")}
	expect := func(when string, want ...AuditEvent) {
		t.Helper()
		got, err := log.read()
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if diff := cmp.Diff(AuditLog(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(log.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	watched := AuditEvent{User: "u", Verb: "watch"}

	expect("before the first event")
	write(auditLine + "\n" + auditLine[:100])
	expect("a line that is being written waits", auditEvent)
	write(auditLine[100:] + "\n")
	expect("then it counts", auditEvent, auditEvent)
	write(watch("ResponseStarted") + watch("ResponseComplete"))
	expect("a watch counts once", auditEvent, auditEvent, watched)
	write(auditLine[:200] + watch("ResponseStarted"))
	expect("a line that a killed server left half is given up", auditEvent, auditEvent, watched, watched)
	write("not an event\n")
	if _, err := log.read(); err == nil || !strings.Contains(err.Error(), "at byte") {
		t.Errorf("err = %v, want one that names the place", err)
	}
}

func TestAuditLogFilters(t *testing.T) {
	read := AuditEvent{User: UserAdmin, Verb: "list", Resource: "nodes", Code: 200, Time: auditEvent.Time.Add(-time.Minute)}
	denied := AuditEvent{User: "system:serviceaccount:a:b", Verb: "delete", Resource: "pods", Namespace: "a", Name: "p", Code: 403, Time: auditEvent.Time}
	log := AuditLog{read, auditEvent, denied}
	for name, tc := range map[string]struct{ got, want AuditLog }{
		"by user":                            {log.By(UserAdmin), AuditLog{read}},
		"by service account":                 {log.ByServiceAccount("stoker-system", "stoker"), AuditLog{auditEvent}},
		"writes":                             {log.Writes(), AuditLog{auditEvent, denied}},
		"by verb":                            {log.Verb("list", "delete"), AuditLog{read, denied}},
		"of a resource with its sub-":        {log.Of("pods"), AuditLog{auditEvent, denied}},
		"of one subresource":                 {log.Of("pods/eviction"), AuditLog{auditEvent}},
		"of a resource without subresources": {log.Of("pods/"), AuditLog{denied}},
		"in a namespace, by name":            {log.In("train").Named("a-0"), AuditLog{auditEvent}},
		"since a time":                       {log.Since(auditEvent.Time), AuditLog{auditEvent, denied}},
		"done":                               {log.Done(), AuditLog{read, auditEvent}},
		"denied":                             {log.Denied(), AuditLog{denied}},
		"as many as wanted":                  {log.Writes().AtLeast(2), AuditLog{auditEvent, denied}},
		"not as many yet":                    {log.Writes().AtLeast(3), nil},
		"chained to nothing":                 {log.Denied().Done(), nil},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	got, want := AuditLog{denied}.String(), "14:00:00.500 system:serviceaccount:a:b delete pods a/p: 403\n"
	if got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

func TestParseObjects(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"documents, comments and lists": {
			"# nothing\n---\nkind: A\napiVersion: v1\nmetadata: {name: a}\n---\nkind: List\napiVersion: v1\nitems:\n- {kind: B, apiVersion: v1, metadata: {name: b}}\n- {kind: C, apiVersion: v1, metadata: {name: c}}\n",
			"A a, B b, C c",
		},
		"the document that is no YAML is named": {"kind: A\n---\n\tkind: B\n", "document 2"},
	} {
		t.Run(name, func(t *testing.T) {
			objs, err := parseObjects([]byte(tc.yaml))
			var names []string
			for _, o := range objs {
				names = append(names, o.GetKind()+" "+o.GetName())
			}
			got := strings.Join(names, ", ")
			if err != nil {
				got = err.Error()
			}
			if !strings.HasPrefix(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestFreePorts(t *testing.T) {
	given := map[int]bool{}
	for range 50 {
		port := FreePort(t)
		if given[port] || port < firstPort || port > lastPort {
			t.Fatalf("port %d was given twice or lies outside %d-%d", port, firstPort, lastPort)
		}
		given[port] = true
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", loopback, port))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAPortIsGivenToOneProcess(t *testing.T) {
	port := FreePort(t)
	for port, want := range map[int]string{port: "false", firstPort - 1: "true"} {
		other := exec.CommandContext(t.Context(), os.Args[0])
		other.Env = append(os.Environ(), fmt.Sprintf("%s=%d", portEnv, port))
		if said, err := other.Output(); err != nil || string(said) != want {
			t.Errorf("another process may have port %d: %s (%v), want %s", port, said, err, want)
		}
	}
}

func TestBootIDsLookLikeTheKernels(t *testing.T) {
	pattern := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	a, b := newBootID(), newBootID()
	if !pattern.MatchString(a) || a == b {
		t.Errorf("boot ids %q and %q, want two different ones like %v", a, b, pattern)
	}
}

// shell starts a shell script as a process.
func shell(t *testing.T, script string) *Process {
	t.Helper()
	dir := t.TempDir()
	p, err := startProcess("script", "/bin/sh", []string{"-c", script}, baseEnv(dir), dir, filepath.Join(dir, "script.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

func awaitText(t *testing.T, p *Process, text string) {
	t.Helper()
	err := Await(t.Context(), text, soon, func(context.Context) (bool, string, error) {
		log := p.Log(t)
		return strings.Contains(log, text), log, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestProcessEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		script     string
		end        func(p *Process) (gently bool, err error)
		wantGently bool
		wantCode   int
		wantDied   bool
	}{
		"by itself, which is told": {
			script:   "echo up; exit 3",
			end:      func(p *Process) (bool, error) { return false, p.Wait(t.Context()) },
			wantCode: 3, wantDied: true,
		},
		"by the signal it was sent": {
			script: "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done",
			end:    func(p *Process) (bool, error) { return p.Stop(10 * time.Second) }, wantGently: true,
		},
		"by force when it does not listen": {
			script:   "trap '' TERM; echo up; while :; do sleep 0.05; done",
			end:      func(p *Process) (bool, error) { return p.Stop(100 * time.Millisecond) },
			wantCode: -1,
		},
		"by kill -9": {
			script:   "echo up; while :; do sleep 0.05; done",
			end:      func(p *Process) (bool, error) { return false, p.Kill() },
			wantCode: -1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := shell(t, tc.script)
			awaitText(t, p, "up")
			gently, err := tc.end(p)
			if err != nil {
				t.Fatal(err)
			}
			if gently != tc.wantGently || p.ExitCode() != tc.wantCode || p.Running() {
				t.Errorf("gently %v, code %d, running %v; want gently %v, code %d", gently, p.ExitCode(), p.Running(), tc.wantGently, tc.wantCode)
			}
			if died := p.died(); (died != "") != tc.wantDied {
				t.Errorf("died = %q, want something: %v", died, tc.wantDied)
			}
			if err := p.Signal(syscall.SIGTERM); err != nil {
				t.Errorf("a signal to what has ended: %v", err)
			}
		})
	}
}

func TestProcessInheritsNothing(t *testing.T) {
	t.Setenv("KUBECONFIG", "/somebody/elses")
	p := shell(t, `echo "config=$KUBECONFIG home=$HOME"`)
	awaitText(t, p, "config= home=/")
}

func TestAProgramThatIsNotThereIsAnError(t *testing.T) {
	dir := t.TempDir()
	_, err := startProcess("nothing", filepath.Join(dir, "nothing"), nil, nil, dir, filepath.Join(dir, "log"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v, want that the file does not exist", err)
	}
}
