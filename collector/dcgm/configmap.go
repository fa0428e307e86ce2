package dcgm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"stoker.dev/stoker/collector/kubeget"
)

// configMapKey is the key of a ConfigMap that has the list.
const configMapKey = "metrics"

// Bounds and times of reading a ConfigMap.
const (
	maxConfigMap = 4 << 20 // bytes of the answer; the list itself is bounded by maxList
	mapAnswerIn  = 5 * time.Second
	mapEvery     = time.Minute
	mapRetry     = 5 * time.Second // the first pause after a failure; it doubles up to mapEvery
)

// Why a list of the cluster is not there.
const (
	mapNoAccount = "no-service-account"
	mapForbidden = "forbidden"
	mapMissing   = "not-found"
	mapRefused   = "cluster-refuses"
	mapSilent    = "cluster-does-not-answer"
	mapOdd       = "odd-answer"
	mapNoKey     = "no-key"
)

// A ConfigMap is a list of fields in the cluster. [ConfigMap.Run] follows it: while it can't
// be read, what was there before stays in force.
type ConfigMap struct {
	log             *slog.Logger
	namespace, name string
	account         string // folder of the service account
	every, retry    time.Duration
	within          time.Duration // an answer

	once   sync.Once
	first  chan struct{}
	client *kubeget.Client // of Run
	told   string          // the last failure

	fields atomic.Pointer[[]Field] // nil before it could be used
	why    atomic.Pointer[string]  // nil before the first try
}

var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// NewConfigMap returns a list that was not read yet. It is named as namespace:name; the
// account is the folder of the pod's service account, the usual one when empty.
func NewConfigMap(log *slog.Logger, named, account string) (*ConfigMap, error) {
	namespace, name, err := ConfigMapName(named)
	if err != nil {
		return nil, err
	}
	return &ConfigMap{
		log: log.With("configmap", named), namespace: namespace, name: name, account: account,
		every: mapEvery, retry: mapRetry, within: mapAnswerIn, first: make(chan struct{}),
	}, nil
}

// ConfigMapName takes namespace:name apart.
func ConfigMapName(named string) (namespace, name string, err error) {
	m := regexp.MustCompile(`^([^:]*):([^:]*)$`).FindStringSubmatch(named)
	if m == nil || !objectName.MatchString(m[1]) || !objectName.MatchString(m[2]) {
		return "", "", fmt.Errorf("%q is not namespace:name", named)
	}
	return m[1], m[2], nil
}

// String returns namespace:name.
func (m *ConfigMap) String() string { return m.namespace + ":" + m.name }

// Run reads at once and then again and again, until ctx ends: each minute, sooner after a
// failure. The pauses differ from node to node, so that not all ask at once.
func (m *ConfigMap) Run(ctx context.Context) {
	defer func() {
		if m.client != nil {
			m.client.Close()
		}
	}()
	next := m.retry
	for {
		wait := m.every
		if m.read(ctx) {
			next = m.retry
		} else {
			wait, next = next, min(2*next, m.every)
		}
		m.once.Do(func() { close(m.first) })
		wait += time.Duration(rand.Int64N(int64(wait)/5 + 1)) //nolint:gosec // no secret
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// First returns a channel that is closed when the list was tried for the first time, a few
// seconds after Run began at the latest.
func (m *ConfigMap) First() <-chan struct{} { return m.first }

// read reads the list and reports whether the cluster has answered with one.
func (m *ConfigMap) read(ctx context.Context) bool {
	text, why, err := m.ask(ctx)
	var fields []Field
	answered := err == nil
	if answered {
		fields, err = ParseFields(text)
		why = reasonOf(fields, err)
	}
	if now := m.fields.Load(); len(fields) > 0 && (now == nil || !slices.Equal(*now, fields)) {
		m.fields.Store(&fields)
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	switch {
	case failure == m.told || ctx.Err() != nil:
	case failure == "":
		m.log.Info("list of fields of the cluster is there again")
	case len(fields) > 0:
		m.log.Error("some lines of the list of fields can't be used", "used", len(fields), "err", err)
	default:
		m.log.Error("list of fields of the cluster can't be used, the one before stays in force", "reason", why, "err", err)
	}
	m.told = failure
	m.why.Store(&why)
	return answered
}

// ask returns the text of the list, or why there is none.
func (m *ConfigMap) ask(ctx context.Context) (text, why string, err error) {
	if m.client == nil {
		if m.client, err = kubeget.InCluster(m.account); err != nil {
			return "", mapNoAccount, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, m.within)
	defer cancel()
	path := "/api/v1/namespaces/" + url.PathEscape(m.namespace) + "/configmaps/" + url.PathEscape(m.name)
	body, err := m.client.Get(ctx, path, nil, "", maxConfigMap)
	if err != nil {
		why := mapSilent
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
			why = mapNoAccount // the token
		case errors.Is(err, kubeget.ErrTooLong):
			why = mapOdd
		}
		if s, ok := errors.AsType[*kubeget.StatusError](err); ok {
			switch s.Code {
			case http.StatusUnauthorized, http.StatusForbidden:
				why = mapForbidden
			case http.StatusNotFound:
				why = mapMissing
			default:
				why = mapRefused
			}
		}
		return "", why, err
	}
	var answer struct {
		Data map[string]string `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", mapOdd, fmt.Errorf("configmap %s: %w", m, err)
	}
	text, ok := answer.Data[configMapKey]
	switch {
	case !ok:
		return "", mapNoKey, fmt.Errorf("configmap %s: no key %q", m, configMapKey)
	case len(text) > maxList:
		return "", mapOdd, fmt.Errorf("configmap %s: over %d bytes", m, maxList)
	}
	return text, "", nil
}
