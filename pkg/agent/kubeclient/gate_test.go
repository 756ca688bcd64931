package kubeclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

func questionOf(resource string) question {
	return question{schema.GroupResource{Resource: resource}, http.MethodPost}
}

// try enters the gate as often as possible, and returns how often.
func try(t *testing.T, g *gate, q question) (entered int) {
	t.Helper()
	for {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.enter(ctx, q, nil); err != nil {
			return entered
		}
		entered++
	}
}

// TestGate_LeavesSlotsToOthers: requests that are not answered take at most their share.
func TestGate_LeavesSlotsToOthers(t *testing.T) {
	g := newGate(DefaultInFlight)
	for _, q := range []string{"a", "b", "c", "d"} {
		w := newWindow(g.most)
		w.limit = w.most
		g.windows[questionOf(q)] = w
	}
	for _, c := range []struct {
		resource string
		want     int
	}{{"a", 15}, {"b", 4}, {"c", 1}, {"d", 0}} {
		if n := try(t, g, questionOf(c.resource)); n != c.want {
			t.Errorf("%s: %d requests, want %d", c.resource, n, c.want)
		}
	}
	g.leave(questionOf("a"), 1, answered)
	if n := try(t, g, questionOf("d")); n != 1 {
		t.Errorf("a freed slot: %d requests of another kind", n)
	}
}

func TestGate_WaitsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		a, b := questionOf("a"), questionOf("b")
		number, err := g.enter(t.Context(), a, nil)
		if err != nil {
			t.Fatal(err)
		}
		canceled, cancel := context.WithCancel(t.Context())
		first, second, third := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		enter := func(ctx context.Context, answer chan<- error, stalled func() bool) {
			go func() { _, err := g.enter(ctx, b, stalled); answer <- err }()
			synctest.Wait()
		}
		enter(canceled, first, nil)
		enter(t.Context(), second, func() bool { return false })
		enter(t.Context(), third, func() bool { return true })
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
		began := time.Now()
		if err := <-third; !errors.Is(err, errStalled) || time.Since(began) != longRequest {
			t.Errorf("stalled: %v after %v", err, time.Since(began))
		}
		g.leave(a, number, answered)
		if err := <-second; err != nil {
			t.Error(err)
		}
		if g.inFlight != 1 || len(g.waiting) != 0 {
			t.Errorf("%d in flight, %d wait", g.inFlight, len(g.waiting))
		}
	})
}

// apf is a kube-apiserver that rejects requests for ConfigMaps beyond three at a time, as API Priority and
// Fairness does. client-go repeats them without its caller.
type apf struct {
	mu            sync.Mutex
	serving, most int           // ConfigMaps
	rejected      chan struct{} // one item per rejected request
	release       chan struct{} // closed when ConfigMaps may be answered
}

func (s *apf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "/secrets") {
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Secret"}`)
		return
	}
	full := s.count(1) > 3
	defer s.count(-1)
	if full {
		s.rejected <- struct{}{}
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	<-s.release
	_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"ConfigMap"}`)
}

func (s *apf) count(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving += n
	s.most = max(s.most, s.serving)
	return s.serving
}

// TestKube_SlowsDownOneKind: the window of a rejected kind shrinks, also for the attempts that client-go hides.
func TestKube_SlowsDownOneKind(t *testing.T) {
	s := &apf{rejected: make(chan struct{}, 1000), release: make(chan struct{})}
	srv := httptest.NewServer(s)
	defer srv.Close()
	k, err := NewKube(KubeConfig{REST: &rest.Config{Host: srv.URL}})
	if err != nil {
		t.Fatal(err)
	}
	create := func(resource string) {
		gvr := schema.GroupVersionResource{Version: "v1", Resource: resource}
		if _, err := k.Create(t.Context(), gvr, configMapNamed("a")); err != nil {
			t.Error(err)
		}
	}
	var done sync.WaitGroup
	for range 40 {
		done.Go(func() { create("configmaps") })
	}
	<-s.rejected
	for range 100 { // while no ConfigMap is answered
		create("secrets")
	}
	s.mu.Lock()
	if s.most > firstWindow || len(s.rejected) > 0 {
		t.Errorf("%d ConfigMaps at a time, %d more rejections, although the window is full", s.most, len(s.rejected))
	}
	s.mu.Unlock()
	close(s.release)
	done.Wait()
}

func configMapNamed(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "n"}}}
}
