//go:build !linux

package kmsg

import (
	"errors"
	"time"
)

func openLog(string) (log, error) {
	return nil, errors.New("the source kmsg reads the log of Linux alone")
}

func overrun(error) bool { return false }

func clock() (time.Time, time.Duration) { return time.Now(), 0 }
