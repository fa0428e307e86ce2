package sim

import (
	"fmt"
	"strings"
	"time"
)

// count is a number of things: "1 GPU", "3 GPUs".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// span writes a duration to the second.
func span(d time.Duration) string { return d.Round(time.Second).String() }

// nodesOf names the nodes of a job's gang, each once, in the order of its workers.
func nodesOf(j *job) string {
	var names []string
	seen := map[*node]bool{}
	for _, p := range j.current() {
		if p.node != nil && !seen[p.node] {
			seen[p.node] = true
			names = append(names, p.node.name)
		}
	}
	return strings.Join(names, ", ")
}

// podName is what a controller of indexed jobs would call the pod.
func podName(job string, i int, uid string) string { return fmt.Sprintf("%s-%d-%s", job, i, uid[:5]) }
