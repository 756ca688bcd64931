package drift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hawser-io/hawser/internal/testkit/complexity"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// crowd is a scope with many objects, each with a kilobyte of metadata. The server stores none: they are
// generated on request. Its watch delivers all of them again, then a bookmark.
type crowd struct {
	objects int
	quiet   chan struct{} // closed when the watch has delivered everything
	watches atomic.Int32
}

func (c *crowd) object(i int) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: crowded(i).Name, Namespace: crowded(i).Namespace, UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)), ResourceVersion: strconv.Itoa(i + 1),
		Annotations: map[string]string{"a": strings.Repeat("x", 1000)},
	}}
}

// crowded names object i.
func crowded(i int) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: configMaps, Namespace: "crowded", Name: fmt.Sprintf("object-%06d", i)}
}

func (c *crowd) List(_ context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	from, _ := strconv.Atoi(o.Continue) // an offset from an earlier page; 0 at first
	l := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(c.objects)}}
	for i := from; i < min(c.objects, from+int(o.Limit)); i++ {
		l.Items = append(l.Items, c.object(i))
	}
	if to := from + len(l.Items); to < c.objects {
		l.Continue = strconv.Itoa(to)
	}
	return l, nil
}

func (c *crowd) Watch(_ context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	w := watch.NewFake()
	if c.watches.Add(1) > 1 {
		return w, nil
	}
	go func() {
		for i := range c.objects {
			o := c.object(i)
			o.ResourceVersion = strconv.Itoa(c.objects + i + 1)
			w.Modify(&o)
		}
		w.Action(watch.Bookmark, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "999999"}})
		close(c.quiet)
	}()
	return w, nil
}

// retained returns the memory of a Watcher, in bytes, after it has seen a namespace with this many objects. The
// first ones are tracked.
func retained(t *testing.T, objects, tracked int) int64 {
	t.Helper()
	c := &crowd{objects: objects, quiet: make(chan struct{})}
	expected := make(map[kubeclient.Ref]Signature, tracked)
	for i := range tracked {
		expected[crowded(i)] = Unknown
	}
	before := heap()
	w := New(Config{Source: func(Scope) Source { return c }, Changed: func(string) {}, Log: slog.New(slog.DiscardHandler)})
	w.Track("owner", expected)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	<-c.quiet
	kept := heap() - before
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	seen := 0
	for ref := range expected {
		if _, ok := w.LastSeen(ref); ok {
			seen++
		}
	}
	if seen != tracked {
		t.Errorf("%d of %d objects are seen", seen, tracked)
	}
	return kept
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // frees what finalizers and pools held
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Memory grows with the tracked objects, not with the existing ones.
func TestWatcher_MemoryPerTrackedObject(t *testing.T) {
	const (
		many  = 100_000
		some  = 10_000
		noise = 1 << 20 // of the test itself
		// The cost of an object is its name twice (in the scope and at its owner), its state, and the
		// expectations of owners.
		perObject = 1024
	)
	for _, c := range []struct{ objects, tracked int }{{many, 1}, {some, some}} {
		limit := int64(c.tracked*perObject + noise)
		kept := retained(t, c.objects, c.tracked)
		for try := 0; kept > limit && try < 3; try++ { // other tests may free memory later
			kept = retained(t, c.objects, c.tracked)
		}
		if kept > limit {
			t.Errorf("%d objects of which %d are tracked keep %d bytes, want %d at most", c.objects, c.tracked, kept, limit)
		}
	}
}

// Tracking takes the same time per object, for any number of objects and namespaces.
func TestWatcher_CostOfTracking(t *testing.T) {
	complexity.Linear(t, func(n int) func() {
		w := New(Config{Source: func(Scope) Source { return nil }, Changed: func(string) {}, MaxWatches: 20, Log: slog.New(slog.DiscardHandler)})
		refs := make([]map[kubeclient.Ref]Signature, n)
		for i := range refs {
			refs[i] = map[kubeclient.Ref]Signature{{GroupVersionResource: configMaps, Namespace: fmt.Sprint("n", i/2), Name: fmt.Sprint("o", i)}: Unknown}
		}
		return func() {
			for i, r := range refs {
				w.Track(fmt.Sprint("w", i), r)
			}
			for i := range refs {
				if w.Unwatched(fmt.Sprint("w", i)) != 0 {
					t.Error("not watched")
				}
				w.Track(fmt.Sprint("w", i), nil)
			}
		}
	})
}
