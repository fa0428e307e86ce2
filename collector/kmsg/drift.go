package kmsg

import "time"

// steer is how far the kernel's own clock may run from the one that is kept in step with
// others, as a part of the time that has passed. No crystal is worse.
const steer = 500e-6

// A drift is how far the clock that dates the kernel's records is behind the time since
// boot. The two begin together, but nobody keeps the former in step: a node that has been up
// for weeks is off by minutes. A record that was read as soon as it was written tells by how
// much.
type drift struct {
	By time.Duration `json:"by"`
	At time.Duration `json:"at"` // since boot, when it was measured
}

// measure takes in that a record which was waited for has a date that is lag before now. A
// lag is never shorter than the drift, and longer where this process had no time to read: what no
// clock can have drifted in the time that has passed is such a delay, or no record of the kernel.
func (d *drift) measure(lag, now time.Duration) {
	most := time.Duration(float64(now-d.At) * steer)
	if now <= d.At || lag > d.By+most || lag < d.By-most {
		return
	}
	d.By, d.At = lag, now
}
