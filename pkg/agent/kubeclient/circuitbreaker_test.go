package kubeclient

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRequested(t *testing.T) {
	for path, want := range map[string]string{
		"GET /api/v1/namespaces/n/configmaps/a":                        "configmaps n/a",
		"GET /api/v1/namespaces/n":                                     "namespaces n",
		"POST /api/v1/namespaces":                                      "namespaces ",
		"PATCH /prefix/apis/apps/v1/namespaces/n/deployments/d/status": "deployments.apps n/d",
		"POST /apis/apps/v1/namespaces/n/deployments":                  "deployments.apps n/",
		"POST /apis/authorization.k8s.io/v1/subjectaccessreviews":      "subjectaccessreviews.authorization.k8s.io ",
		"GET /apis/apps/v1/namespaces/n/deployments":                   "",
		"GET /apis/apps/v1/deployments":                                "",
		"GET /apis/apps/v1":                                            "",
		"GET /apis/apps":                                               "",
		"GET /version":                                                 "",
		"PATCH /apis/work.open-cluster-management.io/v1/appliedmanifestworks/hash-name": "",
	} {
		method, path, _ := strings.Cut(path, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, "https://c"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if kind, object, counts := requested(req); counts {
			got = kind.String() + " " + object
		}
		if got != want {
			t.Errorf("%s %s: got %q, want %q", method, path, got, want)
		}
	}
}

// server answers requests for Deployments when free is closed, and all others at once.
type server struct {
	free     chan struct{}
	status   int
	requests int
}

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	if kind, _, _ := requested(req); kind.Resource == "deployments" {
		s.requests++
		select {
		case <-s.free:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
		return &http.Response{StatusCode: s.status, Body: http.NoBody}, nil
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestCircuitBreaker_SkipsUnresponsiveKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{free: make(chan struct{}), status: http.StatusGatewayTimeout}
		b := newBreaker(DefaultInFlight)(s)
		request := func(path string) error {
			var p Progress
			req, err := http.NewRequestWithContext(WithProgress(t.Context(), &p), http.MethodGet, "https://c"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer := make(chan error, 1)
			go func() {
				res, err := b.RoundTrip(req)
				if err == nil {
					err = res.Body.Close()
				}
				answer <- err
			}()
			synctest.Wait()
			select {
			case err := <-answer:
				return err
			default:
				if p.Request() != "get deployments.apps n/d" {
					t.Errorf("it waits for %q", p.Request())
				}
				return errWaits
			}
		}
		const deployment = "/apis/apps/v1/namespaces/n/deployments/d"
		for range 3 {
			if err := request(deployment); !errors.Is(err, errWaits) {
				t.Fatal(err)
			}
		}
		<-time.After(longRequest)
		var slow *SlowError
		if err := request(deployment); !errors.As(err, &slow) || slow.What != "deployments.apps" || slow.Fails {
			t.Errorf("one more: %v", err)
		}
		for _, other := range []string{"/apis/apps/v1/namespaces/n/replicasets/r", "/api/v1/namespaces/n/configmaps/a"} {
			if err := request(other); err != nil {
				t.Errorf("%s: %v", other, err)
			}
		}
		<-time.After(timeoutTime)
		close(s.free) // the requests fail after a long time
		synctest.Wait()
		before := s.requests
		if err := request(deployment); !errors.As(err, &slow) || !slow.Fails || s.requests != before {
			t.Errorf("after a failure: %v", err)
		}
		<-time.After(restTime)
		s.status = http.StatusOK
		if err := request(deployment); err != nil || len(b.(*circuitBreaker).kinds) != 0 {
			t.Errorf("after a rest: %v, and of %d kinds something is remembered", err, len(b.(*circuitBreaker).kinds))
		}
	})
}

// slowly answers each POST after four seconds and all other requests at once.
type slowly struct{}

func (b *circuitBreaker) remembered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.kinds)
}

