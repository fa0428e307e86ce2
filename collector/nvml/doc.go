// Package nvml reads GPUs through the driver's own library, where there is no DCGM. It
// owns the calls of libnvidia-ml and the waiting for its events.
//
// Calls can't be cancelled and may hang with the driver. One goroutine on a thread of its
// own makes all that ask for values, another one waits for events, and nobody else waits
// for either longer than they want to.
package nvml
