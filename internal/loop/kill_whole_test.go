//go:build !race

package loop

import "testing"

func TestAnEndAtAnyPointChangesNothing(t *testing.T) { endAt(t, 1) }
