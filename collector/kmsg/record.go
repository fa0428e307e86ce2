package kmsg

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// A record is one entry of the kernel's log.
type record struct {
	facility  int // 0: the kernel itself
	number    uint64
	sinceBoot time.Duration
	text      string
}

var errNotRecord = errors.New("not a record of the kernel's log")

// parseRecord reads priority,number,microseconds,flags[,more];text.
func parseRecord(line string) (record, error) {
	head, text, ok := strings.Cut(line, ";")
	parts := strings.Split(head, ",")
	if !ok || len(parts) < 4 {
		return record{}, errNotRecord
	}
	priority, err1 := strconv.ParseUint(parts[0], 10, 31)
	number, err2 := strconv.ParseUint(parts[1], 10, 63)
	us, err3 := strconv.ParseUint(parts[2], 10, 53)
	if err := errors.Join(err1, err2, err3); err != nil {
		return record{}, errNotRecord
	}
	return record{int(priority >> 3), number, time.Duration(us) * time.Microsecond, text}, nil
}
