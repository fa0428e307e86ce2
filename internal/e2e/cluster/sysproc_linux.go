package cluster

import "syscall"

// sysProcAttr lets the kernel end a program when the thread that started it
// goes, so that a test that panics or times out leaves nothing running.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
