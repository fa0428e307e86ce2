package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// An AuditEvent is one request as the API server wrote it down after answering.
// The log has every write of every user, and the reads of service accounts
// outside kube-system.
type AuditEvent struct {
	// Time is when the request came in.
	Time time.Time
	// User is the name of who asked: one of the User constants, or
	// system:serviceaccount:NAMESPACE:NAME.
	User string
	// Agent is the user agent that the client gave.
	Agent string
	// Verb is Kubernetes' word for what was asked: create, update, patch, delete,
	// deletecollection; of reads get, list, watch.
	Verb string
	// Group, Resource and Subresource say of what: "", "pods", "eviction".
	Group, Resource, Subresource string
	// Namespace and Name say of which. Name may be empty where the server chose it.
	Namespace, Name string
	// URI is the request's path and query.
	URI string
	// Code is the HTTP status of the answer, 0 when there was none.
	Code int
	// Object is the body of a write: the object, the patch or the options. nil for
	// reads, leases, secrets and tokens.
	Object json.RawMessage
}

// String says who did what, in one line.
func (e AuditEvent) String() string {
	what := e.Resource
	if e.Subresource != "" {
		what += "/" + e.Subresource
	}
	return fmt.Sprintf("%s %s %s %s %s/%s: %d", e.Time.Format("15:04:05.000"), e.User, e.Verb, what, e.Namespace, e.Name, e.Code)
}

// Write reports whether the request asked for a change.
func (e AuditEvent) Write() bool {
	switch e.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// An AuditLog is a list of events in the order of their answers. Its methods return
// what is left, so that they can be chained.
type AuditLog []AuditEvent

// Where keeps the events for which keep is true.
func (l AuditLog) Where(keep func(AuditEvent) bool) AuditLog {
	var out AuditLog
	for _, e := range l {
		if keep(e) {
			out = append(out, e)
		}
	}
	return out
}

// By keeps the events of these users.
func (l AuditLog) By(users ...string) AuditLog {
	return l.Where(func(e AuditEvent) bool { return slices.Contains(users, e.User) })
}

// ByServiceAccount keeps the events of one service account.
func (l AuditLog) ByServiceAccount(namespace, name string) AuditLog {
	return l.By(serviceAccountUser(namespace, name))
}

// Writes keeps the writes.
func (l AuditLog) Writes() AuditLog { return l.Where(AuditEvent.Write) }

// Verb keeps the events with one of these verbs.
func (l AuditLog) Verb(verbs ...string) AuditLog {
	return l.Where(func(e AuditEvent) bool { return slices.Contains(verbs, e.Verb) })
}

// Of keeps the events about a resource ("pods"), subresources included, or about one
// subresource ("pods/eviction").
func (l AuditLog) Of(resource string) AuditLog {
	resource, sub, one := strings.Cut(resource, "/")
	return l.Where(func(e AuditEvent) bool { return e.Resource == resource && (!one || e.Subresource == sub) })
}

// In keeps the events in a namespace.
func (l AuditLog) In(namespace string) AuditLog {
	return l.Where(func(e AuditEvent) bool { return e.Namespace == namespace })
}

// Named keeps the events about objects with this name.
func (l AuditLog) Named(name string) AuditLog {
	return l.Where(func(e AuditEvent) bool { return e.Name == name })
}

// Since keeps the events of requests that came in at t or later.
func (l AuditLog) Since(t time.Time) AuditLog {
	return l.Where(func(e AuditEvent) bool { return !e.Time.Before(t) })
}

// Done keeps the events that the server answered with success.
func (l AuditLog) Done() AuditLog {
	return l.Where(func(e AuditEvent) bool { return e.Code >= 200 && e.Code < 300 })
}

// Denied keeps the events that RBAC or admission denied.
func (l AuditLog) Denied() AuditLog {
	return l.Where(func(e AuditEvent) bool { return e.Code == 403 })
}

// AtLeast keeps all events once there are n of them, and none before, for [Cluster.AwaitAudit].
func (l AuditLog) AtLeast(n int) AuditLog {
	if len(l) < n {
		return nil
	}
	return l
}

// String lists the events, one a line.
func (l AuditLog) String() string {
	var b strings.Builder
	for _, e := range l {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// Audit returns the audit log so far. An answer may reach its client a moment
// before its event is here; wait for what must be there with [Cluster.AwaitAudit].
func (c *Cluster) Audit(t testing.TB) AuditLog {
	t.Helper()
	log, err := c.audit.read()
	if err != nil {
		t.Fatalf("read the audit log: %v", err)
	}
	return log
}

// AwaitAudit waits until pick returns at least one event of the log and returns
// what it picked. Where more are expected, pick ends in [AuditLog.AtLeast].
func (c *Cluster) AwaitAudit(t testing.TB, what string, within time.Duration, pick func(AuditLog) AuditLog) AuditLog {
	t.Helper()
	var picked AuditLog
	c.Await(t, what+" in the audit log", within, func(ctx context.Context) (bool, string, error) {
		log, err := c.audit.read()
		if err != nil {
			return false, "", err
		}
		picked = pick(log)
		return len(picked) > 0, fmt.Sprintf("%d events, none of these", len(log)), nil
	})
	return picked
}

// auditLog reads the API server's log file, each byte once.
type auditLog struct {
	path string

	mu     sync.Mutex
	offset int64
	events AuditLog
}

func (a *auditLog) read() (AuditLog, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, err := os.Open(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(a.offset, io.SeekStart); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	for {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole { // still being written
			break
		}
		e, keep, err := parseAuditEvent(line)
		if err != nil {
			return nil, fmt.Errorf("%s at byte %d: %w", a.path, a.offset, err)
		}
		if keep {
			a.events = append(a.events, e)
		}
		a.offset += int64(len(line)) + 1
		data = rest
	}
	return slices.Clone(a.events), nil
}

// parseAuditEvent decodes one line of the log. keep is false for the second event of a
// watch, which the log has when it begins and when it ends.
func parseAuditEvent(line []byte) (e AuditEvent, keep bool, err error) {
	// A server that was killed while it wrote left half a line, to which its
	// successor appended a whole one.
	if i := bytes.LastIndex(line, []byte(`{"kind":"Event","apiVersion":"audit.k8s.io/`)); i > 0 {
		line = line[i:]
	}
	var raw struct {
		Stage     string
		Verb      string
		URI       string `json:"requestURI"`
		UserAgent string
		User      struct{ Username string }
		Object    struct {
			APIGroup, Resource, Subresource, Namespace, Name string
		} `json:"objectRef"`
		Status struct{ Code int } `json:"responseStatus"`
		Body   json.RawMessage    `json:"requestObject"`
		Time   time.Time          `json:"requestReceivedTimestamp"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return e, false, err
	}
	e = AuditEvent{
		Time: raw.Time, User: raw.User.Username, Agent: raw.UserAgent, Verb: raw.Verb,
		Group: raw.Object.APIGroup, Resource: raw.Object.Resource, Subresource: raw.Object.Subresource,
		Namespace: raw.Object.Namespace, Name: raw.Object.Name,
		URI: raw.URI, Code: raw.Status.Code, Object: raw.Body,
	}
	return e, raw.Verb != "watch" || raw.Stage == "ResponseStarted", nil
}
