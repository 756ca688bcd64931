package fakehub

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// watcher is the response body of a watch.
type watcher struct {
	kept      string
	resource  Resource
	namespace string
	filter    filter
	ctx       context.Context //nolint:containedctx // it ends with the answer, which is read as a body
	end       context.CancelFunc

	wake chan struct{}
	mu   sync.Mutex
	more bytes.Buffer
}

// watch starts a watch; the caller holds the lock.
func (s *Server) watch(ctx context.Context, q *Request) reply {
	f, err := q.filter()
	if err != nil || !q.ok {
		return failure(http.StatusNotFound, "NotFound", "the server could not find the requested resource")
	}
	kept := id(q.Resource.Name, q.Resource.Group)
	text := q.query.Get("resourceVersion")
	from, _ := strconv.Atoi(text) // "" means now
	initial := q.query.Get("sendInitialEvents") == "true"
	if !initial && from > 0 && (from < s.oldest || from > s.rv) {
		return failure(http.StatusGone, "Expired", "too old resource version")
	}
	w := &watcher{kept: kept, resource: q.Resource, namespace: q.Namespace, filter: f, wake: make(chan struct{}, 1)}
	w.ctx, w.end = context.WithCancel(ctx)
	if seconds, _ := strconv.Atoi(q.query.Get("timeoutSeconds")); seconds > 0 {
		timeout := time.AfterFunc(time.Duration(seconds)*time.Second, w.end)
		context.AfterFunc(w.ctx, func() { timeout.Stop() })
	}
	s.watches[w] = true
	context.AfterFunc(w.ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, w)
	})
	switch {
	case initial || from == 0:
		for _, o := range s.list(kept, q.Namespace, f) {
			w.send("ADDED", versioned(o, q.Resource))
		}
		if initial {
			w.send("BOOKMARK", bookmark(q.Resource, s.rv))
		}
	default:
		for _, c := range s.log[kept] {
			if c.rv > from {
				w.changed(c)
			}
		}
	}
	return reply{code: http.StatusOK, body: w}
}

func bookmark(r Resource, rv int) []byte {
	apiVersion := r.Version
	if r.Group != "" {
		apiVersion = r.Group + "/" + r.Version
	}
	return done(0, Object{"apiVersion": apiVersion, "kind": r.Kind, "metadata": Object{
		"resourceVersion": strconv.Itoa(rv), "annotations": Object{"k8s.io/initial-events-end": "true"},
	}}).json
}

func (w *watcher) changed(c change) {
	shows := func(o *stored) bool {
		if o == nil {
			return false
		}
		namespace, _ := meta(o.Object)["namespace"].(string)
		return (w.namespace == "" || namespace == w.namespace) && w.filter.matches(o.Object)
	}
	switch was, is := shows(c.old), shows(c.now); {
	case was && is:
		w.send("MODIFIED", versioned(c.now, w.resource))
	case is:
		w.send("ADDED", versioned(c.now, w.resource))
	case was && c.now != nil:
		w.send("DELETED", versioned(c.now, w.resource))
	case was:
		w.send("DELETED", versioned(c.old, w.resource))
	}
}

func (w *watcher) send(kind string, o []byte) {
	b := done(0, struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}{kind, o}).json
	w.mu.Lock()
	defer w.mu.Unlock()
	w.more.Write(b)
	w.more.WriteByte('\n')
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Read implements [io.Reader]: it waits for the next change.
func (w *watcher) Read(p []byte) (int, error) {
	for {
		w.mu.Lock()
		if w.more.Len() > 0 {
			defer w.mu.Unlock()
			return w.more.Read(p)
		}
		w.mu.Unlock()
		select {
		case <-w.wake:
		case <-w.ctx.Done():
			return 0, io.EOF
		}
	}
}

// Close implements [io.Closer].
func (w *watcher) Close() error {
	w.end()
	return nil
}
