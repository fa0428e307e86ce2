package kube

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/e2e/cluster"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/kube"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/store"
)

func endingOf(err error) remedy.Ending {
	if f, ok := errors.AsType[*remedy.Failure](err); ok {
		return f.Ending
	}
	return remedy.Unclear
}

func TestMarkOfANodeThatWasMadeAnew(t *testing.T) {
	s := theSuite(t)
	c := s.hands(t)
	name := s.AddNodes(t, 1, cluster.Nodes{Prefix: "anew-"})[0]
	n, err := c.Node(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if n.Capacity.GPUs != 8 || n.BootID == "" || n.Version == 0 || n.Ready.Status != fleet.True {
		t.Errorf("node = %+v, want 8 GPUs, a boot id, a version and ready", n)
	}
	nodes := s.Client.CoreV1().Nodes()
	old := s.Node(t, name)
	if err := nodes.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.MarkNode(t.Context(), n, fleet.Hold{}.With("a", time.Now()), true)
	wantEnding(t, err, remedy.Gone)
	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: old.Labels}}
	if _, err := nodes.Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.MarkNode(t.Context(), n, fleet.Hold{}.With("a", time.Now()), true)
	wantEnding(t, err, remedy.Gone)
	if err := nodes.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestStartKeepsWhatTheUserWrote(t *testing.T) {
	s := theSuite(t)
	c := s.hands(t)
	nodes := s.AddNodes(t, 4, cluster.Nodes{Prefix: "start-", Labels: map[string]string{testLabel: "start"}})
	ref := fleet.JobRef{Kind: "Job.batch", Namespace: "start", Name: "llm"}
	job := cluster.IndexedJob(ref.Namespace, ref.Name, 2, 8)
	users := []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: testLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{"start"}}}},
		{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: testLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{"nowhere"}}}},
	}
	job.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: users},
	}}
	job.Spec.Template.Annotations = map[string]string{"mine": "kept"}
	s.CreateJob(t, job)
	before := s.AwaitRunning(t, ref.Namespace, ref.Name, soon)
	ill := before[0].Spec.NodeName

	stop(t, s, c, ref, "a/1/stop")
	started := start(t, c, ref, "a/2/start", actuator.Restart{Resume: "/ckpt/7", Avoid: []string{ill}})
	if started.Suspended || started.Resume != "/ckpt/7" || !slices.Equal(started.Avoid, []string{ill}) || started.Attempt != 1 || started.StartedBy != "a/2/start" {
		t.Errorf("job = %+v, want one that was started with all that was asked", started)
	}
	for _, p := range s.AwaitRunning(t, ref.Namespace, ref.Name, soon) {
		if p.Spec.NodeName == ill || !slices.Contains(nodes, p.Spec.NodeName) {
			t.Errorf("pod %s is on %s, away from %s and within %v was asked", p.Name, p.Spec.NodeName, ill, nodes)
		}
		if p.Annotations[remedy.MarkResumeFrom] != "/ckpt/7" || p.Annotations["mine"] != "kept" {
			t.Errorf("pod %s has annotations %v", p.Name, p.Annotations)
		}
	}

	// The next restart lets the node go again and leaves the affinity as the user wrote it.
	stop(t, s, c, ref, "b/1/stop")
	start(t, c, ref, "b/2/start", actuator.Restart{Resume: "/ckpt/9"})
	after := s.Job(t, ref.Namespace, ref.Name).Spec.Template
	got := after.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(got) != 2 || len(got[0].MatchFields) != 0 || len(got[1].MatchFields) != 0 || got[0].MatchExpressions[0].Values[0] != "start" {
		t.Errorf("affinity = %+v, want what the user wrote", got)
	}
	writes := s.AwaitAudit(t, "four writes of the job", soon, func(l cluster.AuditLog) cluster.AuditLog {
		return l.ByServiceAccount(own, account).Writes().Done().Of("jobs").In(ref.Namespace).AtLeast(4)
	})
	if len(writes) != 4 {
		t.Errorf("%d writes for two stops and two starts, want one each:\n%s", len(writes), writes)
	}
}

