package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"stoker.dev/stoker/internal/config"
	"stoker.dev/stoker/internal/kube"
	"stoker.dev/stoker/internal/remedy"
	"stoker.dev/stoker/internal/server"
)

// AlertmanagerConfig says which Alertmanager is asked, and for what.
type AlertmanagerConfig struct {
	URLs        []string        `yaml:"urls"`        // of the members of one cluster; none: nobody is asked
	TokenFile   string          `yaml:"tokenFile"`   // bearer token for it; empty: none
	Receiver    string          `yaml:"receiver"`    // ours in its configuration; what mutes it is respected
	Every       remedy.Duration `yaml:"every"`       // from one look at silences to the next; 5s when left out
	AlertsEvery remedy.Duration `yaml:"alertsEvery"` // the same for alerts; 30s when left out
	Watchdog    WatchdogConfig  `yaml:"watchdog"`
	Silence     bool            `yaml:"silence"` // silence what is told of a node while it is healed
}

// WatchdogConfig says whether the alert that always fires is awaited.
type WatchdogConfig struct {
	Within remedy.Duration `yaml:"within"` // may stay away for so long; 5m when left out and an Alertmanager is asked
	Off    bool            `yaml:"off"`    // it is not awaited
}

// Validate fills in the defaults.
func (c *AlertmanagerConfig) Validate(path string) error {
	errs := []error{
		positive(path, "every", &c.Every, 5*time.Second),
		positive(path, "alertsEvery", &c.AlertsEvery, 30*time.Second),
	}
	for i, u := range c.URLs {
		p, err := url.Parse(u)
		if err != nil || p.Scheme != "http" && p.Scheme != "https" || p.Host == "" {
			errs = append(errs, config.Errorf(config.Item(config.Key(path, "urls"), i), "%q is not an address of Alertmanager, such as http://alertmanager:9093", u))
		}
		c.URLs[i] = strings.TrimSuffix(u, "/")
	}
	if len(c.URLs) > 0 {
		errs = append(errs, positive(config.Key(path, "watchdog"), "within", &c.Watchdog.Within, 5*time.Minute))
	} else {
		if c.Silence {
			errs = append(errs, config.Errorf(config.Key(path, "silence"), "needs urls: silences are set in Alertmanager"))
		}
		if c.Receiver != "" {
			errs = append(errs, config.Errorf(config.Key(path, "receiver"), "needs urls: mutes are read from Alertmanager"))
		}
		if c.Watchdog.Within < 0 {
			errs = append(errs, config.Errorf(config.Key(config.Key(path, "watchdog"), "within"), "%s is negative", c.Watchdog.Within))
		}
	}
	return errors.Join(errs...)
}

// watchdog is how long the alert that always fires may stay away; 0: it is not awaited.
func (c AlertmanagerConfig) watchdog() time.Duration {
	if c.Watchdog.Off {
		return 0
	}
	return time.Duration(c.Watchdog.Within)
}

// CollectorsConfig says which collectors may bring alerts at once.
type CollectorsConfig struct {
	// ServiceAccount is theirs, as namespace/name. Its tokens are made for Audience and
	// bound to a pod, and speak for that pod's node. Empty: only the service's own token counts.
	ServiceAccount string `yaml:"serviceAccount"`
	Audience       string `yaml:"audience"` // stoker when left out
}

// Validate fills in the defaults.
func (c *CollectorsConfig) Validate(path string) error {
	if c.Audience == "" {
		c.Audience = "stoker"
	}
	if ns, name, ok := strings.Cut(c.ServiceAccount, "/"); c.ServiceAccount != "" && (!ok || ns == "" || name == "" || strings.Contains(name, "/")) {
		return config.Errorf(config.Key(path, "serviceAccount"), "%q is not namespace/name", c.ServiceAccount)
	}
	return nil
}

// bearerOf returns a header with the token in a file, which is read each time.
func bearerOf(file string) func() (string, error) {
	if file == "" {
		return nil
	}
	return func() (string, error) {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("token: %w", err)
		}
		return "Bearer " + strings.TrimSpace(string(b)), nil
	}
}

// Bounds of what is remembered of tokens.
const (
	knownFor   = time.Minute // for which an answer about a token counts
	knownMost  = 10_000
	maxJWT     = 16 << 10 // bytes
	reviewMost = 8        // questions to the API server at once
)

// bearers knows for which node a collector may speak, by asking the API server about
// its token.
type bearers struct {
	client   *kube.Client
	user     string
	audience string
	asking   chan struct{}

	mu    sync.Mutex
	known map[[sha256.Size]byte]known
}

type known struct {
	node  string
	until time.Time
}

func newBearers(client *kube.Client, c CollectorsConfig) *bearers {
	ns, name, _ := strings.Cut(c.ServiceAccount, "/")
	return &bearers{
		client: client, user: "system:serviceaccount:" + ns + ":" + name, audience: c.Audience,
		asking: make(chan struct{}, reviewMost), known: map[[sha256.Size]byte]known{},
	}
}

// speaks returns the node for which the bearer of the token may speak.
func (b *bearers) speaks(ctx context.Context, token string) (string, error) {
	if len(token) > maxJWT {
		return "", server.ErrNoSuchBearer
	}
	key, now := sha256.Sum256([]byte(token)), time.Now()
	if node, ok := b.find(key, now); ok {
		return node, nil
	}
	select {
	case b.asking <- struct{}{}:
		defer func() { <-b.asking }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if node, ok := b.find(key, now); ok { // somebody has asked while we waited
		return node, nil
	}
	bearer, err := b.client.Review(ctx, token, b.audience)
	switch {
	case err != nil:
		return "", err
	case bearer.User == "":
		return "", fmt.Errorf("%w here: it has ended, or it was not made for audience %q", server.ErrNoSuchBearer, b.audience)
	case bearer.User != b.user:
		return "", fmt.Errorf("%w here: it is of %s, and collectors are %s", server.ErrNoSuchBearer, bearer.User, b.user)
	case bearer.Node == "":
		return "", fmt.Errorf("%w here: it is bound to no pod on a node", server.ErrNoSuchBearer)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.known) >= knownMost {
		clear(b.known)
	}
	b.known[key] = known{bearer.Node, now.Add(knownFor)}
	return bearer.Node, nil
}

func (b *bearers) find(key [sha256.Size]byte, now time.Time) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, ok := b.known[key]
	return k.node, ok && now.Before(k.until)
}

// identityAt is what a replica is called in the lease: its own name, and where the
// others reach it.
func identityAt(name, address string) string { return name + "@" + address }

// addressOf is where the replica of an identity can be reached; empty: it did not say.
func addressOf(identity string) string {
	i := strings.LastIndexByte(identity, '@')
	if i < 0 {
		return ""
	}
	if host, _, err := net.SplitHostPort(identity[i+1:]); err != nil || host == "" {
		return ""
	}
	return identity[i+1:]
}

// advertised is the address at which the others reach a listener: the one that was
// given, else the pod's, else that of the listener itself if it is of one host.
func advertised(given string, l net.Addr, podIP string) string {
	if given != "" {
		return given
	}
	host, port, err := net.SplitHostPort(l.String())
	if err != nil {
		return ""
	}
	if podIP != "" {
		return net.JoinHostPort(podIP, port)
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		return ""
	}
	return net.JoinHostPort(host, port)
}
