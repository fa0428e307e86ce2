package store

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"stoker.dev/stoker/internal/remedy"
)

// Memory keeps incidents until the process ends, in the same form as the durable
// stores. Its zero value is empty and ready; it may be used by several goroutines.
type Memory struct {
	mu      sync.Mutex
	last    uint64 // version; never used twice
	records map[string]record
}

type record struct {
	version uint64
	data    []byte
}

func (r record) tag() string { return strconv.FormatUint(r.version, 10) }

// List returns all incidents.
func (m *Memory) List(ctx context.Context) ([]remedy.Incident, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list incidents: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var (
		all = []remedy.Incident{} // not nil, also when none can be read
		bad []*Corrupt
	)
	for name, r := range m.records {
		in, err := decode(name, r.data)
		if err != nil {
			bad = append(bad, &Corrupt{name, err})
			continue
		}
		in.Version = r.tag()
		all = append(all, in)
	}
	return all, joinCorrupt(bad)
}

// Create stores a new incident; Conflict when its name is taken.
func (m *Memory) Create(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	return m.write(ctx, in, func(_ record, there bool) error {
		if there {
			return taken(in.Name)
		}
		return nil
	})
}

// Update replaces the incident if its version is still in.Version.
func (m *Memory) Update(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	return m.write(ctx, in, func(r record, there bool) error {
		return checkVersion(in, r, there)
	})
}

func checkVersion(in remedy.Incident, r record, there bool) error {
	if !there {
		return gone(in.Name)
	}
	if r.tag() != in.Version {
		return changed(in.Name, r.tag(), in.Version)
	}
	return nil
}

func (m *Memory) write(ctx context.Context, in remedy.Incident, check func(record, bool) error) (remedy.Incident, error) {
	if err := ctx.Err(); err != nil {
		return remedy.Incident{}, fmt.Errorf("write incident %s: %w", in.Name, err)
	}
	data, err := encode(in)
	if err != nil {
		return remedy.Incident{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, there := m.records[in.Name]
	if err := check(old, there); err != nil {
		return remedy.Incident{}, err
	}
	if m.records == nil {
		m.records = map[string]record{}
	}
	m.last++
	r := record{m.last, data}
	m.records[in.Name] = r
	in = in.Clone()
	in.Version = r.tag()
	return in, nil
}

// Delete removes a closed incident if its version is still in.Version.
func (m *Memory) Delete(ctx context.Context, in remedy.Incident) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("delete incident %s: %w", in.Name, err)
	}
	if err := checkClosed(in); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, there := m.records[in.Name]
	if err := checkVersion(in, r, there); err != nil {
		return err
	}
	delete(m.records, in.Name)
	return nil
}
