//go:build !cgo || !linux

package nvml

import (
	"context"
	"errors"
	"log/slog"

	"stoker.dev/stoker/internal/fleet"
)

// A Source is the source nvml, which this build has not.
type Source struct{}

// New returns a source that only says what is missing.
func New(*slog.Logger) *Source { return &Source{} }

// Name returns what the source is called on the page.
func (s *Source) Name() string { return "nvml" }

// Collect returns an error that says what is missing.
func (s *Source) Collect(context.Context, *fleet.Samples) error {
	return errors.New("this program was built without cgo: the source nvml can't open libnvidia-ml")
}
