package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"stoker.dev/stoker/internal/remedy"
)

func failure(e remedy.Ending, format string, args ...any) error {
	return &remedy.Failure{Ending: e, Err: fmt.Errorf(format, args...)}
}

// sorted says what became of a request. What the server has stated, and what was
// provably never sent, is a Failure; all else is unclear and stays a plain error.
// connected says that the request had a connection, so that it may have been sent.
func sorted(what string, err error, connected bool) error {
	err = fmt.Errorf("%s: %w", what, err)
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		if e := ending(status.Status()); e != remedy.Unclear {
			return &remedy.Failure{Ending: e, Err: err}
		}
		return err
	}
	if !connected {
		return &remedy.Failure{Ending: remedy.Conflict, Err: fmt.Errorf("nothing was sent: %w", err)}
	}
	return err
}

// ending sorts an answer of the server.
func ending(s metav1.Status) remedy.Ending {
	switch s.Code {
	case http.StatusConflict, http.StatusTooManyRequests:
		return remedy.Conflict
	case http.StatusUnauthorized, http.StatusGone:
		// A token that is out of date is read anew, a list that has expired is begun anew.
		return remedy.Conflict
	case http.StatusForbidden:
		// A server that has just started says so too, before it knows who may what, and in
		// the same words. Nothing was done; who really may not fails at the step's deadline.
		return remedy.Conflict
	case http.StatusNotFound:
		if unknownToServer(s) {
			return remedy.Rejected
		}
		return remedy.Gone
	case http.StatusBadRequest, http.StatusMethodNotAllowed,
		http.StatusNotAcceptable, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return remedy.Rejected
	case http.StatusInternalServerError:
		// Stated before anything was done, though with a code that could mean anything.
		if strings.Contains(s.Message, "more than one PodDisruptionBudget") {
			return remedy.Rejected
		}
	}
	return remedy.Unclear
}

// unknownToServer tells a kind that the server does not have, or an answer of
// something that is no API server, from an object that does not exist.
func unknownToServer(s metav1.Status) bool {
	if s.Details == nil {
		return true
	}
	for _, c := range s.Details.Causes {
		if c.Type == metav1.CauseTypeUnexpectedServerResponse {
			return true
		}
	}
	return s.Details.Name == ""
}

// another turns a conflict into Gone where the name belongs to another object by now,
// or to none. It reads the object once to know.
func (c *Client) another(ctx context.Context, err error, res schema.GroupVersionResource, namespace, name, uid string) error {
	if f, ok := errors.AsType[*remedy.Failure](err); !ok || f.Ending != remedy.Conflict {
		return err
	}
	obj, readErr := c.Get(ctx, res, namespace, name)
	if f, ok := errors.AsType[*remedy.Failure](readErr); ok && f.Ending == remedy.Gone {
		return readErr
	}
	if readErr == nil && string(obj.GetUID()) != uid {
		return failure(remedy.Gone, "%s: the name belongs to another object now, with uid %s: %w", describe("patch", res, namespace, name), obj.GetUID(), err)
	}
	return err // the conflict stands, whether or not it could be looked at
}
