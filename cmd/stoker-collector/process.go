package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// appendProcess appends what this program itself costs, native libraries and all, under
// the names that every program with a Prometheus library has. What the system does not
// say is left out.
func appendProcess(dst []byte) []byte {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err == nil {
		seconds := float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
		dst = append(dst, "# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds.\n# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total "...)
		dst = append(strconv.AppendFloat(dst, seconds, 'f', 3, 64), '\n')
	}
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return dst
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return dst
	}
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		return dst
	}
	dst = append(dst, "# HELP process_resident_memory_bytes Resident memory size in bytes.\n# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes "...)
	return append(strconv.AppendInt(dst, int64(pages)*int64(os.Getpagesize()), 10), '\n')
}
