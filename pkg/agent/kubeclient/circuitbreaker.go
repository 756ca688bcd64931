package kubeclient

import (
	"context"
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

// An API that does not answer, as an aggregated one whose server hangs, must not hold up
// all other requests. So of requests with one verb for objects of one kind only a
// few may be unanswered for long. Further ones are not sent: they wait in line, and their works are
// called as answers come. Where only slow answers come, as through a webhook that takes its time
// and allows everything, more and more are let go at a time. After a request that failed after a
// long time, or was answered after longestAnswer, the kind is left alone for a while.
const (
	// longRequest is since when a request counts as one that takes long. firstLong of those may be
	// unanswered, and one more for each answer, up to mostLong.
	longRequest = 2 * time.Second
	firstLong   = 2
	mostLong    = 10
	// letGo is how many works are called when an answer comes.
	letGo = 2
	// After a request that failed and took timeoutTime a kind is left alone for restTime, and then
	// firstLong requests try. So it is after one that took longer than longestAnswer, which is more than
	// a server gives any webhook.
	timeoutTime   = 10 * time.Second
	longestAnswer = 35 * time.Second
	restTime      = 15 * time.Second
	// kindsPatience is how long somebody waits to hear which kinds there are in a group.
	kindsPatience = 5 * time.Second
)

// SlowError says that the cluster was not asked, because it takes long to answer such requests. It
// says nothing about the object.
type SlowError struct {
	// What is the resource that was asked for.
	What string
	// Fails: such requests failed, or have no answer. Otherwise they take turns.
	Fails bool
}

func (e *SlowError) Error() string {
	if e.Fails {
		return fmt.Sprintf("the cluster takes long to answer for %s: it is asked again in a while", e.What)
	}
	return fmt.Sprintf("the cluster takes long to answer for %s: others are asked for first", e.What)
}

// circuitBreaker holds back requests for kinds whose objects the cluster does not tell of. It knows
// requests by their paths, because what waits for the limit of requests waits before it.
type circuitBreaker struct {
	next http.RoundTripper
	now  func() time.Time

	mu    sync.Mutex
	kinds map[question]*answers
}

// question is the kind and the verb of a request: those with the same are answered alike.
type question struct {
	kind schema.GroupResource
	verb string
}

// answers is how a question is answered.
type answers struct {
	// unanswered are the requests under way, and when they began; room is how many of them may
	// take long.
	unanswered map[*http.Request]time.Time
	capacity   int
	// rests is until when no request is sent. It is zero once something was answered.
	rests time.Time
	// queue are those that wait, in order, and called those of them that may go.
	queue  []*Progress
	called map[string]bool
}

func newBreaker(next http.RoundTripper) http.RoundTripper {
	return &circuitBreaker{next: next, now: time.Now, kinds: map[question]*answers{}}
}

// RoundTrip implements http.RoundTripper.
func (b *circuitBreaker) RoundTrip(req *http.Request) (*http.Response, error) {
	kind, object, counts := requested(req)
	if !counts {
		return b.next.RoundTrip(req)
	}
	q := question{kind, req.Method}
	if err := b.begin(q, req); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // as every RoundTripper must; nothing was read of it
		}
		return nil, err
	}
	defer note(req.Context(), strings.ToLower(req.Method)+" "+kind.String()+" "+object)()
	res, err := b.next.RoundTrip(req)
	for _, p := range b.end(q, req, err != nil || res.StatusCode >= http.StatusInternalServerError) {
		p.Wait()
	}
	return res, err
}

func (b *circuitBreaker) begin(q question, req *http.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.kinds[q]
	if a == nil {
		a = &answers{unanswered: map[*http.Request]time.Time{}, capacity: firstLong, called: map[string]bool{}}
		b.kinds[q] = a
	}
	now, p := b.now(), progressOf(req.Context())
	if goes, fails := a.admit(p, now); !goes {
		return &SlowError{What: q.kind.String(), Fails: fails}
	}
	a.unanswered[req] = now
	return nil
}

// admit reports whether a request of p may be sent now; if not, it waits in line. fails says
// that those before it fail. p may be nil.
func (a *answers) admit(p *Progress, now time.Time) (goes, fails bool) {
	long, lost := a.weigh(now)
	goes = long < a.capacity && !now.Before(a.rests)
	if p == nil || p.Wait == nil {
		return goes, lost
	}
	called := a.called[p.Key]
	delete(a.called, p.Key)
	behind := !lost && len(a.queue) > 0 && len(a.unanswered) > 0 && !called // else no answer may call anything
	goes = goes && !behind
	a.enqueue(p, goes, called)
	return goes, lost
}

// weigh returns how many unanswered requests count as long, and whether their answers may never come.
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

// enqueue gives p its place in line, the first if it was called before, or takes it out if it goes.
func (a *answers) enqueue(p *Progress, goes, called bool) {
	at := slices.IndexFunc(a.queue, func(w *Progress) bool { return w.Key == p.Key })
	switch {
	case goes && at >= 0:
		a.queue = slices.Delete(a.queue, at, at+1)
	case goes:
	case at >= 0:
		a.queue[at] = p // its place stays
	case called:
		a.queue = slices.Insert(a.queue, 0, p)
	default:
		a.queue = append(a.queue, p)
	}
}

// end notes an answer, and returns those whose turn it is.
func (b *circuitBreaker) end(q question, req *http.Request, failed bool) (next []*Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, now := b.kinds[q], b.now()
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
		n = a.capacity // no other answer will call them
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
type Progress struct {
	waits atomic.Pointer[string]
	// Key is the same for all that ask for one thing. Turn is called when a request that was
	// not sent because others came first can be sent. It must not block; nil: nothing is called.
	Key  string
	Wait func()
}

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

func progressOf(ctx context.Context) *Progress {
	p, _ := ctx.Value(progressKey{}).(*Progress)
	return p
}

// note has the Progress of ctx tell of a request until it is over. Of several at a time it
// tells of the last.
func note(ctx context.Context, request string) (over func()) {
	p := progressOf(ctx)
	if p == nil {
		return func() {}
	}
	p.waits.Store(&request)
	return func() { p.waits.CompareAndSwap(&request, nil) }
}
