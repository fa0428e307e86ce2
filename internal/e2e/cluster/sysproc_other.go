//go:build !linux

package cluster

import "syscall"

// sysProcAttr has nothing to offer here: a test that panics leaves its programs running.
func sysProcAttr() *syscall.SysProcAttr { return nil }
