package collector

import (
	"fmt"
	"testing"

	"stoker.dev/stoker/internal/fleet"
)

// TestASourceThatTellsTooMuch is shown up to a bound, and what is left out is counted.
func TestASourceThatTellsTooMuch(t *testing.T) {
	const over = 7
	values := make([]fleet.Sample, maxValues+over)
	for i := range values {
		values[i] = fleet.Sample{Field: "A", Value: 1, Labels: []fleet.Label{{Name: "n", Value: fmt.Sprint(i)}}}
	}
	c := newCollector(t, Options{}, &script{"s", tell(fleet.Samples{GPUs: []fleet.SampledGPU{gpuA}, Values: values})})
	if err := c.Gather(t.Context(), t0); err != nil {
		t.Fatal(err)
	}
	page := readPage(t, c.AppendPage(nil, t0))
	if n := len(page["A"].Series); n != maxValues {
		t.Errorf("%d series, want %d", n, maxValues)
	}
	for k, v := range page["stoker_collector_samples_dropped_total"].Series {
		if v != over {
			t.Errorf("%s is %v, want %d", k, v, over)
		}
	}
}
