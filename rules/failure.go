package rules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/xid"
)

// Why a job has failed, found out in a fixed order from what the cluster and telemetry
// tell of it: the first place that says anything decides.

// A Verdict is why a pod of a job has ended badly, and where that was read.
type Verdict struct {
	Reason remedy.FailReason
	From   string // the place, for people: "the container's end"
	Text   string // what it says there, one line
	// At is when the program itself says that it failed, else when its pod ended.
	At time.Time
}

// Classify finds out why one pod has ended badly. The order: what the cluster says of
// who ended the pod, how the container ended, the error file or text in its termination
// message, the end of its log where that may be read, and what telemetry tells of the
// GPUs of its node at that time. It is pure.
func Classify(f fleet.Failure, node fleet.Node) Verdict {
	v := Verdict{At: f.At}
	if v.Reason = byDisruption(f.Disruption); v.Reason != "" {
		v.From, v.Text = "the pod's status", f.Disruption
		return v
	}
	if v.Reason = byEnd(f); v.Reason != "" {
		v.From, v.Text = "the container's end", fmt.Sprintf("%s, exit code %d", f.Reason, f.ExitCode)
		return v
	}
	msg := readMessage(f.Message)
	if !msg.at.IsZero() && msg.at.Before(f.At) && f.At.Sub(msg.at) < fleet.OneFailure {
		v.At = msg.at
	}
	if v.Reason, v.Text = byText(msg.text); v.Reason != "" {
		v.From = msg.from
		return v
	}
	if v.Reason, v.Text = byText(f.Log); v.Reason != "" {
		v.From = "the container's log"
		return v
	}
	if v.Reason, v.Text = byTelemetry(f, node); v.Reason != "" {
		v.From = "telemetry of " + node.Name
		return v
	}
	v.Reason, v.From, v.Text = remedy.FailUnknown, "the container's end", fmt.Sprintf("exit code %d", f.ExitCode)
	if line, _, _ := strings.Cut(strings.TrimSpace(msg.text), "\n"); line != "" {
		v.From, v.Text = msg.from, line
	}
	return v
}

func byDisruption(why string) remedy.FailReason {
	switch why {
	case "PreemptionByScheduler", "Preempting", "Preempted":
		return remedy.FailPreempted
	case "EvictionByEvictionAPI", "TerminationByKubelet", "Evicted", "NodeShutdown", "Shutdown", "Terminated":
		return remedy.FailEvicted
	case "DeletionByTaintManager", "DeletionByPodGC", "NodeLost":
		return remedy.FailNodeLost
	}
	return ""
}

func byEnd(f fleet.Failure) remedy.FailReason {
	switch f.Reason {
	case "OOMKilled":
		return remedy.FailMemory
	case "ContainerStatusUnknown":
		return remedy.FailNodeLost
	case "StartError", "ContainerCannotRun":
		return remedy.FailUser
	}
	switch f.ExitCode {
	case 126, 127: // no such program, or none that can be run
		return remedy.FailUser
	}
	return ""
}

// patterns sort one line of what a program says. The order is that in which they are
// tried: what is more special comes first.
var patterns = []struct {
	reason remedy.FailReason
	line   *regexp.Regexp
}{
	{remedy.FailGPUMemory, regexp.MustCompile(`(?i)CUDA out of memory|CUDA error: out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|RESOURCE_EXHAUSTED: Out of memory`)},
	{remedy.FailMemory, regexp.MustCompile(`\bMemoryError\b|std::bad_alloc|[Cc]annot allocate memory|can't allocate memory|DataLoader worker .* killed by signal: Killed`)},
	{remedy.FailGPU, regexp.MustCompile(`(?i)uncorrectable (NVLink|ECC) error|GPU is lost|fallen off the bus|cudaErrorECCUncorrectable|cudaErrorDevicesUnavailable|CUDA-capable device\(s\) is/are busy or unavailable|No CUDA GPUs are available|unable to determine the device handle`)},
	{remedy.FailNCCL, regexp.MustCompile(`(?i)NCCL error|nccl(System|Internal|Remote|UnhandledCuda|InvalidUsage)?Error|unhandled system error.*NCCL|Watchdog caught collective operation timeout|ProcessGroupNCCL.*(time(d )?out|abort|exception)|NCCL.*(timed out|connection (closed|reset))|DistBackendError`)},
	{remedy.FailIO, regexp.MustCompile(`(?i)No space left on device|Input/output error|Stale (NFS )?file handle|Read-only file system|Transport endpoint is not connected|Disk quota exceeded|Remote I/O error`)},
	{remedy.FailUser, regexp.MustCompile(`\b(ModuleNotFoundError|ImportError|SyntaxError|IndentationError|NameError|TypeError|ValueError|KeyError|IndexError|AttributeError|AssertionError|NotImplementedError|ZeroDivisionError|UnboundLocalError|FileNotFoundError)\b|device-side assert triggered|an illegal memory access was encountered|size mismatch for`)},
}

