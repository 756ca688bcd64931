package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// answering tracks whether the kube-apiserver answers, from regular requests: an interrupted watch is requested
// again within seconds.
type answering struct {
	next http.RoundTripper
	now  func() time.Time

	mu sync.Mutex
	// since is when the first request after the last answer failed; zero while the server answers.
	since time.Time
	last  error
}

// RoundTrip implements http.RoundTripper.
func (a *answering) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := a.next.RoundTrip(r)
	if !errors.Is(err, context.Canceled) { // canceled by its caller, which proves nothing
		a.note(unanswered(resp, err))
	}
	return resp, err
}

// unanswered returns why a request has no answer of a kube-apiserver. Every answer of a kube-apiserver has the
// header Audit-Id; an error without it comes from a load balancer.
func unanswered(resp *http.Response, err error) error {
	if err == nil && resp.StatusCode >= http.StatusInternalServerError && resp.Header.Get("Audit-Id") == "" {
		return errors.New("a proxy answers " + resp.Status)
	}
	return err
}

func (a *answering) note(failed error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = failed
	switch {
	case failed == nil:
		a.since = time.Time{}
	case a.since.IsZero():
		a.since = a.now()
	}
}

func (a *answering) err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		return nil
	}
	return fmt.Errorf("the kube-apiserver of the managed cluster has not answered since %s: %w", a.since.UTC().Format(time.RFC3339), a.last)
}
