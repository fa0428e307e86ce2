package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"time"

	"stoker.dev/stoker/collector/kubeget"
)

// Bounds and times of what is asked of the cluster. There may be ten thousand nodes.
const (
	maxList   = 16 << 20 // bytes of one part of a list
	maxParts  = 20
	askIn     = 10 * time.Second
	absentFor = time.Minute      // that the cluster does not know something is believed
	waitAfter = 30 * time.Second // a failure
	aboutFor  = time.Hour        // that what was said last is shown while nobody answers
)

// Why nothing is known of the cluster.
const (
	noCluster       = "no-service-account"
	clusterForbids  = "forbidden"
	clusterRefuses  = "cluster-refuses"
	clusterSilent   = "cluster-does-not-answer"
	clusterNonsense = "odd-answer"
)

var clusterReasons = []string{clusterSilent, clusterRefuses, clusterForbids, noCluster, clusterNonsense}

// A cluster is asked for what is on one node. It belongs to one goroutine.
type cluster struct {
	node    string
	account string          // folder of the service account; the usual one when empty
	client  *kubeget.Client // nil until there is a cluster
}

func (c *cluster) close() {
	if c.client != nil {
		c.client.Close()
	}
}

// list reads a list, part by part. The server answers from its memory, so that this costs its
// store nothing. Take returns where the next part begins, if there is one.
func (c *cluster) list(ctx context.Context, path string, query url.Values, accept string, take func(part []byte) (next string, err error)) error {
	if c.node == "" {
		return fmt.Errorf("%w: the node's name is not known", errNonsense)
	}
	if c.client == nil {
		client, err := kubeget.InCluster(c.account)
		if err != nil {
			return err
		}
		c.client = client
	}
	ctx, cancel := context.WithTimeout(ctx, askIn)
	defer cancel()
	query = maps.Clone(query)
	query.Set("limit", "500")
	query.Set("resourceVersion", "0")
	for range maxParts {
		body, err := c.client.Get(ctx, path, query, accept, maxList)
		if err != nil {
			return err
		}
		next, err := take(body)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", errNonsense, path, err)
		}
		if next == "" {
			return nil
		}
		query.Del("resourceVersion")
		query.Set("continue", next)
	}
	return fmt.Errorf("%w: %s: over %d parts", errNonsense, path, maxParts)
}

var errNonsense = errors.New("odd answer")

func whyNot(err error) string {
	s, ok := errors.AsType[*kubeget.StatusError](err)
	switch {
	case ok && (s.Code == http.StatusForbidden || s.Code == http.StatusUnauthorized):
		return clusterForbids
	case ok:
		return clusterRefuses
	case errors.Is(err, kubeget.ErrTooLong), errors.Is(err, errNonsense):
		return clusterNonsense
	case errors.Is(err, kubeget.ErrNoCluster):
		return noCluster
	}
	return clusterSilent
}

// end notes how a question to the cluster has ended, logs when that is news, and returns
// when it may be asked again.
func (o *outcome) end(log *slog.Logger, err error, now time.Time) (next time.Time) {
	if err != nil {
		reason := whyNot(err)
		if o.failure == nil || o.reason != reason {
			log.Warn("the cluster does not tell", "reason", reason, "err", err)
		}
		o.tried, o.failure, o.reason = true, err, reason
		return now.Add(waitAfter)
	}
	if o.failure != nil {
		log.Info("the cluster tells again")
	}
	*o = outcome{tried: true, success: now}
	return now.Add(every)
}
