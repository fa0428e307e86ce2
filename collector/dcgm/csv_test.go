package dcgm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFieldsOfAList(t *testing.T) {
	got, err := ParseFields(`# Format
# If line starts with a '#' it is considered a comment
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).

DCGM_FI_DEV_BOARD_POWER_WATTS, gauge, "Power, in W."
dcgm_xid_errors, gauge, The last XID.
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, A rate.
DCGM_FI_DRIVER_VERSION, label, Driver Version
DCGM_EXP_XID_ERRORS_COUNT, counter, Count of XID errors
DCGM_FI_DEV_GPU_UTIL, histogram, of one value`)
	want := []Field{
		{100, "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."},
		{155, "DCGM_FI_DEV_BOARD_POWER_WATTS", "gauge", "Power, in W."},
		{230, "dcgm_xid_errors", "gauge", "The last XID."},
		{449, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "A rate."},
		{1, "DCGM_FI_DRIVER_VERSION", "label", "Driver Version"},
		{0, "DCGM_EXP_XID_ERRORS_COUNT", "counter", "Count of XID errors"},
		{203, "DCGM_FI_DEV_GPU_UTIL", "", "of one value"},
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	right := Right(got)
	if right[3].Type != "gauge" || right[5].Type != "gauge" || got[3].Type != "counter" {
		t.Errorf("types %q and %q, want two gauges, and the list as it was: %q", right[3].Type, right[5].Type, got[3].Type)
	}
}

func TestAListThatIsWrong(t *testing.T) {
	got, err := ParseFields(`DCGM_FI_DEV_SM_CLOCK, gauge, SM clock
DCGM_FI_DEV_SM_CLOK, gauge, a slip
DCGM_FI_DEV_GPU_TEMP, gauge
DCGM_FI_DEV_MEM_CLOCK, gauge, help, with a comma
DCGM_FI_DEV_SM_CLOCK, gauge, again
DCGM_FI_DEV_GPU_UTIL, meter, what
DCGM_FI_DEV_POWER_USAGE, gauge, one name
DCGM_FI_DEV_BOARD_POWER_WATTS, gauge, the other
DCGM_FI_DEV_FB_USED, gauge, "not closed`)
	want := `line 2: no field is called "DCGM_FI_DEV_SM_CLOK"
line 3: 2 columns, want name, type and help
line 4: 4 columns, want name, type and help
line 5: DCGM_FI_DEV_SM_CLOCK was in line 1
line 6: type "meter" is none of gauge, counter and label
line 8: DCGM_FI_DEV_BOARD_POWER_WATTS is the field of line 7 under another name
line 9: extraneous or missing " in quoted-field`
	if err == nil || err.Error() != want {
		t.Errorf("err = %v\nwant\n%s", err, want)
	}
	if d := cmp.Diff([]Field{{100, "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock"}, {155, "DCGM_FI_DEV_POWER_USAGE", "gauge", "one name"}}, got); d != "" {
		t.Errorf("what is right of it (-want +got):\n%s", d)
	}
	if _, err := ParseFields(strings.Repeat("x\n", maxNamed+7)); err == nil || !strings.HasSuffix(err.Error(), "\nand 7 lines more") {
		t.Errorf("err = %v", err)
	}
	for text, want := range map[string]string{
		"": "no field is named", "# nothing\n": "no field is named",
	} {
		if _, err := ParseFields(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "fields.csv")
	if _, err := ReadFields(path); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("err = %v", err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("#", maxList+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFields(path); err == nil || !strings.Contains(err.Error(), "over 1048576 bytes") {
		t.Errorf("err = %v", err)
	}
}

// TestEveryNameIsOfOneField holds for the table and for the default list.
func TestEveryNameIsOfOneField(t *testing.T) {
	seen := map[string]Short{}
	for _, f := range fieldNames {
		for _, n := range f.names {
			if _, twice := seen[n]; twice {
				t.Errorf("%s is twice in the table", n)
			}
			seen[n] = f.id
		}
	}
	for _, f := range DefaultFields() {
		if id, ok := fieldNumber(f.Name); !ok || id != f.ID {
			t.Errorf("%s is %d by default and %d by name", f.Name, f.ID, id)
		}
	}
}
