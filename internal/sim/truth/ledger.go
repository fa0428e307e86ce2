package truth

// A Use is what a GPU's time goes into. At every time each GPU of the fleet has one.
type Use int

// The uses. A GPU that is shared has one for each part. What is not [Useful] has been lost to the cause that the use names, but for
// [Free]: nobody wanted it.
const (
	Useful    Use = iota // a job on it makes progress that it has not made before
	Starting             // held by a job that starts for the first time
	Restart              // held by a job that is ended or started anew
	LostWork             // held by a job that does again what it had done before
	Slow                 // held by a job that makes half the progress that it could
	Idle                 // held by a job that does nothing with it
	Broken               // broken, or held by a job that cannot go on because of a fault
	Repairing            // its node is being booted
	Cordoned             // free, and its node takes no work
	Free                 // free
	uses
)

// Queued is the part of Free that somebody waits for. It is not a use that a GPU has
// but one that the ledger finds: as much as is free, and no more than is wanted.
const Queued = uses

var useNames = [...]string{
	Useful: "useful", Starting: "start", Restart: "restart", LostWork: "lost work", Slow: "slow", Idle: "idle", Broken: "fault",
	Repairing: "repair", Cordoned: "cordoned", Free: "free", Queued: "queued beside free GPUs",
}

// String is the name of the use in reports.
func (u Use) String() string { return useNames[u] }

// Uses returns every use and Queued, in order.
func Uses() []Use {
	out := make([]Use, 0, uses+1)
	for u := range uses + 1 {
		out = append(out, u)
	}
	return out
}

// Whole is one GPU: what is counted is thousandths of them, so that parts of a GPU add up
// to it exactly.
const Whole = 1000

// A Ledger counts what the GPU-time of a fleet goes into. It costs the same for one
// GPU as for ten thousand: it counts thousandths of GPUs by use and multiplies with time.
type Ledger struct {
	now    int64 // ms
	gpus   [uses]int64
	wanted int64 // that jobs wait for
	sum    [uses + 1]GPUTime
}

// To moves the ledger's time forward to ms since the start.
func (l *Ledger) To(ms int64) {
	d := ms - l.now
	if d == 0 {
		return
	}
	l.now = ms
	for u, n := range l.gpus {
		l.sum[u] += GPUTime(n * d)
	}
	beside := GPUTime(min(l.gpus[Free], l.wanted) * d)
	l.sum[Free] -= beside
	l.sum[Queued] += beside
}

// Add adds n thousandths of GPUs to a use, or takes them from it.
func (l *Ledger) Add(u Use, n int) { l.gpus[u] += int64(n) }

// Want adds n thousandths of GPUs to those that jobs wait for, or takes them away.
func (l *Ledger) Want(n int) { l.wanted += int64(n) }

// Wanted is the thousandths of GPUs that jobs wait for.
func (l *Ledger) Wanted() int { return int(l.wanted) }

// GPUs is the thousandths of GPUs with a use at present.
func (l *Ledger) GPUs(u Use) int { return int(l.gpus[u]) }

// Sum is the time of a use so far.
func (l *Ledger) Sum(u Use) GPUTime { return l.sum[u] }

// Total is the time of all uses so far.
func (l *Ledger) Total() GPUTime {
	var t GPUTime
	for _, s := range l.sum {
		t += s
	}
	return t
}
