package exporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"
)

// FileOptions are what a [NewFile] source may be told. The zero value is useful.
type FileOptions struct {
	// MaxAge is the age of the file over which it no longer tells of the present: its
	// writer has stopped. No limit when zero.
	MaxAge time.Duration
}

// NewFile returns the source "file": it reads a dcgm-exporter's page from a file, anew
// in each collection. The file may come, go and be replaced at any time; its writer
// should write another file and rename it, so that no half of a page is ever there.
func NewFile(log *slog.Logger, path string, o FileOptions) *Source {
	return newSource(log, "file", func(_ context.Context, now time.Time) ([]byte, error) {
		text, written, err := readFile(path)
		if err != nil {
			return nil, err
		}
		if age := now.Sub(written); o.MaxAge > 0 && age > o.MaxAge {
			return nil, fmt.Errorf("%s: written %v ago, over the limit of %v", path, age.Round(time.Second), o.MaxAge)
		}
		return text, nil
	})
}

// readFile returns the content of a file that nobody has changed meanwhile, and when
// it was written.
func readFile(path string) ([]byte, time.Time, error) {
	// A named pipe would block when it is opened.
	if info, err := os.Stat(path); err != nil {
		return nil, time.Time{}, err
	} else if !info.Mode().IsRegular() {
		return nil, time.Time{}, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	before, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if before.Size() > maxPage {
		return nil, time.Time{}, fmt.Errorf("%s: %d bytes, the limit is %d", path, before.Size(), maxPage)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxPage+1))
	if err != nil {
		return nil, time.Time{}, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if before.Size() != after.Size() || !before.ModTime().Equal(after.ModTime()) || int64(len(text)) != after.Size() {
		return nil, time.Time{}, errors.New(path + ": was changed while it was read")
	}
	return text, after.ModTime(), nil
}
