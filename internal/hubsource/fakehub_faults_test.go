package hubsource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	workv1 "open-cluster-management.io/api/work/v1"
)

// hubFaults are the faults of a fakeHub, and the hooks of tests. The hub's lock guards it.
type hubFaults struct {
	// writes returns the fault of the next write; nil: no faults.
	writes func() fault
	// lags: watches of works show no changes. before are the works at the begin of the lag, at version; since are
	// the changes since then.
	lags    bool
	before  map[string]object
	version int
	since   []hubChange
	// endsWork is called when the source removes its finalizer from a work.
	endsWork func(cluster, uid string)
}

type hubChange struct {
	old, now object
	gone     bool
}

// fault is the fault of a write.
type fault uint8

const (
	noFault    fault = iota
	refused          // the write is not executed
	lostAnswer       // the write is executed, and the answer is lost
	comesLate        // the write is executed late, after its sender has given up
)

// late is the delay of a late write, in a bubble. The sender has tried again by then, and another replica may
// lead.
const late = 3 * time.Second

// meddle executes a write with a fault; the caller holds the lock.
func (h *fakeHub) meddle(r *http.Request) (*http.Response, error) {
	switch h.faults.writes() {
	case refused:
		return status(http.StatusServiceUnavailable, "ServiceUnavailable"), nil
	case lostAnswer:
		if err := h.unsent(r); err != nil {
			return nil, err
		}
		return nil, errors.New("read: connection reset by peer")
	case comesLate:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		again := r.Clone(context.Background())
		again.Body = io.NopCloser(bytes.NewReader(body))
		go func() { // ends before the test, which waits longer
			<-time.After(late)
			h.mu.Lock()
			defer h.mu.Unlock()
			if err := h.unsent(again); err != nil {
				h.t.Errorf("fake hub: %v", err)
			}
		}()
		return nil, errors.New("read: connection reset by peer")
	case noFault:
	}
	return h.serve(r)
}

// unsent executes a request whose answer is lost.
func (h *fakeHub) unsent(r *http.Request) error {
	answer, err := h.serve(r)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// cutWatches ends all watches.
func (h *fakeHub) cutWatches() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		w.stop()
	}
}

// fallBehind makes watches of works lag, as with a kube-apiserver whose cache lags.
func (h *fakeHub) fallBehind() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := &h.faults; !f.lags {
		f.lags, f.before, f.version, f.since = true, maps.Clone(h.objects["manifestworks"]), h.rv, nil
	}
}

// catchUp ends the lag.
func (h *fakeHub) catchUp() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults.lags, h.faults.since = false, nil
	for w := range h.watches {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (f *hubFaults) changed(resource string, old, now object, gone bool) {
	if f.lags && resource == "manifestworks" {
		f.since = append(f.since, hubChange{old, now, gone})
	}
}

// mayShow reports whether a lagging cache may answer a list that must not be older than a version.
func (f *hubFaults) mayShow(resource, version string) bool {
	n, err := strconv.Atoi(version)
	return f.lags && resource == "manifestworks" && err == nil && n <= f.version
}

// stale returns the works in the lagging cache, and the changes that it does not show yet.
func (f *hubFaults) stale(h *fakeHub, s labels.Selector) (list object, since []hubChange) {
	now, rv := h.objects["manifestworks"], h.rv
	h.objects["manifestworks"], h.rv = f.before, f.version
	defer func() { h.objects["manifestworks"], h.rv = now, rv }()
	return h.list("manifestworks", "", s), f.since
}

// letGo calls endsWork if an update removes the source's finalizer.
func (f *hubFaults) letGo(old, now object) {
	has := func(o object) bool {
		list, _ := metaOf(o)["finalizers"].([]any)
		return slices.Contains(list, any(workv1.ManifestWorkFinalizer))
	}
	if f.endsWork != nil && has(old) && !has(now) {
		f.endsWork(fmt.Sprint(metaOf(old)["namespace"]), fmt.Sprint(metaOf(old)["uid"]))
	}
}
