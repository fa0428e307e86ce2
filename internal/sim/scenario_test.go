package sim

import (
	"strings"
	"testing"
)

// TestScenariosNameEveryMistakeWithItsLine holds that a file is wrong as a whole, not one
// mistake at a time.
func TestScenariosNameEveryMistakeWithItsLine(t *testing.T) {
	_, err := ParseScenario("bad.txtar", []byte(`Why.

-- fleet --
nodes many
colour red
-- jobs --
a/b soon 1x1 1h
a/c 1m 1x1
-- faults --
20m gpu-lost
20m gpu-lost n1 forever
-- expected --
cordons 1
-- expect --
cordons about 3
`))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"bad.txtar:4:", "bad.txtar:5: setting \"colour\"", "bad.txtar:7:", "bad.txtar:8:", "bad.txtar:10:", "bad.txtar:11: \"forever\"", "bad.txtar:12: section \"expected\"", "bad.txtar:15:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not have %q:\n%v", want, err)
		}
	}
	_, err = ParseScenario("late.txtar", []byte("-- fleet --\nnodes 1\n-- faults --\n20m gpu-lost nowhere\n-- expect --\ncordons 0\n"))
	if err == nil || !strings.Contains(err.Error(), "there is no node nowhere") {
		t.Errorf("a fault that can hit nothing: %v", err)
	}
}
