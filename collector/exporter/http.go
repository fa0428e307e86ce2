package exporter

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"
)

// NewHTTP returns the source "exporter": it scrapes a dcgm-exporter, anew in each
// collection. The client's time limits do not matter; the collection's do.
func NewHTTP(log *slog.Logger, client *http.Client, address string) *Source {
	return newSource(log, "exporter", func(ctx context.Context, _ time.Time) ([]byte, error) {
		return scrape(ctx, client, address)
	})
}

// scrape returns the page at an address. Anything but a whole page is an error.
func scrape(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain; version=0.0.4")
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("scrape %s: %w", address, context.Cause(ctx))
		}
		return nil, err // it names the address
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("scrape %s: answered %s", address, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err != nil {
		return nil, fmt.Errorf("scrape %s: %w", address, err)
	}
	return text, nil
}

// ValidAddress says whether an address can be scraped, and why not.
func ValidAddress(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return err
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("%q is not an address such as http://localhost:9400/metrics", address)
	}
	return nil
}
