package actuator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestARecipeIsReadWholeOrNotAtAll(t *testing.T) {
	allow := []string{"BATCH_SIZE", "ALLOC", "LD_PRELOAD"} // as a stored order of a careless version might
	for name, tc := range map[string]struct {
		text string
		want map[string]string
		err  string
	}{
		"values, comma separated":        {"BATCH_SIZE=8, ALLOC=expandable_segments:True", map[string]string{"BATCH_SIZE": "8", "ALLOC": "expandable_segments:True"}, ""},
		"a value with an equals sign":    {"ALLOC=a=b", map[string]string{"ALLOC": "a=b"}, ""},
		"no recipe":                      {" ", nil, "the job has none"},
		"a name alone":                   {"BATCH_SIZE", nil, `"BATCH_SIZE" is not NAME=VALUE`},
		"one name that is not allowed":   {"BATCH_SIZE=8,NEW=1", nil, "NEW is not among the names"},
		"one that nobody may allow":      {"LD_PRELOAD=/tmp/x.so", nil, "LD_PRELOAD is not among the names"},
		"a value of more than one line":  {"ALLOC=a\nb", nil, "control characters"},
		"a value that is too long":       {"ALLOC=" + strings.Repeat("x", 257), nil, "over 256 bytes"},
		"one name twice":                 {"ALLOC=1,ALLOC=2", nil, "ALLOC is there twice"},
		"a comma at the end is no value": {"ALLOC=1,", nil, `"" is not NAME=VALUE`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readRecipe(tc.text, allow)
			if d := cmp.Diff(got, tc.want); d != "" || fmt.Sprint(err) != "<nil>" != (tc.err != "") || tc.err != "" && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q; values (-got +want):\n%s", err, tc.err, d)
			}
		})
	}
	many, names := "", []string{}
	for i := range maxRecipe + 1 {
		names = append(names, fmt.Sprintf("V%d", i))
		many += fmt.Sprintf(",V%d=1", i)
	}
	if _, err := readRecipe(many[1:], names); err == nil || !strings.Contains(err.Error(), "16 is the limit") {
		t.Errorf("%d values: %v, want the limit", maxRecipe+1, err)
	}
}
