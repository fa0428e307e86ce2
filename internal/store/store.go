// Package store keeps incidents, the only durable state of healing: in a bbolt file,
// as custom resources, or in memory for dry runs and tests. One contract test holds
// all three.
//
// It owns the stored form and its size, and nothing else: it does not decide what an
// incident keeps, retries nothing, caches nothing and starts no goroutine. Writes are
// durable when they return. Errors carry a [remedy.Failure] where it is known what
// became of the write; any other error means that nobody knows.
//
// A stored incident is its JSON as one object. One that is longer than 96 KiB is
// stored compressed, without loss, beside the fields that people and columns look at;
// one that is longer than [MaxBytes] even so is refused.
//
// As a custom resource the incident is the object's status, but without the status
// subresource: creating an object with the subresource drops the status, so that a
// crash between the two writes would leave an incident without content. Without it,
// create and update are one write each.
package store

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"stoker.dev/stoker/internal/remedy"
)

// Corrupt is the error about one stored incident that cannot be read. List returns
// the others beside it.
type Corrupt struct {
	Name string
	Err  error
}

// Error names the incident.
func (c *Corrupt) Error() string {
	return fmt.Sprintf("stored incident %s cannot be read: %v", c.Name, c.Err)
}

// Unwrap returns what is wrong with it.
func (c *Corrupt) Unwrap() error { return c.Err }

func failure(e remedy.Ending, format string, args ...any) error {
	return &remedy.Failure{Ending: e, Err: fmt.Errorf(format, args...)}
}

func taken(name string) error {
	return failure(remedy.Conflict, "incident %s exists already", name)
}

func gone(name string) error {
	return failure(remedy.Gone, "incident %s does not exist", name)
}

func changed(name, stored, have string) error {
	return failure(remedy.Conflict, "incident %s has version %s, not %q", name, stored, have)
}

// checkName refuses names that not every store can keep.
func checkName(name string) error {
	if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
		return failure(remedy.Rejected, "incident name %q: %s", name, msgs[0])
	}
	return nil
}

// checkClosed refuses to forget an incident that still owns marks.
func checkClosed(in remedy.Incident) error {
	if !in.Phase.Closed() {
		return failure(remedy.Rejected, "incident %s is %s; only closed ones can be deleted", in.Name, in.Phase)
	}
	return nil
}

// joinCorrupt joins the errors in the order of their names.
func joinCorrupt(bad []*Corrupt) error {
	slices.SortFunc(bad, func(a, b *Corrupt) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	errs := make([]error, 0, len(bad))
	for _, c := range bad {
		errs = append(errs, c)
	}
	return errors.Join(errs...)
}
