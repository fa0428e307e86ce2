package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"stoker.dev/stoker/internal/remedy"
)

const (
	lockWait  = 2 * time.Second // for another process that has the file open
	headBytes = 12              // of a record: version, checksum
)

var (
	bucketIncidents = []byte("incidents")
	castagnoli      = crc32.MakeTable(crc32.Castagnoli)
)

// Bolt keeps incidents in one bbolt file, which one process has open at a time. Each
// write is synced to disk before it returns. It may be used by several goroutines.
//
// A record is eight bytes of version, four of checksum over name, version and
// content, and the incident's stored form. A damaged record is found when it is read
// and hides no other one. A damaged file is found when bbolt stumbles over it; every
// call fails from then on.
type Bolt struct {
	db     *bolt.DB
	broken atomic.Pointer[error] // the first damage found; bbolt's locks may be left held by it
}

// OpenBolt opens the file, or creates it, readable by its owner alone. It waits up to
// two seconds for another process to close it. The caller closes it.
func OpenBolt(path string) (*Bolt, error) { return openBolt(path, 0) }

// openBolt opens the file; it may grow up to maxSize bytes, 0 for as far as the disk goes.
func openBolt(path string, maxSize int) (_ *Bolt, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open incidents in %s: %w", path, err)
		}
	}()
	_, statErr := os.Stat(path) //nolint:gosec // the operator names the file
	b := &Bolt{}
	err = b.guard(func() (err error) {
		b.db, err = bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, MaxSize: maxSize, NoStatistics: true})
		if errors.Is(err, berrors.ErrTimeout) {
			return errors.New("another process has it open")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = b.guard(func() error {
		return b.db.Update(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucketIfNotExists(bucketIncidents)
			return err
		})
	})
	if err == nil && errors.Is(statErr, os.ErrNotExist) {
		err = syncFolder(filepath.Dir(path)) // or the new file's name could be lost with the power
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func syncFolder(dir string) error {
	f, err := os.Open(dir) //nolint:gosec // the folder of a file that the operator names
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Close waits for running calls and closes the file. Calls after it fail. A file that
// was found damaged stays open until the process ends.
func (b *Bolt) Close() error {
	if broken := b.broken.Load(); broken != nil {
		return *broken
	}
	return b.db.Close()
}

// guard turns what bbolt does on a damaged file, which is to panic, into an error:
// also a fault on a page that is mapped and not there, as when the file was cut.
func (b *Bolt) guard(f func() error) (err error) {
	if broken := b.broken.Load(); broken != nil {
		return *broken
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the file is damaged: %v", r)
			b.broken.Store(&err)
		}
	}()
	return f()
}

// List returns all incidents that can be read, and a [Corrupt] for each other one.
func (b *Bolt) List(ctx context.Context) ([]remedy.Incident, error) {
	var (
		all = []remedy.Incident{} // not nil, also when none can be read
		bad []*Corrupt
	)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list incidents: %w", err)
	}
	err := b.guard(func() error {
		return b.db.View(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketIncidents).ForEach(func(k, v []byte) error {
				switch in, err := read(k, v); err {
				case nil:
					all = append(all, in)
				default:
					bad = append(bad, &Corrupt{string(k), err})
				}
				return nil
			})
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list incidents: %w", err)
	}
	return all, joinCorrupt(bad)
}

func read(name, frame []byte) (remedy.Incident, error) {
	r, err := unframe(name, frame)
	if err != nil {
		return remedy.Incident{}, err
	}
	in, err := decode(string(name), r.data)
	in.Version = r.tag()
	return in, err
}

// Create stores a new incident; Conflict when its name is taken.
func (b *Bolt) Create(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	return b.write(ctx, in, func(old []byte) error {
		if old != nil {
			return taken(in.Name)
		}
		return nil
	})
}

// Update replaces the incident if its version is still in.Version.
func (b *Bolt) Update(ctx context.Context, in remedy.Incident) (remedy.Incident, error) {
	return b.write(ctx, in, func(old []byte) error { return checkStored(in, old) })
}

func checkStored(in remedy.Incident, old []byte) error {
	if old == nil {
		return gone(in.Name)
	}
	r, err := unframe([]byte(in.Name), old)
	if err != nil {
		return &remedy.Failure{Ending: remedy.Rejected, Err: &Corrupt{in.Name, err}}
	}
	return checkVersion(in, r, true)
}

func (b *Bolt) write(ctx context.Context, in remedy.Incident, check func(old []byte) error) (remedy.Incident, error) {
	if err := ctx.Err(); err != nil {
		return remedy.Incident{}, fmt.Errorf("write incident %s: %w", in.Name, err)
	}
	data, err := encode(in)
	if err != nil {
		return remedy.Incident{}, err
	}
	r := record{data: data}
	err = b.guard(func() error {
		return b.db.Update(func(tx *bolt.Tx) error {
			bucket := tx.Bucket(bucketIncidents)
			if err := check(bucket.Get([]byte(in.Name))); err != nil {
				return err
			}
			// Of the whole bucket: an incident that was deleted and made anew has no version twice.
			if r.version, err = bucket.NextSequence(); err != nil {
				return err
			}
			return bucket.Put([]byte(in.Name), frame([]byte(in.Name), r))
		})
	})
	if err != nil {
		return remedy.Incident{}, fmt.Errorf("write incident %s: %w", in.Name, err)
	}
	in = in.Clone()
	in.Version = r.tag()
	return in, nil
}

// Delete removes a closed incident if its version is still in.Version.
func (b *Bolt) Delete(ctx context.Context, in remedy.Incident) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("delete incident %s: %w", in.Name, err)
	}
	if err := checkClosed(in); err != nil {
		return err
	}
	err := b.guard(func() error {
		return b.db.Update(func(tx *bolt.Tx) error {
			bucket := tx.Bucket(bucketIncidents)
			if err := checkStored(in, bucket.Get([]byte(in.Name))); err != nil {
				return err
			}
			return bucket.Delete([]byte(in.Name))
		})
	})
	if err != nil {
		return fmt.Errorf("delete incident %s: %w", in.Name, err)
	}
	return nil
}

func frame(name []byte, r record) []byte {
	b := make([]byte, headBytes, headBytes+len(r.data))
	binary.BigEndian.PutUint64(b, r.version)
	b = append(b, r.data...)
	binary.BigEndian.PutUint32(b[8:], checksum(name, b))
	return b
}

// checksum is over the name and all of the frame but the checksum itself.
func checksum(name, frame []byte) uint32 {
	sum := crc32.Checksum(name, castagnoli)
	sum = crc32.Update(sum, castagnoli, frame[:8])
	return crc32.Update(sum, castagnoli, frame[headBytes:])
}

// unframe returns the record. Its data points into b.
func unframe(name, b []byte) (record, error) {
	if len(b) < headBytes {
		return record{}, fmt.Errorf("it has %d bytes, less than a record", len(b))
	}
	if want, got := binary.BigEndian.Uint32(b[8:]), checksum(name, b); got != want {
		return record{}, fmt.Errorf("its checksum is %08x, not %08x", got, want)
	}
	return record{binary.BigEndian.Uint64(b), b[headBytes:]}, nil
}
