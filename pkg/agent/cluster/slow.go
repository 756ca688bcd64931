package cluster

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// An API that does not answer, as an aggregated one whose server hangs, must not keep everybody
// waiting who wants something else. Of requests for objects of one kind only a few may be
// unanswered for long; after one that failed after a long time, the kind is left alone for a
// while. Who asks then is refused at once.
const (
	// longRequest is since when a request counts as one that takes long, mostLong how many of
	// those there may be of one kind.
	longRequest = 2 * time.Second
	mostLong    = 2
	// After a request that failed and took lostTime a kind is left alone for restTime.
	lostTime = 10 * time.Second
	restTime = 15 * time.Second
	// kindsPatience is how long somebody waits to hear which kinds there are in a group.
	kindsPatience = 5 * time.Second
)

// SlowError says that the cluster was not asked, because it does not answer such requests.
type SlowError struct {
	// What is the resource that was asked for.
	What string
}

func (e *SlowError) Error() string {
	return fmt.Sprintf("the cluster takes long to answer for %s: it is asked again in a while", e.What)
}

// breaker refuses requests for kinds whose objects the cluster does not tell of. It knows
// requests by their paths, because what waits for the limit of requests waits before it.
type breaker struct {
	next http.RoundTripper
	now  func() time.Time

	mu    sync.Mutex
	kinds map[schema.GroupResource]*answers
}

// answers is how a kind is answered for.
type answers struct {
	// unanswered are the requests under way, and when they began.
	unanswered map[*http.Request]time.Time
	// rests is until when nobody asks.
	rests time.Time
}

func newBreaker(next http.RoundTripper) http.RoundTripper {
	return &breaker{next: next, now: time.Now, kinds: map[schema.GroupResource]*answers{}}
}

// RoundTrip implements http.RoundTripper.
func (b *breaker) RoundTrip(req *http.Request) (*http.Response, error) {
	kind, object, counts := requested(req)
	if !counts {
		return b.next.RoundTrip(req)
	}
	if err := b.begin(kind, req); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // as every RoundTripper must; nothing was read of it
		}
		return nil, err
	}
	defer note(req.Context(), strings.ToLower(req.Method)+" "+kind.String()+" "+object)()
	res, err := b.next.RoundTrip(req)
	b.end(kind, req, err != nil || res.StatusCode >= http.StatusInternalServerError)
	return res, err
}

func (b *breaker) begin(kind schema.GroupResource, req *http.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, now, long := b.kinds[kind], b.now(), 0
	if a == nil {
		a = &answers{unanswered: map[*http.Request]time.Time{}}
		b.kinds[kind] = a
	}
	for _, begun := range a.unanswered {
		if now.Sub(begun) >= longRequest {
			long++
		}
	}
	if long >= mostLong || now.Before(a.rests) {
		return &SlowError{What: kind.String()}
	}
	a.unanswered[req] = now
	return nil
}

func (b *breaker) end(kind schema.GroupResource, req *http.Request, failed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, now := b.kinds[kind], b.now()
	if failed && now.Sub(a.unanswered[req]) >= lostTime {
		a.rests = now.Add(restTime)
	}
	if delete(a.unanswered, req); len(a.unanswered) == 0 && !now.Before(a.rests) {
		delete(b.kinds, kind)
	}
}

// requested returns which object a request is about. Lists and watches do not count, they may
// take long; nor do AppliedManifestWorks, without which nothing is done anyway.
func requested(req *http.Request) (kind schema.GroupResource, object string, counts bool) {
	_, path, core := strings.Cut(req.URL.Path, "/api/v1/")
	if !core {
		_, path, _ = strings.Cut(req.URL.Path, "/apis/")
		kind.Group, path, _ = strings.Cut(path, "/")
		_, path, _ = strings.Cut(path, "/") // the version
	}
	parts := strings.Split(path, "/")
	if len(parts) > 2 && parts[0] == "namespaces" {
		object, parts = parts[1]+"/", parts[2:]
	}
	if kind.Resource = parts[0]; len(parts) > 1 {
		object += parts[1]
	}
	return kind, object, kind.Resource != "" && kind.Group != workv1.GroupName && (len(parts) > 1 || req.Method == http.MethodPost)
}

// Progress tells for what answer of the cluster somebody waits. The zero value is ready.
type Progress struct{ waits atomic.Pointer[string] }

// Waits returns the request that is under way, "" if there is none.
func (p *Progress) Waits() string {
	if w := p.waits.Load(); w != nil {
		return *w
	}
	return ""
}

type progressKey struct{}

// WithProgress returns a context whose requests p tells of.
func WithProgress(ctx context.Context, p *Progress) context.Context {
	return context.WithValue(ctx, progressKey{}, p)
}

// note has the Progress of ctx tell of a request until it is over. Of several at a time it
// tells of the last.
func note(ctx context.Context, request string) (over func()) {
	p, _ := ctx.Value(progressKey{}).(*Progress)
	if p == nil {
		return func() {}
	}
	p.waits.Store(&request)
	return func() { p.waits.CompareAndSwap(&request, nil) }
}