// byText finds the first line that says why.
func byText(text string) (remedy.FailReason, string) {
	for line := range strings.Lines(text) {
		if strings.Contains(line, "NCCL INFO") {
			continue // it tells much, and of settings too
		}
		for _, p := range patterns {
			if p.line.MatchString(line) {
				return p.reason, bounded(strings.TrimSpace(line), maxLine)
			}
		}
	}
	return "", ""
}

const maxLine = 160 // bytes of what is quoted

// byTelemetry blames what happened on the pod's GPUs at that time. Of a pod that does
// not hold all GPUs of its node nobody knows which ones it held.
func byTelemetry(f fleet.Failure, n fleet.Node) (remedy.FailReason, string) {
	if f.GPUs == 0 || f.GPUs < n.Capacity.GPUs {
		return "", ""
	}
	reason, app := remedy.FailReason(""), ""
	for _, g := range n.GPUs {
		switch {
		case g.Up == fleet.False:
			return remedy.FailGPU, fmt.Sprintf("GPU %d is lost", g.Index)
		case g.XID == 0 || f.At.Sub(g.XIDTime).Abs() > nearXID:
			continue
		}
		row, _ := xid.Lookup(g.XID)
		class := remedy.Class(row.Class)
		text := fmt.Sprintf("XID %d on GPU %d", g.XID, g.Index)
		switch {
		case class == remedy.ClassGPUApp:
			reason, app = remedy.FailUser, text
		case remedy.Classes[class].Subject == remedy.SubjectGPU:
			return remedy.FailGPU, text
		}
	}
	return reason, app
}

// nearXID is how far an error of a GPU may be from the end of the pod that it ended.
const nearXID = 2 * time.Minute

// A message is a termination message, read.
type message struct {
	text string
	at   time.Time // as the program says; zero when it does not
	from string
}

// errorFile is what torchelastic writes when a worker fails. Its message is a text, or
// an object with one in it; so is its time.
type errorFile struct {
	Message json.RawMessage `json:"message"`
}

type errorMessage struct {
	Message   string `json:"message"`
	ExtraInfo struct {
		CallStack string          `json:"py_callstack"`
		Timestamp json.RawMessage `json:"timestamp"`
	} `json:"extraInfo"`
}

var (
	cutMessage = regexp.MustCompile(`"message"\s*:\s*"((?:[^"\\]|\\.)*)`)
	cutTime    = regexp.MustCompile(`"timestamp"\s*:\s*"?(\d{9,11}(?:\.\d+)?)`)
)