func (slowly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPost {
		<-time.After(4 * time.Second)
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// If answers are slow but arrive, requests are queued, woken in order, and soon complete. Other verbs do not
// wait for them.
func TestCircuitBreaker_SlowAnswersAlternate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const works, workers = 150, 10
		b := newBreaker(DefaultInFlight)(slowly{})
		begun, queue := time.Now(), make(chan int, 20*works)
		var called atomic.Int32
		var done sync.WaitGroup
		request := func(i int, method string) error {
			p := &Progress{Key: strconv.Itoa(i), Wait: func() { called.Add(1); queue <- i }}
			req, err := http.NewRequestWithContext(WithProgress(t.Context(), p), method, "https://c/api/v1/namespaces/n/configmaps/a", nil)
			if err != nil {
				return err
			}
			res, err := b.RoundTrip(req)
			if err != nil {
				return err
			}
			return res.Body.Close()
		}
		for i := range works {
			queue <- i
		}
		done.Add(works)
		for range 4 * workers { // slow works continue in overflow slots, so there are more than the workers
			go func() {
				for i := range queue {
					var slow *SlowError
					if err := request(i, http.MethodPost); err == nil {
						done.Done()
					} else if !errors.As(err, &slow) || slow.Fails {
						t.Errorf("work %d: %v", i, err)
					}
				}
			}()
		}
		go func() {
			for range 30 {
				<-time.After(time.Second)
				if err := request(-1, http.MethodGet); err != nil {
					t.Errorf("a read: %v", err)
				}
			}
		}()
		done.Wait()
		if took := time.Since(begun); took > works/workers*4*time.Second || called.Load() == 0 {
			t.Errorf("it took %v, %d were called", took, called.Load())
		}
		close(queue)
		<-time.After(time.Minute)
		synctest.Wait()
		if n := b.(*circuitBreaker).remembered(); n != 0 {
			t.Errorf("of %d kinds something is remembered", n)
		}
	})
}

// Only woken requests are sent before other queued ones, and a queued request keeps its position.
func TestAnswers_Queue(t *testing.T) {
	now := time.Now()
	wait := func(key string) *Progress { return &Progress{Key: key, Wait: func() {}} }
	old := &http.Request{}
	a := &answers{unanswered: map[*http.Request]time.Time{old: now.Add(-longRequest)}, capacity: 1, called: map[string]bool{}}
	for _, key := range []string{"a", "b", "a", "c"} {
		if goes, fails := a.admit(wait(key), now); goes || fails {
			t.Errorf("%s: goes %v, fails %v", key, goes, fails)
		}
	}
	if goes, _ := a.admit(nil, now); goes {
		t.Error("a request was sent without admission")
	}
	a.called["c"], a.queue = true, a.queue[:2]
	if goes, _ := a.admit(wait("c"), now); goes || a.queue[0].Key != "c" {
		t.Errorf("the one that was called is not the first: %v", a.queue)
	}
	a.capacity = 2
	if goes, _ := a.admit(wait("d"), now); goes {
		t.Error("d goes before those that wait")
	}
	a.called["b"] = true
	if goes, _ := a.admit(wait("b"), now); !goes || len(a.queue) != 3 {
		t.Errorf("b goes: %v, line %v", goes, a.queue)
	}
	a.unanswered[old] = now.Add(-longestAnswer)
	if goes, fails := a.admit(wait("d"), now); !goes || !fails {
		t.Errorf("an answer that may never come: goes %v, fails %v", goes, fails)
	}
}

var errWaits = errors.New("it waits")

// A group whose kinds are not answered delays no caller longer than kindsPatience, and later callers not at
// all.
func TestDiscoveryCache_UnansweredGroupBlocksNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, d, _ := newTestKinds()
		k.now = time.Now
		d.block = make(chan struct{})
		gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Rope"}
		for _, want := range []time.Duration{kindsPatience, 0} {
			began := time.Now()
			_, err := k.resolve(t.Context(), gvk)
			var slow *SlowError
			if took := time.Since(began); !errors.As(err, &slow) || took != want {
				t.Errorf("got %v after %v, want it after %v", err, took, want)
			}
		}
		close(d.block)
		synctest.Wait()
		var unknown *NoKindError
		if _, err := k.resolve(context.Background(), gvk); !errors.As(err, &unknown) {
			t.Errorf("when it is answered: %v", err)
		}
	})
}
