package spine

import (
	"net/http"
	"sync"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestToldThreeTimesDoneOnce sends one webhook request three times at once, again in the
// middle of the ladder and again when all is over. The drain waits for a disruption
// budget meanwhile, and does not press.
func TestToldThreeTimesDoneOnce(t *testing.T) {
	f := setUp(t, "told", needs{})
	ill := f.startJob(t, 0)
	f.startLodger(t, ill, time.Second)
	boot := f.bootID(t, ill)
	budgets := f.Client.PolicyV1().PodDisruptionBudgets(f.train)
	if _, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "lodger"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "lodger"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := f.serve(t, settings{})
	s.awaitLeader(t)

	body := webhookBody(t, f.gpuLost(t, ill, time.Now()))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if code, text, err := s.post(t.Context(), body); err != nil || code != http.StatusOK {
				t.Errorf("the webhook answers %d %s, %v", code, text, err)
			}
		})
	}
	wg.Wait()

	f.awaitStep(t, ill, "drain")
	s.tell(t, body)
	// It is asked, refused, and asked again.
	f.AwaitAudit(t, "the second eviction that the budget refuses", soon, f.secondRefusal)
	if did := f.did(t); len(did[evicts]) > 0 || len(did[reboots]) > 0 {
		t.Errorf("the budget allows no eviction, yet there were %d, and %d reboots", len(did[evicts]), len(did[reboots]))
	}
	if err := budgets.Delete(t.Context(), "lodger", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	f.awaitHealed(t, ill, long)
	s.tell(t, body)
	f.checkJob(t, ill)
	f.checkRebooted(t, ill, boot)
	f.checkUnmarked(t, ill)
	f.checkEffects(t, onceEach)
	f.checkOne(t, ill)
}
