package kube

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"stoker.dev/stoker/actuator"
	"stoker.dev/stoker/internal/fleet"
	"stoker.dev/stoker/internal/remedy"
)

// LogRules is what [Cluster.LogTail] needs. The account has it only where somebody has
// chosen that logs may be read: they may hold more than why a program has failed.
var LogRules = []actuator.Rule{{Resource: "pods/log", Verbs: []string{"get"}}}

const (
	tailLines = 200
	tailRead  = 256 << 10 // bytes that are read of those lines; the end of them counts
)

// LogTail reads the end of a container's log, at most [fleet.MaxFailureLog] bytes of it:
// that of its run before this one, if previous. Lines that are cut are left out.
func (c *Cluster) LogTail(ctx context.Context, p fleet.PodRef, container string, previous bool) (string, error) {
	if strings.ContainsAny(p.Namespace+p.Name+container, "/?#%") || p.Namespace == "" || p.Name == "" {
		return "", failure(remedy.Rejected, "log of pod %s/%s: no such name", p.Namespace, p.Name)
	}
	var data []byte
	err := c.client.call(ctx, fmt.Sprintf("log of pod %s/%s", p.Namespace, p.Name), func(ctx context.Context) error {
		body, err := c.client.rest.Get().
			AbsPath("/api/v1/namespaces", p.Namespace, "pods", p.Name, "log").
			Param("container", container).Param("previous", strconv.FormatBool(previous)).
			Param("tailLines", strconv.Itoa(tailLines)).Stream(ctx)
		if err != nil {
			return err
		}
		defer body.Close()
		data, err = io.ReadAll(io.LimitReader(body, tailRead))
		return err
	})
	if err != nil {
		return "", err
	}
	text := strings.ToValidUTF8(string(data), "")
	if cut := len(text) - fleet.MaxFailureLog; cut > 0 {
		_, text, _ = strings.Cut(text[cut:], "\n")
	}
	return text, nil
}
