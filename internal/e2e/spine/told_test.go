package spine

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"stoker.dev/stoker/internal/e2e/scene"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestToldThreeTimesDoneOnce sends one webhook request three times at once, again in the
// middle of the ladder and again when all is over. The drain waits for a disruption
// budget meanwhile, and does not press.
func TestToldThreeTimesDoneOnce(t *testing.T) {
	f := scene.SetUp(t, "told", scene.Needs{})
	ill := f.StartJob(t, 0)
	f.StartLodger(t, ill, time.Second)
	boot := f.BootID(t, ill)
	budgets := f.Client.PolicyV1().PodDisruptionBudgets(f.Train)
	if _, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "lodger"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "lodger"}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := f.Serve(t, scene.Settings{})
	s.AwaitLeader(t)

	body := scene.WebhookBody(t, f.GPULost(t, ill, time.Now()))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if code, text, err := s.Post(t.Context(), body); err != nil || code != http.StatusOK {
				t.Errorf("the webhook answers %d %s, %v", code, text, err)
			}
		})
	}
	wg.Wait()

	f.AwaitStep(t, ill, "drain")
	s.Tell(t, body)
	// It is asked, refused, and asked again.
	f.AwaitAudit(t, "the second eviction that the budget refuses", scene.Soon, f.SecondRefusal)
	if did := f.Did(t); len(did[scene.Evicts]) > 0 || len(did[scene.Reboots]) > 0 {
		t.Errorf("the budget allows no eviction, yet there were %d, and %d reboots", len(did[scene.Evicts]), len(did[scene.Reboots]))
	}
	if err := budgets.Delete(t.Context(), "lodger", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	f.AwaitHealed(t, ill, scene.Long)
	s.Tell(t, body)
	f.CheckJob(t, ill)
	f.CheckRebooted(t, ill, boot)
	f.CheckUnmarked(t, ill)
	f.CheckEffects(t, scene.OnceEach)
	f.CheckOne(t, ill)
}
