package collector

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// diskWithin is how long is waited for the disk.
const diskWithin = time.Second

// errDisk says that the disk has not answered in that time.
var errDisk = errors.New("the disk does not answer")

// A disk holds the state file. It is written on a goroutine of its own, for which nobody
// waits longer than diskWithin: what was counted is to be shown and told also by a node whose
// disk hangs. There is one such goroutine at a time; it ends when the disk answers.
type disk struct {
	path string
	sync func(*os.File) error // of a file or folder; a test may look
	busy chan error           // of a writing that nobody has waited for; nil: none
}

func newDisk(path string) *disk { return &disk{path: path, sync: (*os.File).Sync} }

// write replaces the content of the file. After an error nobody knows whether it has.
func (d *disk) write(data []byte) error {
	if d.busy != nil && len(d.busy) == 0 {
		return errDisk // it still writes what came before
	}
	d.busy = make(chan error, 1)
	go func(done chan<- error) { done <- d.replace(data) }(d.busy)
	late := time.NewTimer(diskWithin)
	defer late.Stop()
	select {
	case err := <-d.busy:
		d.busy = nil
		return err
	case <-late.C:
		return errDisk
	}
}

// idle waits for a writing to end and reports whether none is left.
func (d *disk) idle(within time.Duration) bool {
	if d.busy == nil {
		return true
	}
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case err := <-d.busy:
		_ = err // what it wrote is older than what is to be written
		d.busy = nil
		return true
	case <-late.C:
		return false
	}
}

// replace replaces the file at once: a reader sees the old content or the new one, also after
// the power has failed.
func (d *disk) replace(data []byte) error {
	// One name, so that a process that dies here leaves one file at most.
	tmp, err := os.OpenFile(d.path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = d.sync(tmp)
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), d.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	folder, err := os.Open(filepath.Dir(d.path))
	if err != nil {
		return err
	}
	return errors.Join(d.sync(folder), folder.Close())
}