// readMessage reads a termination message: an error file where it is one, also with
// something before it or with its end cut off, else the text that it is.
func readMessage(raw string) message {
	plain := message{text: raw, from: "the termination message"}
	start := strings.IndexByte(raw, '{')
	if start < 0 {
		return plain
	}
	out := message{from: "the error file in the termination message"}
	var file errorFile
	if err := json.NewDecoder(strings.NewReader(raw[start:])).Decode(&file); err == nil {
		var inner errorMessage
		switch {
		case json.Unmarshal(file.Message, &out.text) == nil:
		case json.Unmarshal(file.Message, &inner) == nil:
			out.text = inner.Message + "\n" + lastLines(inner.ExtraInfo.CallStack, 3)
			out.at = unixText(strings.Trim(string(inner.ExtraInfo.Timestamp), `"`))
		}
		if strings.TrimSpace(out.text) != "" {
			return out
		}
		return plain
	}
	// It was cut off: what is left of its texts is still what the program said.
	var texts []string
	for _, m := range cutMessage.FindAllStringSubmatch(raw, 4) {
		if text, err := strconv.Unquote(`"` + strings.TrimRight(m[1], `\`) + `"`); err == nil {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 {
		return plain
	}
	out.text = strings.Join(texts, "\n")
	if m := cutTime.FindStringSubmatch(raw); m != nil {
		out.at = unixText(m[1])
	}
	return out
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func unixText(s string) time.Time {
	t, ok := eventTime(s)
	if !ok || t.Year() < 2000 {
		return time.Time{}
	}
	return t
}

// settleFailure is how long the pods of a gang are waited for after its first has ended:
// clocks of nodes differ, and so does how soon the cluster is told.
const settleFailure = 30 * time.Second

// FailedJobs is the evidence of jobs that have failed, or that have lost pods, lately:
// one for each failure of a gang. Its cause is the pod that ended first, unless one that
// ended at nearly the same time has a reason by itself. What a job was started anew
// after is over. It is pure, and tells the same of the same fleet.
func FailedJobs(now time.Time, f fleet.Snapshot, maxAge time.Duration) []remedy.Evidence {
	var out []remedy.Evidence
	for _, ref := range slices.SortedFunc(maps.Keys(f.Jobs), fleet.JobRef.Compare) {
		j := f.Jobs[ref]
		told := time.Time{}
		for _, gang := range fleet.Gangs(j.Failures) {
			at := gang[0].At
			if at.After(told) {
				told = at
			}
			if age := now.Sub(at); age < settleFailure || age > maxAge || j.Started.After(at) {
				continue
			}
			out = append(out, failed(now, f, j, gang))
		}
		if age := now.Sub(j.Ended); j.Phase == fleet.JobFailed && age >= settleFailure && age <= maxAge && j.Ended.Sub(told) > fleet.OneFailure {
			why := cmp.Or(j.EndReason, "Failed")
			out = append(out, evidence(now, j, Verdict{Reason: remedy.FailUnknown, From: "the job's status", Text: why, At: j.Ended}, nil))
		}
	}
	return out
}

// failed is the evidence of one failure of a gang.
func failed(now time.Time, f fleet.Snapshot, j fleet.Job, gang []fleet.Failure) remedy.Evidence {
	var first *fleet.Failure
	var verdict Verdict
	for i := range gang {
		p := &gang[i]
		if p.At.Sub(gang[0].At) > settleFailure {
			break
		}
		v := Classify(*p, f.Nodes[p.Pod.Node])
		if first == nil || v.Reason.Cause() && (!verdict.Reason.Cause() || v.At.Before(verdict.At)) {
			first, verdict = p, v
		}
	}
	verdict.At = gang[0].At // what names the event does not hang on who is blamed for it
	return evidence(now, j, verdict, first)
}

// recipeOOM is the job's recipe for the day when it is out of memory.
const recipeOOM = "oom"

// evidence is what a verdict on a job makes. Its labels are what playbooks match:
// reason, and recipe where the job itself says what would help.
func evidence(now time.Time, j fleet.Job, v Verdict, p *fleet.Failure) remedy.Evidence {
	labels := map[string]string{
		"alertname": "TrainingJobFailed", "namespace": j.Ref.Namespace, "job_name": j.Ref.Name, "job_kind": j.Ref.Kind,
		"reason": string(v.Reason), "read_from": v.From,
	}
	if _, ok := j.Recipes[recipeOOM]; ok && (v.Reason == remedy.FailMemory || v.Reason == remedy.FailGPUMemory) {
		labels["recipe"] = recipeOOM
	}
	what := j.Ref.String() + " has failed"
	if p != nil {
		labels["pod"], labels["node"], labels["exit_code"] = p.Pod.Name, p.Pod.Node, strconv.Itoa(p.ExitCode)
		what = fmt.Sprintf("%s has lost %s on %s", j.Ref, p.Pod.Name, cmp.Or(p.Pod.Node, "no node"))
	}
	return remedy.Evidence{
		Subject: remedy.Subject{Kind: remedy.SubjectJob, Namespace: j.Ref.Namespace, Name: j.Ref.Name},
		Class:   remedy.ClassJobFailed, At: v.At, Seen: now, Source: "failures", Labels: boundedLabels(labels),
		Summary: bounded(fmt.Sprintf("%s: %s; %s says %q", what, remedy.FailReasons[v.Reason], v.From, bounded(v.Text, maxLine)), maxSummary),
	}
}
