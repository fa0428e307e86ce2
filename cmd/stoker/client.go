package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// A client asks a running service. It is filled in by flags.
type client struct {
	server    string
	tokenFile string
	timeout   time.Duration
}

func (c *client) flags(cmd *cobra.Command) {
	env := os.Getenv("STOKER_SERVER")
	if env == "" {
		env = "http://127.0.0.1:8080"
	}
	cmd.Flags().StringVar(&c.server, "server", env, "address of the service; also $STOKER_SERVER")
	cmd.Flags().StringVar(&c.tokenFile, "token-file", os.Getenv("STOKER_TOKEN_FILE"), "file with the bearer token; also $STOKER_TOKEN_FILE")
	cmd.Flags().DurationVar(&c.timeout, "timeout", 10*time.Second, "how long to wait for the answer")
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 20

// get returns the body of a path; an error that tells the server's own words otherwise.
func (c *client) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %s", c.timeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.server, "/")+path, nil)
	if err != nil {
		return nil, exitError{2, err}
	}
	if c.tokenFile != "" {
		token, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return nil, exitError{2, fmt.Errorf("token: %w", err)}
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			return nil, fmt.Errorf("ask %s: %w", c.server, cause)
		}
		return nil, fmt.Errorf("ask the service: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusNotFound:
		return nil, exitError{3, errors.New(strings.TrimSpace(string(body)))}
	}
	return nil, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
}
