package store

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"stoker.dev/stoker/internal/remedy"
)

// MaxBytes bounds the stored form of one incident.
const MaxBytes = 256 << 10

const (
	plainBytes    = 96 << 10 // what is longer is compressed; up to it `kubectl get -o yaml` shows all of it
	unpackedBytes = 8 << 20  // more than this is not an incident of ours
)

// A packed incident: what people look for first, and all of it compressed.
type packed struct {
	Name    string         `json:"name"`
	Subject remedy.Subject `json:"subject"`
	Class   remedy.Class   `json:"class"`
	Phase   remedy.Phase   `json:"phase"`
	Opened  time.Time      `json:"opened"`
	Closed  time.Time      `json:"closed,omitzero"`
	Reason  string         `json:"reason,omitempty"`
	Packed  []byte         `json:"packed"` // gzip of the incident's JSON
}

// encode returns the stored form of the incident: one JSON object of at most
// MaxBytes. A longer one is Rejected.
func encode(in remedy.Incident) ([]byte, error) {
	if err := checkName(in.Name); err != nil {
		return nil, err
	}
	plain, err := json.Marshal(in)
	if err != nil {
		return nil, failure(remedy.Rejected, "incident %s: %w", in.Name, err)
	}
	if len(plain) <= plainBytes {
		return plain, nil
	}
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.DefaultCompression)
	if err != nil {
		return nil, fmt.Errorf("incident %s: compress: %w", in.Name, err)
	}
	if _, err = z.Write(plain); err == nil {
		err = z.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("incident %s: compress: %w", in.Name, err)
	}
	b, err := json.Marshal(packed{in.Name, in.Subject, in.Class, in.Phase, in.Opened, in.Closed, in.Reason, buf.Bytes()})
	if err != nil {
		return nil, failure(remedy.Rejected, "incident %s: %w", in.Name, err)
	}
	if len(b) > MaxBytes {
		return nil, failure(remedy.Rejected, "incident %s is %d bytes and %d compressed, over the limit of %d", in.Name, len(plain), len(b), MaxBytes)
	}
	return b, nil
}

// decode reads what encode wrote, and checks that it is the incident of that name.
func decode(name string, b []byte) (remedy.Incident, error) {
	var p struct {
		Packed []byte `json:"packed"`
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return remedy.Incident{}, err
	}
	if p.Packed != nil {
		var err error
		if b, err = unpack(p.Packed); err != nil {
			return remedy.Incident{}, fmt.Errorf("uncompress: %w", err)
		}
	}
	var in remedy.Incident
	if err := json.Unmarshal(b, &in); err != nil {
		return remedy.Incident{}, err
	}
	if in.Name != name {
		return remedy.Incident{}, fmt.Errorf("it is named %q within", in.Name)
	}
	return in, nil
}

func unpack(b []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(z, unpackedBytes+1))
	if err != nil {
		return nil, err
	}
	if len(plain) > unpackedBytes {
		return nil, errors.New("longer than an incident can be")
	}
	return plain, nil
}
