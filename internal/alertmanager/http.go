package alertmanager

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// get hands the body of the answer to read.
func (s *Source) get(ctx context.Context, url string, read func(io.Reader) error) error {
	return s.call(ctx, http.MethodGet, url, nil, read)
}

func (s *Source) getJSON(ctx context.Context, url string, into any) error {
	return s.get(ctx, url, func(body io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
		if err != nil {
			return err
		}
		if len(data) > maxAnswer {
			return fmt.Errorf("the answer is over %d bytes", maxAnswer)
		}
		return json.Unmarshal(data, into)
	})
}

// call makes one request. Its error names what was asked.
func (s *Source) call(ctx context.Context, method, url string, body []byte, read func(io.Reader) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %s: %w", method, url[strings.Index(url, "/api/"):], err)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.o.Authorization != nil {
		header, err := s.o.Authorization()
		if err != nil {
			return err
		}
		if header != "" {
			req.Header.Set("Authorization", header)
		}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return fmt.Errorf("answered %s: %s", resp.Status, bytes.TrimSpace(said))
	}
	if read == nil {
		return nil
	}
	return read(resp.Body)
}
