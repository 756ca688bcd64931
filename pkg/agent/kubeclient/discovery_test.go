package kubeclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// discovery is a server's discovery endpoint: path → answer.
type discovery struct {
	mu        sync.Mutex
	answers   map[string]any
	requested []string
	block     chan struct{}
	entered   chan struct{} // receives a value per request, if there is room
}

func (d *discovery) fetch(_ context.Context, path string, into any) error {
	d.mu.Lock()
	d.requested = append(d.requested, path)
	a, ok := d.answers[path]
	block := d.block
	d.mu.Unlock()
	select {
	case d.entered <- struct{}{}:
	default:
	}
	if block != nil {
		<-block
	}
	if !ok {
		return apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{}, "", "404 page not found", 0, true)
	}
	switch into := into.(type) {
	case *metav1.APIResourceList:
		*into = a.(metav1.APIResourceList)
	case *metav1.APIGroup:
		*into = a.(metav1.APIGroup)
	default:
		return fmt.Errorf("unexpected %T", into)
	}
	return nil
}

func (d *discovery) set(path string, a any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[path] = a
}

func (d *discovery) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.requested)
}

func newTestKinds() (*discoveryCache, *discovery, *time.Time) {
	d := &discovery{answers: map[string]any{}, entered: make(chan struct{}, 1)}
	now := time.Unix(1000, 0)
	return &discoveryCache{fetch: d.fetch, now: func() time.Time { return now }, known: map[schema.GroupVersion]versionKinds{}, requestedAt: map[schema.GroupVersion]time.Time{}}, d, &now
}

var ropeList = metav1.APIResourceList{APIResources: []metav1.APIResource{
	{Name: "ropes", Kind: "Rope", Namespaced: true},
	{Name: "ropes/status", Kind: "Rope", Namespaced: true},
	{Name: "knots", Kind: "Knot"},
}}

func TestDiscoveryCache_QueriesEachVersionOnce(t *testing.T) {
	k, d, now := newTestKinds()
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	missing := func(kind string) {
		t.Helper()
		var e *NoKindError
		if _, err := k.resolve(t.Context(), gv.WithKind(kind)); !errors.As(err, &e) {
			t.Fatalf("got %v, want NoKindError", err)
		}
	}
	for range 3 {
		missing("Rope")
	}
	if d.count() != 1 {
		t.Fatalf("%d requests within %v, want one", d.count(), retryAfter)
	}
	d.set("/apis/example.com/v1", ropeList)
	*now = now.Add(retryAfter)
	r, err := k.resolve(t.Context(), gv.WithKind("Rope"))
	if want := (Resource{GroupVersionResource: gv.WithResource("ropes"), Kind: "Rope", Namespaced: true}); err != nil || r != want {
		t.Fatalf("got %+v, %v; want %+v", r, err, want)
	}
	*now = now.Add(time.Hour)
	if r, err = k.resolve(t.Context(), gv.WithKind("Knot")); err != nil || r.Namespaced || d.count() != 2 {
		t.Fatalf("got %+v, %v after %d questions; want a known kind of the cluster without another", r, err, d.count())
	}
	missing("Splice")
	missing("Splice")
	if d.count() != 3 {
		t.Fatalf("%d requests, want one more for a missing kind", d.count())
	}
}

func TestDiscoveryCache_InventedGroupsDoNotFillTheMemory(t *testing.T) {
	k, _, now := newTestKinds()
	for i := range 100 {
		gv := schema.GroupVersion{Group: fmt.Sprintf("g%d.example.com", i), Version: "v1"}
		if _, err := k.resolve(t.Context(), gv.WithKind("Rope")); err == nil {
			t.Fatal("resolved")
		}
		*now = now.Add(retryAfter)
	}
	if len(k.known) > 1 {
		t.Fatalf("%d groups are remembered", len(k.known))
	}
}

func TestDiscoveryCache_SharesConcurrentQueries(t *testing.T) {
	k, d, _ := newTestKinds()
	d.set("/api/v1", metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "pods", Kind: "Pod", Namespaced: true}}})
	d.block = make(chan struct{})
	gvk := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}

	impatient, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := k.resolve(impatient, gvk); first <- err }()
	<-d.entered
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want the caller to give up", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := k.resolve(t.Context(), gvk); err != nil {
				t.Error(err)
			}
		})
	}
	close(d.block)
	wg.Wait()
	if n := d.count(); n > 2 {
		t.Fatalf("%d requests", n)
	}
}

func TestDiscoveryCache_LocatePrefersTheServersVersion(t *testing.T) {
	k, d, _ := newTestKinds()
	d.set("/apis/example.com", metav1.APIGroup{
		Name:             "example.com",
		Versions:         []metav1.GroupVersionForDiscovery{{Version: "v2alpha1"}, {Version: "v1"}, {Version: "v1beta1"}},
		PreferredVersion: metav1.GroupVersionForDiscovery{Version: "v1"},
	})
	d.set("/apis/example.com/v2alpha1", metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "splices", Kind: "Splice"}}})
	d.set("/apis/example.com/v1", ropeList)
	d.set("/apis/example.com/v1beta1", ropeList)
	for resource, version := range map[string]string{"ropes": "v1", "splices": "v2alpha1"} {
		if r, err := k.locate(t.Context(), schema.GroupResource{Group: "example.com", Resource: resource}); err != nil || r.Version != version {
			t.Errorf("%s: got %+v, %v; want %s", resource, r, err, version)
		}
	}
	var e *NotServedError
	for _, gr := range []schema.GroupResource{{Group: "example.com", Resource: "none"}, {Group: "none", Resource: "ropes"}} {
		if _, err := k.locate(t.Context(), gr); !errors.As(err, &e) {
			t.Errorf("%v: got %v, want NotServedError", gr, err)
		}
	}
}
