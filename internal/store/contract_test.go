package store_test

import (
	"path/filepath"
	"testing"

	"stoker.dev/stoker/internal/store"
	"stoker.dev/stoker/internal/store/contract"
)

func TestMemoryContract(t *testing.T) {
	contract.Test(t, contract.Opener{
		Open: func(*testing.T) contract.Store { return &store.Memory{} },
		Size: func(_ *testing.T, s contract.Store, name string) int { return s.(*store.Memory).Size(name) },
	})
}

func TestBoltContract(t *testing.T) {
	paths := map[*store.Bolt]string{}
	open := func(t *testing.T, path string) contract.Store {
		t.Helper()
		b, err := store.OpenBolt(path)
		if err != nil {
			t.Fatal(err)
		}
		paths[b] = path
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		return b
	}
	contract.Test(t, contract.Opener{
		Open: func(t *testing.T) contract.Store {
			t.Helper()
			return open(t, filepath.Join(t.TempDir(), "incidents.db"))
		},
		Reopen: func(t *testing.T, s contract.Store) contract.Store {
			t.Helper()
			b := s.(*store.Bolt)
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, paths[b])
		},
		Size: func(_ *testing.T, s contract.Store, name string) int { return s.(*store.Bolt).Size(name) },
	})
}