// change reads the job and writes what do makes of it.
func change(t *testing.T, c *kube.Cluster, ref fleet.JobRef, do func(fleet.Job) (fleet.Job, error)) fleet.Job {
	t.Helper()
	return retried(t, func() (fleet.Job, error) {
		j, err := c.Job(t.Context(), ref)
		if err != nil {
			return j, err
		}
		return do(j)
	})
}

// start starts a stopped job.
func start(t *testing.T, c *kube.Cluster, ref fleet.JobRef, key string, with actuator.Restart) fleet.Job {
	t.Helper()
	return change(t, c, ref, func(j fleet.Job) (fleet.Job, error) { return c.StartJob(t.Context(), j, key, with) })
}

// stop stops the job and waits until it can be started.
func stop(t *testing.T, s *suite, c *kube.Cluster, ref fleet.JobRef, key string) {
	t.Helper()
	j := change(t, c, ref, func(j fleet.Job) (fleet.Job, error) { return c.StopJob(t.Context(), j, key) })
	if !j.Suspended || j.StoppedBy != key {
		t.Errorf("job = %+v, want suspended by %s", j, key)
	}
	s.AwaitNoPods(t, ref.Namespace, ref.Name, soon)
	for deadline := time.Now().Add(soon); ; time.Sleep(100 * time.Millisecond) {
		job := s.Job(t, ref.Namespace, ref.Name)
		if job.Status.Active == 0 && slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionTrue
		}) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the job controller has not suspended the job: %+v", job.Status)
		}
	}
}

func TestStartBeforeTheControllerHasSeenTheStop(t *testing.T) {
	s := theSuite(t)
	c := s.hands(t)
	s.AddNodes(t, 1, cluster.Nodes{Prefix: "unseen-", Labels: map[string]string{testLabel: "unseen"}})
	ref := fleet.JobRef{Kind: "Job.batch", Namespace: "unseen", Name: "llm"}
	job := cluster.IndexedJob(ref.Namespace, ref.Name, 1, 8)
	job.Spec.Template.Spec.NodeSelector = map[string]string{testLabel: "unseen"}
	s.CreateJob(t, job)
	s.AwaitRunning(t, ref.Namespace, ref.Name, soon)
	s.ControllerManager.Stop(t)
	defer s.ControllerManager.Start(t)
	j := change(t, c, ref, func(j fleet.Job) (fleet.Job, error) { return c.StopJob(t.Context(), j, "a/1/stop") })
	_, err := c.StartJob(t.Context(), j, "a/2/start", actuator.Restart{Resume: "/x"})
	wantEnding(t, err, remedy.Conflict)
}

