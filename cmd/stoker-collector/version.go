package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// release is set by the linker when a release is built.
var release = "dev"

func version() string {
	rev := "unknown revision"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				rev = s.Value
			}
		}
	}
	return fmt.Sprintf("%s (%s, %s)", release, rev, runtime.Version())
}
