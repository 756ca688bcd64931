package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// An API without answers, such as an aggregated one whose server hangs, must not block other requests.
// Therefore only a few requests per verb and kind may be unanswered for long. Further ones are not sent: they
// wait in a queue, and their works are woken as answers arrive. If all answers are slow, as with a slow webhook
// that allows everything, more and more requests may run at a time. After a request that failed late, or took
// longer than longestAnswer, no request of the kind is sent for a while.
const (
	// longRequest is the time after which an unanswered request counts as long. firstLong of those are allowed, and
	// one more for each slow answer, up to mostLong.
	longRequest = 2 * time.Second
	firstLong   = 2
	mostLong    = 10
	// letGo is the number of works that one answer wakes.
	letGo = 2
	// After a request that failed and took timeoutTime, no request of the kind is sent for restTime; then firstLong
	// requests try. The same applies after a request that took longer than longestAnswer, which exceeds the longest
	// timeout of any webhook.
	timeoutTime   = 10 * time.Second
	longestAnswer = 35 * time.Second
	restTime      = 15 * time.Second
	// kindsPatience bounds the wait for the list of kinds of a group.
	kindsPatience = 5 * time.Second
)

// SlowError means that a request was not sent, because the cluster answers such requests slowly. It proves
// nothing about the object.
type SlowError struct {
	// What is the requested resource.
	What string
	// Fails: such requests failed or have no answer. If false, they are queued behind others.
	Fails bool
}

// Error names the resource and when the request is tried again.
func (e *SlowError) Error() string {
	if e.Fails {
		return fmt.Sprintf("the cluster answers slowly for %s: the request is retried later", e.What)
	}
	return fmt.Sprintf("the cluster answers slowly for %s: earlier requests come first", e.What)
}

// circuitBreaker holds back requests for kinds that the cluster does not answer, and sends the others through a
// gate. It is an http.RoundTripper and identifies requests by their paths: a request that waits for the rate limit
// of client-go has not reached it yet.
type circuitBreaker struct {
	next http.RoundTripper
	now  func() time.Time
	gate *gate

	mu    sync.Mutex
	kinds map[question]*answers
}

// question is the kind and verb of a request. Requests with the same question are expected to be answered
// alike.
type question struct {
	kind schema.GroupResource
	verb string
}

// answers is the state of the requests with one question.
type answers struct {
	// unanswered has the requests in flight and their start times. capacity is the number of them that may be long.
	unanswered map[*http.Request]time.Time
	capacity   int
	// rests is the time until which no request is sent. It is zero after a successful answer.
	rests time.Time
	// queue has the waiting requests, in order. called has those of them that were woken and may be sent.
	queue  []*Progress
	called map[string]bool
}

// newBreaker returns a function that wraps a RoundTripper. inFlight is the limit of all requests in flight.
func newBreaker(inFlight int) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return &circuitBreaker{next: next, now: time.Now, gate: newGate(inFlight), kinds: map[question]*answers{}}
	}
}

// RoundTrip implements http.RoundTripper.
func (b *circuitBreaker) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.Contains(req.URL.RawQuery, "watch=true") {
		return b.next.RoundTrip(req) // it stays open, and the server limits only its begin
	}
	kind, object, counts := requested(req)
	q := question{kind, req.Method}
	if !counts {
		if req.Method == http.MethodGet {
			q.verb = "LIST"
		}
		return b.send(q, req, nil)
	}
	if err := b.mayGo(q, req); err != nil {
		return nil, unsent(req, err)
	}
	defer note(req.Context(), strings.ToLower(req.Method)+" "+kind.String()+" "+object)()
	return b.send(q, req, func() error { return b.stalled(q, req) })
}

// send sends a request when the gate lets it pass. If stalled is not nil, the request is recorded as one that
// needs an answer, and stalled returns why it is given up.
func (b *circuitBreaker) send(q question, req *http.Request, stalled func() error) (*http.Response, error) {
	var why error
	var isStalled func() bool
	if stalled != nil {
		isStalled = func() bool { why = stalled(); return why != nil }
	}
	number, err := b.gate.enter(req.Context(), q, isStalled)
	if err != nil {
		if errors.Is(err, errStalled) {
			err = why
		}
		return nil, unsent(req, err)
	}
	begun := b.now()
	if stalled != nil {
		b.begin(q, req, begun)
	}
	res, err := b.next.RoundTrip(req)
	b.gate.leave(q, number, outcomeOf(res, err, b.now().Sub(begun)))
	if stalled != nil {
		for _, p := range b.end(q, req, err != nil || res.StatusCode >= http.StatusInternalServerError) {
			p.Wait()
		}
	}
	return res, err
}

// unsent closes the body of a request that was not sent, as every RoundTripper must. It returns err.
func unsent(req *http.Request, err error) error {
	if req.Body != nil {
		_ = req.Body.Close() // nothing was read
	}
	return err
}

// mayGo returns why a request may not be sent now; nil if it may.
func (b *circuitBreaker) mayGo(q question, req *http.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if goes, fails := b.of(q).admit(progressOf(req.Context()), b.now()); !goes {
		return &SlowError{What: q.kind.String(), Fails: fails}
	}
	return nil
}