// TestStartOnOlderKubernetes holds the template of a job that has run to be fixed, as
// it is before Kubernetes 1.36.
func TestStartOnOlderKubernetes(t *testing.T) {
	old := cluster.Start(t, cluster.Options{APIServerArgs: []string{
		"--feature-gates=MutableSchedulingDirectivesForSuspendedJobs=false,MutablePodResourcesForSuspendedJobs=false",
	}})
	s := &suite{Cluster: old, config: old.Config}
	old.Namespace(t, own)
	c := s.hands(t)
	s.AddNodes(t, 2, cluster.Nodes{Prefix: "old-"})
	ref := fleet.JobRef{Kind: "Job.batch", Namespace: "old", Name: "llm"}
	s.CreateJob(t, cluster.IndexedJob(ref.Namespace, ref.Name, 1, 8))
	s.AwaitRunning(t, ref.Namespace, ref.Name, soon)
	stop(t, s, c, ref, "a/1/stop")
	// A newer controller manager forgets when a suspended job began; an older one does not.
	s.ControllerManager.Stop(t)
	began := []byte(`{"status":{"startTime":"2026-11-30T06:00:00Z"}}`)
	if _, err := s.Client.BatchV1().Jobs(ref.Namespace).Patch(t.Context(), ref.Name, types.MergePatchType, began, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	j := start(t, c, ref, "a/2/start", actuator.Restart{Resume: "/ckpt/7", Avoid: []string{"old-001"}})
	if j.Suspended || j.StartedBy != "a/2/start" || j.Resume != "" || len(j.Avoid) != 0 {
		t.Errorf("job = %+v, want one that runs and shows that it took neither resume nor avoid", j)
	}
	s.ControllerManager.Start(t)
	s.AwaitRunning(t, ref.Namespace, ref.Name, soon)
}

func TestAccountMayDoNoMore(t *testing.T) {
	s := theSuite(t)
	client, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		verb, group, resource, sub, namespace string
		want                                  bool
	}{
		{"patch", "", "nodes", "", "", true},
		{"create", "", "pods", "eviction", "train", true},
		{"create", "batch", "jobs", "", own, true},
		{"patch", store.Incidents.Group, "incidents", "", own, true},
		{"delete", "", "nodes", "", "", false},
		{"delete", "", "pods", "", "train", false},
		{"create", "", "pods", "", own, false},
		{"create", "batch", "jobs", "", "train", false},
		{"delete", "batch", "jobs", "", "train", false},
		{"get", "", "secrets", "", own, false},
		{"patch", store.Incidents.Group, "incidents", "", "train", false},
		{"update", "coordination.k8s.io", "leases", "", "kube-system", false},
		{"create", "", "serviceaccounts", "token", own, false},
		{"escalate", "rbac.authorization.k8s.io", "clusterroles", "", "", false},
	} {
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: tc.verb, Group: tc.group, Resource: tc.resource, Subresource: tc.sub, Namespace: tc.namespace,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed != tc.want {
			t.Errorf("may %s %s/%s %s in %q: %v, want %v", tc.verb, tc.group, tc.resource, tc.sub, tc.namespace, review.Status.Allowed, tc.want)
		}
	}
	if denied := s.Audit(t).ByServiceAccount(own, account).Denied(); len(denied) > 0 {
		t.Errorf("the account was denied what it asked for:\n%s", denied)
	}
}

func TestWhatTheAPIRefuses(t *testing.T) {
	s := theSuite(t)
	c := s.hands(t)
	_, err := c.Node(t.Context(), "not-there")
	wantEnding(t, err, remedy.Gone)
	if !strings.Contains(err.Error(), "not-there") {
		t.Errorf("err = %v, want one that names the node", err)
	}
	_, err = c.Job(t.Context(), fleet.JobRef{Kind: "Job.batch", Namespace: "no-such-namespace", Name: "x"})
	wantEnding(t, err, remedy.Gone)
	wantEnding(t, c.Evict(t.Context(), fleet.PodRef{Namespace: "default", Name: "x", UID: "u"}), remedy.Gone)
	elsewhere := kube.NewCluster(logger(t), s.client(t), kube.ClusterOptions{Namespace: "no-such-namespace", Repairs: mustTemplates(t)})
	_, err = elsewhere.CreateRepair(t.Context(), actuator.Repair{Name: "r", Action: "reboot", Key: "k", Node: "n", BootID: "b"})
	// What it may not do may only not be loaded yet: asked again until it is late.
	wantEnding(t, err, remedy.Conflict)
	_, err = c.CreateRepair(t.Context(), actuator.Repair{Name: "not a name", Action: "reboot", Key: "k", Node: "n", BootID: "b"})
	wantEnding(t, err, remedy.Rejected)
}

func mustTemplates(t *testing.T) kube.Templates {
	t.Helper()
	tpl, err := kube.ParseTemplates(nil)
	if err != nil {
		t.Fatal(err)
	}
	return tpl
}
