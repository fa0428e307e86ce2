// Package spine heals faults on a real control plane, one thing that can go wrong in
// each test: [scene] says with what.
package spine

import (
	"os"
	"testing"

	"stoker.dev/stoker/internal/e2e/scene"
)

func TestMain(m *testing.M) { os.Exit(scene.Run(m, scene.Options{})) }
