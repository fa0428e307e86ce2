// Package kubeget reads single things from the API of the cluster that a program runs in,
// with its pod's service account. It is for the agent on a node, which must stay small: it
// keeps no cache, watches nothing and can write nothing.
package kubeget

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ServiceAccount is where a pod has its token and the cluster's certificate.
const ServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// maxSmall bounds what is read of a token, a certificate or an error, in bytes.
const maxSmall = 1 << 20

// ErrNoCluster says that the program does not run in a pod, or in one without a service account.
var ErrNoCluster = errors.New("not in a pod with a service account")

// ErrTooLong says that an answer was longer than asked for.
var ErrTooLong = errors.New("answer is too long")

// A StatusError is an answer that is not 200.
type StatusError struct {
	Code    int
	Message string // the server's own, shortened; may be empty
}

// Error names the status, and what the server says of it.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("%d %s", e.Code, http.StatusText(e.Code))
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// A Client reads from one cluster. It is safe for concurrent use.
type Client struct {
	base  string
	token string // the file; read at each call, since it is replaced while the pod runs
	http  *http.Client
}

// InCluster returns a client of the cluster that KUBERNETES_SERVICE_HOST and
// KUBERNETES_SERVICE_PORT name. The folder is that of the service account; [ServiceAccount]
// when empty. The error is ErrNoCluster where one of them is missing.
func InCluster(folder string) (*Client, error) {
	folder = cmp.Or(folder, ServiceAccount)
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, fmt.Errorf("%w: KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set", ErrNoCluster)
	}
	ca, err := small(filepath.Join(folder, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCluster, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s: no certificate in it", filepath.Join(folder, "ca.crt"))
	}
	return &Client{
		base:  "https://" + net.JoinHostPort(host, port),
		token: filepath.Join(folder, "token"),
		http: &http.Client{
			// No proxy: the server is inside the cluster.
			Transport: &http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: 5 * time.Second,
				MaxIdleConns: 1, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
			},
			// The token goes to this server and to no other one.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Get reads one path. Accept is the form asked for, JSON when empty; an answer of more than
// limit bytes is an error, [ErrTooLong], and so is one that is not 200, a [*StatusError].
func (c *Client) Get(ctx context.Context, path string, query url.Values, accept string, limit int64) ([]byte, error) {
	token, err := small(c.token)
	if err != nil {
		return nil, err
	}
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	r.Header.Set("Accept", cmp.Or(accept, "application/json"))
	r.Header.Set("User-Agent", "stoker-collector")
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // it was only read
	if answer.StatusCode != http.StatusOK {
		return nil, &StatusError{answer.StatusCode, message(answer.Body)}
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("%w: %s: over %d bytes", ErrTooLong, path, limit)
	}
	return body, nil
}

// Close gives idle connections back.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// message is what a Status of the API says.
func message(r io.Reader) string {
	var status struct {
		Message string `json:"message"`
	}
	body, err := io.ReadAll(io.LimitReader(r, maxSmall))
	if err != nil || json.Unmarshal(body, &status) != nil {
		return ""
	}
	return status.Message[:min(len(status.Message), 500)]
}

func small(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(f, maxSmall))
}
