package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// mayWrite fails when no report could be written into the file, which is said before the
// run and not after it. The file stays as it is. An empty name is none.
func mayWrite(name string) error {
	if name == "" {
		return nil
	}
	_, err := os.Stat(name)
	isNew := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644) //nolint:gosec // a report is for everybody
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	err = f.Close()
	if isNew {
		err = errors.Join(err, os.Remove(name))
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// writeReport writes a report as JSON into the file. An empty name is none.
func writeReport(name string, report any) error {
	if name == "" {
		return nil
	}
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.WriteFile(name, append(b, '\n'), 0o644); err != nil { //nolint:gosec // a report is for everybody
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
