package kmsg

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openLog opens the log so that closing it ends a reading that waits.
func openLog(path string) (io.ReadCloser, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// overrun reports whether the kernel has dropped records before they were read. The next
// reading goes on with the oldest that there is.
func overrun(err error) bool { return errors.Is(err, syscall.EPIPE) }

// clock returns the time, and how long the kernel's own clock has run.
func clock() (time.Time, time.Duration) {
	var t unix.Timespec
	now := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return now, 0
	}
	return now, time.Duration(t.Nano())
}
