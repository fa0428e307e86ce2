package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"stoker.dev/stoker/internal/remedy"
)

// writerEnv makes the test binary a program that writes incidents until it is killed.
const writerEnv = "STOKER_TEST_STORE_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerEnv); path != "" {
		writeUntilKilled(path)
	}
	goleak.VerifyTestMain(m)
}

func incident(name string) remedy.Incident {
	return remedy.Incident{
		Name: name, Occurrence: 1, Class: remedy.ClassGPULost, Phase: remedy.PhaseResolved, Opened: time.Unix(1_800_000_000, 0).UTC(),
		Subject: remedy.Subject{Kind: remedy.SubjectNode, Node: "gpu-a-02"},
	}
}

func open(t *testing.T, path string) *Bolt {
	t.Helper()
	b, err := OpenBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() }) // a second Close, after the test's own, is allowed
	return b
}

func create(t *testing.T, b *Bolt, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := b.Create(t.Context(), incident(name)); err != nil {
			t.Fatal(err)
		}
	}
}

func names(all []remedy.Incident) string {
	var out []string
	for _, in := range all {
		out = append(out, in.Name)
	}
	return strings.Join(out, " ")
}

func TestDamagedRecordHidesNoOther(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"a flipped bit of the content": func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
		"a flipped bit of the version": func(b []byte) []byte { b[7] ^= 1; return b },
		"a short record":               func([]byte) []byte { return []byte("short") },
		"an empty record":              func([]byte) []byte { return nil },
		"the record of another name": func([]byte) []byte {
			data, err := encode(incident("c"))
			if err != nil {
				panic(err)
			}
			return frame([]byte("b"), record{7, data})
		},
		"content that is no JSON": func([]byte) []byte { return frame([]byte("b"), record{7, []byte("{")}) },
		"a packed content that is none": func([]byte) []byte {
			return frame([]byte("b"), record{7, []byte(`{"name":"b","packed":"AAAA"}`)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "incidents.db")
			s := open(t, path)
			create(t, s, "a", "b", "c")
			err := s.db.Update(func(tx *bolt.Tx) error {
				bucket := tx.Bucket(bucketIncidents)
				return bucket.Put([]byte("b"), damage(bytes.Clone(bucket.Get([]byte("b")))))
			})
			if err != nil {
				t.Fatal(err)
			}

			all, err := s.List(t.Context())
			if got := names(all); got != "a c" {
				t.Errorf("listed %q beside the damaged one, want a and c", got)
			}
			c, ok := errors.AsType[*Corrupt](err)
			if !ok || c.Name != "b" || !strings.Contains(err.Error(), "stored incident b cannot be read") {
				t.Errorf("err = %v, want one that names b", err)
			}
			if _, err := s.Create(t.Context(), incident("b")); err == nil {
				t.Error("a damaged record was written over by Create")
			}
		})
	}
}

func TestUpdateOfDamagedRecordIsRejected(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "incidents.db"))
	in, err := s.Create(t.Context(), incident("b"))
	if err != nil {
		t.Fatal(err)
	}
	err = s.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketIncidents).Put([]byte("b"), []byte("short")) })
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(t.Context(), in)
	if f, ok := errors.AsType[*remedy.Failure](err); !ok || f.Ending != remedy.Rejected {
		t.Errorf("Update: %v, want Rejected", err)
	}
	if c, ok := errors.AsType[*Corrupt](err); !ok || c.Name != "b" {
		t.Errorf("Update: %v, want one that names b", err)
	}
}

func TestOpenRefusesWhatIsNoStore(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"a file that another store has open": func(t *testing.T, path string) {
			t.Helper()
			open(t, path)
		},
		"a text file": func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(path, bytes.Repeat([]byte("not a database\n"), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a folder": func(t *testing.T, path string) {
			t.Helper()
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"a store that was cut": func(t *testing.T, path string) {
			t.Helper()
			s := open(t, path)
			create(t, s, "a")
			if err := errors.Join(s.Close(), os.Truncate(path, 5000)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "incidents.db")
			spoil(t, path)
			s, err := OpenBolt(path)
			if err == nil {
				_ = s.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), path) {
				t.Errorf("err = %v, want one that names the file", err)
			}
		})
	}
	if _, err := OpenBolt(filepath.Join(t.TempDir(), "missing", "incidents.db")); err == nil {
		t.Error("a file in a folder that does not exist was opened")
	}
}

func TestFileThatIsCutWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "incidents.db")
	s := open(t, path)
	create(t, s, "a")
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(t.Context()); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("List: %v, want that the file is damaged", err)
	}
	if _, err := s.Create(t.Context(), incident("b")); err == nil {
		t.Error("Create succeeded on a file that was cut")
	}
	if err := s.Close(); err == nil {
		t.Error("Close did not say that the file is damaged")
	}
}

func TestFullFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "incidents.db")
	s, err := openBolt(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	for i := range 1000 {
		in := incident("in-" + strconv.Itoa(i))
		in.Reason = strings.Repeat("x", 50_000)
		if _, err = s.Create(t.Context(), in); err != nil {
			break
		}
		written++
	}
	if err == nil || written == 0 {
		t.Fatalf("%d incidents of 50 kB went into a file of 1 MiB: %v", written, err)
	}
	all, err := s.List(t.Context())
	if err != nil || len(all) != written {
		t.Errorf("%d incidents are there (%v), want the %d that were acknowledged", len(all), err, written)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err = open(t, path).List(t.Context()); err != nil || len(all) != written {
		t.Errorf("%d incidents are there after a restart (%v), want %d", len(all), err, written)
	}
}

func TestClosedFile(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "incidents.db"))
	create(t, s, "a")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(t.Context()); err == nil {
		t.Error("List of a closed store had no error")
	}
	if _, err := s.Create(t.Context(), incident("b")); err == nil {
		t.Error("Create in a closed store had no error")
	}
	if err := s.Delete(t.Context(), incident("a")); err == nil {
		t.Error("Delete in a closed store had no error")
	}
}

func TestFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "incidents.db")
	open(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("the file has mode %o, want 600", got)
	}
}

// TestKilledWriter kills a process while it writes and looks whether everything that
// it had acknowledged is there.
func TestKilledWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "incidents.db")
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), writerEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acknowledged := 0
	dec := json.NewDecoder(out)
	for dec.Decode(&acknowledged) == nil {
		if acknowledged == 40 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("the writer ended with %v after %d incidents", err, acknowledged)
	}
	all, err := open(t, path).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != acknowledged && len(all) != acknowledged+1 {
		t.Errorf("%d incidents are there, %d were acknowledged", len(all), acknowledged)
	}
}

func writeUntilKilled(path string) {
	s, err := OpenBolt(path)
	if err != nil {
		panic(err)
	}
	for i := 1; ; i++ {
		if _, err := s.Create(context.Background(), incident("in-"+strconv.Itoa(i))); err != nil {
			panic(err)
		}
		fmt.Println(i)
	}
}

func TestDecodeIsBounded(t *testing.T) {
	in := incident("a")
	in.Playbook = strings.Repeat("x", unpackedBytes+1)
	data, err := encode(in) // compresses a thousandfold, so it fits
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decode("a", data); err == nil {
		t.Errorf("%d bytes became more than %d without an error", len(data), unpackedBytes)
	}
}
