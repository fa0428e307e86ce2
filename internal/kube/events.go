package kube

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"stoker.dev/stoker/actuator/jobs"
	"stoker.dev/stoker/internal/remedy"
)

// maxMessage is how long, in bytes, the API lets the text of an event be.
const maxMessage = 1024

// Events tells on the objects themselves what was done to them and why: `kubectl
// describe` shows it. It is a courtesy. It never blocks; what is told faster than the
// API takes it is dropped, and what repeats itself is counted on one event. The
// record of what was done is the incident.
type Events struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// NewEvents returns a recorder. Close it.
func NewEvents(log *slog.Logger, cfg *rest.Config) (*Events, error) {
	client, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	ctx := klog.NewContext(context.Background(), logr.FromSlogHandler(log.Handler()))
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
	// The recorder would log each event that it drops, and it drops many in a storm.
	recorder := b.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: "stoker"}).WithLogger(logr.Discard())
	return &Events{b, recorder}, nil
}

// Close ends the recorder. What is still queued may be lost.
func (e *Events) Close() { e.broadcaster.Shutdown() }

// Started tells that an order was started, of the gates that it has passed, and who
// decided.
func (e *Events) Started(o remedy.Order, gates []remedy.GateResult) {
	text := o.Cause
	if len(gates) > 0 {
		var passed []string
		for _, g := range gates {
			passed = append(passed, g.Gate+": "+g.Reason)
		}
		text += ". Gates: " + strings.Join(passed, "; ")
	}
	e.tell(o, corev1.EventTypeNormal, "Started", text)
}

// Ended tells how an order ended. An ending that needs somebody's attention is a warning.
func (e *Events) Ended(o remedy.Order, out remedy.Outcome) {
	kind := corev1.EventTypeNormal
	if !out.Ending.Settled() {
		kind = corev1.EventTypeWarning
	}
	text := out.Note
	if text == "" {
		text = o.Cause
	}
	e.tell(o, kind, camel(string(out.Ending)), text)
}

func (e *Events) tell(o remedy.Order, kind, what, text string) {
	ref := reference(o.Target)
	if ref == nil {
		return
	}
	text = fmt.Sprintf("%s. Incident %s, by %s", strings.TrimSuffix(text, "."), o.Incident, o.Actor)
	annotations := map[string]string{remedy.MarkKey: o.Key, remedy.MarkAction: o.Action}
	e.recorder.AnnotatedEventf(ref, annotations, kind, camel(o.Action)+what, "%s", cut(text, maxMessage))
}

// reference names the target as events do; nil when there is nothing to name.
func reference(t remedy.Target) *corev1.ObjectReference {
	if t.Node != "" && t.Job.Name == "" {
		uid := t.UID
		if uid == "" {
			uid = t.Node // as kubelets do; kubectl looks for both
		}
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: t.Node, UID: types.UID(uid)}
	}
	if t.Job.Name == "" {
		return nil
	}
	kind := schema.ParseGroupKind(t.Job.Kind)
	ref := &corev1.ObjectReference{Kind: kind.Kind, Namespace: t.Job.Namespace, Name: t.Job.Name, UID: types.UID(t.UID)}
	for _, s := range jobs.Adapters {
		if s.Kind == kind {
			ref.APIVersion = s.Resource.GroupVersion().String()
		}
	}
	return ref
}

// camel writes a word as reasons of events are written.
func camel(s string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(s, "-") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}

// cut shortens text to at most n bytes, at the end of a letter.
func cut(s string, n int) string {
	const more = "…"
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len(more)], "") + more
}
