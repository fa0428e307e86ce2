package collector

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"stoker.dev/stoker/internal/fleet"
)

// maxState bounds the state file, in bytes.
const maxState = 32 << 20

// saved is what is known of the state file.
type saved struct {
	version uint64 // of the book
	boot    string
	cursors [][]byte
	failure error // of the last write
}

// stateFile is the content of the state file. It belongs to one boot: the counters of
// a node start anew with it.
type stateFile struct {
	Version  int                        `json:"version"`
	Node     string                     `json:"node"`
	BootID   string                     `json:"bootID"`
	GPUs     []stateGPU                 `json:"gpus"`
	Switches []stateSwitch              `json:"switches,omitempty"`
	Cursors  map[string]json.RawMessage `json:"cursors"` // by source
}

type stateGPU struct {
	Index int         `json:"index"`
	UUID  string      `json:"uuid,omitempty"`
	PCI   string      `json:"pci,omitempty"`
	Codes []stateCode `json:"codes,omitempty"`
	Links []stateCode `json:"nvlink,omitempty"`
}

type stateSwitch struct {
	PCI      string      `json:"pci,omitempty"`
	Number   string      `json:"number,omitempty"`
	Severity string      `json:"severity"`
	Codes    []stateCode `json:"codes"`
}

type stateCode struct {
	Code  int       `json:"code"` // 0: all that have no counter of their own
	Total uint64    `json:"total"`
	Last  time.Time `json:"last"`
	Marks []mark    `json:"marks"`
	// Seen is by source; without it in files of earlier versions.
	Seen map[string]uint64 `json:"seen,omitempty"`
}

const stateVersion = 1

// resume takes the counters and the sources' cursors from the state file, if they are
// of this node and boot. What can't be used is a warning: the file is replaced by the
// next save.
func (c *Collector) resume() {
	log := c.log.With("file", c.o.State)
	f, err := readState(c.o.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		log.Warn("state can't be used, counters start from 0", "err", err)
		return
	case f.Node != c.node:
		log.Warn("state is of another node, counters start from 0", "node", f.Node)
		return
	case c.o.BootID != "" && f.BootID != c.o.BootID:
		log.Info("state is of an earlier boot, counters start from 0", "boot", f.BootID)
		return
	}
	b, err := f.book(len(c.sources))
	if err != nil {
		log.Warn("state can't be used, counters start from 0", "err", err)
		return
	}
	c.book = b
	for i, s := range c.sources {
		r, ok := s.(Resumer)
		cursor, there := f.Cursors[s.Name()]
		if !ok || !there {
			continue
		}
		if err := r.Resume(cursor); err != nil {
			log.Warn("source can't go on where it was", "source", s.Name(), "err", err)
			continue
		}
		c.cursors[i] = cursor
	}
}

func readState(path string) (stateFile, error) {
	var f stateFile
	r, err := os.Open(path)
	if err != nil {
		return f, err
	}
	defer func() { _ = r.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(r, maxState+1))
	if err != nil {
		return f, err
	}
	if len(data) > maxState {
		return f, fmt.Errorf("over %d bytes", maxState)
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, err
	}
	if f.Version != stateVersion {
		return f, fmt.Errorf("version %d, this is a reader of version %d", f.Version, stateVersion)
	}
	return f, nil
}

// book checks what the file says and makes a book of it.
func (f stateFile) book(sources int) (*book, error) {
	b := newBook(f.Node, sources)
	b.bootID = f.BootID
	if len(f.GPUs) > maxGPUs {
		return nil, fmt.Errorf("%d GPUs, the limit is %d", len(f.GPUs), maxGPUs)
	}
	for i, sg := range f.GPUs {
		g := b.find(fleet.SampledGPU{Index: sg.Index, UUID: sg.UUID, PCI: sg.PCI}, time.Time{})
		if code, ok := g.xids.resume(sg.Codes); !ok {
			return nil, fmt.Errorf("gpus[%d]: counter of XID %d is damaged", i, code)
		}
		if code, ok := g.links.resume(sg.Links); !ok {
			return nil, fmt.Errorf("gpus[%d]: counter %d of NVLink errors is damaged", i, code)
		}
	}
	for i, sw := range f.Switches {
		w := b.nvswitch(sw.PCI, sw.Number, sw.Severity)
		if w == nil {
			return nil, fmt.Errorf("%d NVSwitches, the limit is %d", len(f.Switches), maxSwitches)
		}
		if code, ok := w.sxids.resume(sw.Codes); !ok {
			return nil, fmt.Errorf("switches[%d]: counter of SXID %d is damaged", i, code)
		}
	}
	return b, nil
}

// save writes the state file if anything in it has changed. It waits until the disk has it,
// for as long as [disk] does. A disk that does not take it is a warning, once, and shown: the
// page stays right, and after a restart what a source still shows may be counted anew.
func (c *Collector) save() {
	if c.saved.version == c.book.version && c.saved.boot == c.book.bootID &&
		slices.EqualFunc(c.saved.cursors, c.cursors, bytes.Equal) {
		return
	}
	f := stateFile{Version: stateVersion, Node: c.node, BootID: c.book.bootID, GPUs: []stateGPU{}, Cursors: map[string]json.RawMessage{}}
	for _, g := range c.book.gpus {
		f.GPUs = append(f.GPUs, stateGPU{g.index, g.uuid, g.pci, g.xids.save(), g.links.save()})
	}
	for _, w := range c.book.switches {
		f.Switches = append(f.Switches, stateSwitch{w.pci, w.number, w.severity, w.sxids.save()})
	}
	for i, cursor := range c.cursors {
		if cursor != nil {
			f.Cursors[c.told[i].name] = cursor
		}
	}
	data, err := json.Marshal(f)
	if err == nil {
		err = c.disk.write(append(data, '\n'))
	}
	switch {
	case err != nil && c.saved.failure == nil:
		c.log.Warn("state can't be saved", "file", c.o.State, "err", err)
	case err == nil && c.saved.failure != nil:
		c.log.Info("state is saved again", "file", c.o.State)
	}
	if err != nil {
		c.saved.failure = err
		return
	}
	c.saved = saved{version: c.book.version, boot: c.book.bootID, cursors: slices.Clone(c.cursors)}
}
