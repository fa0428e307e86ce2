package programs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// lock takes the lock file name, waiting until ctx ends. The kernel drops the lock
// with the process, so that a killed build blocks nobody.
func lock(ctx context.Context, log io.Writer, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for told := false; ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if !told {
			_, _ = fmt.Fprintf(log, "waiting for another build that holds %s\n", name)
			told = true
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for %s: %w", name, context.Cause(ctx))
		case <-time.After(200 * time.Millisecond):
		}
	}
}
