package kmsg

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A file is a log whose closing ends a reading that waits.
type file struct {
	*os.File
	conn syscall.RawConn
}

func openLog(path string) (log, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &file{f, conn}, nil
}

func (f *file) next(buf []byte) (n int, waited bool, err error) {
	closed := f.conn.Read(func(fd uintptr) (done bool) {
		for {
			n, err = unix.Read(int(fd), buf)
			switch {
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				waited = true
				return false
			default:
				return true
			}
		}
	})
	switch {
	case closed != nil:
		return 0, waited, closed
	case err != nil:
		return 0, waited, fmt.Errorf("read: %w", err)
	case n == 0:
		return 0, waited, io.EOF
	}
	return n, waited, nil
}

// overrun reports whether the kernel has dropped records before they were read. The next
// reading goes on with the oldest that there is.
func overrun(err error) bool { return errors.Is(err, syscall.EPIPE) }

// clock returns the time, and how long the node has been up.
func clock() (time.Time, time.Duration) {
	var t unix.Timespec
	now := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return now, 0
	}
	return now, time.Duration(t.Nano())
}
