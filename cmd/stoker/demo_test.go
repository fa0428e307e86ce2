package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheDemoSaysWhatIsWrongBeforeItRuns holds that a mistake of the command line, of a
// scenario's file or of the report's place is told with its place, and that nothing is run
// or written for it.
func TestTheDemoSaysWhatIsWrongBeforeItRuns(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	bad := file("bad.txtar", "Why.\n-- faults --\n20m gpu-lost nowhere\n-- expect --\ncordons 1\n")
	good := file("good.txtar", "Why.\n-- fleet --\nnodes 1\nfor 1m\n-- expect --\ncordons 0\n")
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"--speed 0":                                  {2, `speed "0"`},
		"--speed NaN":                                {2, `speed "NaN"`},
		"--for -1h":                                  {2, "for -1h0m0s is negative"},
		"--seeds 2":                                  {2, "--compare"},
		"--nodes 3":                                  {2, "--compare"},
		"--compare --seeds 0":                        {2, "seeds: 0"},
		"--compare --seeds -1":                       {2, "seeds: -1"},
		"--compare --seeds many":                     {2, "many"},
		"--compare --for 0":                          {2, "a minute at least"},
		"--compare --for 1ns":                        {2, "a minute at least"},
		"--compare --faults NaN":                     {2, "faults from 0"},
		"--compare --off":                            {2, "--off"},
		"--scenario " + good + " --for 1h":           {2, "no other flag"},
		"--scenario " + dir + "/none.txtar":          {1, dir + "/none.txtar: no such file"},
		"--scenario " + bad:                          {1, "bad.txtar:3: gpu-lost: there is no node nowhere"},
		"--compare --report " + dir + "/none/r.json": {1, dir + "/none/r.json"},
		"--report " + dir:                            {1, dir},
	} {
		t.Run(args, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), append([]string{"demo"}, strings.Fields(args)...), &out, &out)
			if err == nil || exitCode(err) != want.code || !strings.Contains(err.Error(), want.text) || out.Len() > 0 {
				t.Errorf("code %d, %v, printed %q; want %d, %q and nothing printed", exitCode(err), err, out.String(), want.code, want.text)
			}
		})
	}
	report := filepath.Join(dir, "r.json")
	if err := run(t.Context(), []string{"demo", "--for", "1s", "--speed", "max", "--report", report}, &bytes.Buffer{}, &bytes.Buffer{}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(report); err != nil || !bytes.Contains(b, []byte(`"goodput"`)) {
		t.Errorf("report: %v\n%s", err, b)
	}
}