// stalled is mayGo for a request that waits at the gate. It has its turn, so it is held back only while the
// requests before it are long.
func (b *circuitBreaker) stalled(q question, req *http.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, now := b.of(q), b.now()
	long, lost := a.weigh(now)
	if long < a.capacity && !now.Before(a.rests) {
		return nil
	}
	if p := progressOf(req.Context()); p != nil && p.Wait != nil {
		a.enqueue(p, false, false)
	}
	return &SlowError{What: q.kind.String(), Fails: lost}
}

// begin records that a request is sent.
func (b *circuitBreaker) begin(q question, req *http.Request, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(q).unanswered[req] = now
}

// of returns the state of the requests with one question. b.mu is held.
func (b *circuitBreaker) of(q question) *answers {
	a := b.kinds[q]
	if a == nil {
		a = &answers{unanswered: map[*http.Request]time.Time{}, capacity: firstLong, called: map[string]bool{}}
		b.kinds[q] = a
	}
	return a
}

// admit reports whether a request of p may be sent now; if not, p is queued. fails: earlier requests fail. p
// may be nil.
func (a *answers) admit(p *Progress, now time.Time) (goes, fails bool) {
	long, lost := a.weigh(now)
	goes = long < a.capacity && !now.Before(a.rests)
	if p == nil || p.Wait == nil {
		return goes, lost
	}
	called := a.called[p.Key]
	delete(a.called, p.Key)
	behind := !lost && len(a.queue) > 0 && len(a.unanswered) > 0 && !called // otherwise no answer may wake it
	goes = goes && !behind
	a.enqueue(p, goes, called)
	return goes, lost
}

// weigh returns how many unanswered requests count as long, and whether their answers may never arrive.
func (a *answers) weigh(now time.Time) (long int, lost bool) {
	lost = !a.rests.IsZero()
	for _, begun := range a.unanswered {
		took := now.Sub(begun)
		if took >= longRequest || !a.rests.IsZero() {
			long++
		}
		lost = lost || took >= longestAnswer
	}
	return long, lost
}

// enqueue queues p, at the front if it was woken before. It removes p from the queue if its request is sent.
func (a *answers) enqueue(p *Progress, goes, called bool) {
	at := slices.IndexFunc(a.queue, func(w *Progress) bool { return w.Key == p.Key })
	switch {
	case goes && at >= 0:
		a.queue = slices.Delete(a.queue, at, at+1)
	case goes:
	case at >= 0:
		a.queue[at] = p // a queued caller keeps its position
	case called:
		a.queue = slices.Insert(a.queue, 0, p)
	default:
		a.queue = append(a.queue, p)
	}
}

// end records an answer. It returns the queued requests to wake.
func (b *circuitBreaker) end(q question, req *http.Request, failed bool) (next []*Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, now := b.of(q), b.now()
	took := now.Sub(a.unanswered[req])
	delete(a.unanswered, req)
	switch {
	case failed && took >= timeoutTime, took >= longestAnswer:
		a.rests, a.capacity = now.Add(restTime), firstLong
		return nil
	case !failed && took >= longRequest:
		a.capacity = min(a.capacity+1, mostLong)
	}
	n := letGo
	if len(a.unanswered) == 0 {
		n = a.capacity // no other answer will wake them
	}
	if !failed {
		a.rests = time.Time{}
	}
	if !now.Before(a.rests) {
		n = min(n, len(a.queue))
		next, a.queue = slices.Clone(a.queue[:n]), slices.Delete(a.queue, 0, n)
	}
	for _, p := range next {
		a.called[p.Key] = true
	}
	if len(a.unanswered) == 0 && len(a.queue) == 0 && !now.Before(a.rests) {
		delete(b.kinds, q)
	}
	return next
}

// requested returns the object of a request. counts is false for lists and watches, which may take long, and
// for AppliedManifestWorks, without which nothing is done.
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

// Progress shows which answer of the cluster a caller waits for. The zero value is ready.
type Progress struct {
	waits atomic.Pointer[string]
	// Key identifies the caller. Wait is called when a request that was queued behind others can be sent. It must
	// not block; nil: nothing is called.
	Key  string
	Wait func()
}

// Request returns the request in flight, "" if there is none.
func (p *Progress) Request() string {
	if w := p.waits.Load(); w != nil {
		return *w
	}
	return ""
}

type progressKey struct{}

// WithProgress returns a context whose requests are shown in p.
func WithProgress(ctx context.Context, p *Progress) context.Context {
	return context.WithValue(ctx, progressKey{}, p)
}

func progressOf(ctx context.Context) *Progress {
	p, _ := ctx.Value(progressKey{}).(*Progress)
	return p
}

// note shows a request in the Progress of ctx until over is called. Of several concurrent ones it shows the
// last.
func note(ctx context.Context, request string) (over func()) {
	p := progressOf(ctx)
	if p == nil {
		return func() {}
	}
	p.waits.Store(&request)
	return func() { p.waits.CompareAndSwap(&request, nil) }
}
