package registration

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-io/hawser/internal/informer"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// lookAgain is the pause between two checks whether the hub has a type that it lacked.
const lookAgain = 30 * time.Second

// watched is one kind of objects, as an informer shows it.
type watched struct {
	kind
	at    int                         // index in kinds
	store atomic.Pointer[cache.Store] // nil: the hub lacks the type
	// known is closed when all objects are known, or when it is known that the hub lacks the type.
	known chan struct{}
	once  sync.Once
}

func (w *watched) notifyKnown() { w.once.Do(func() { close(w.known) }) }

func (w *watched) get(namespace, name string) *object {
	store := w.store.Load()
	if store == nil {
		return nil
	}
	if namespace != "" {
		name = namespace + "/" + name
	}
	o, _, _ := (*store).GetByKey(name) // a map lookup, which does not fail
	kept, _ := o.(*object)
	return kept
}

// keys returns the keys of all objects.
func (w *watched) keys() (all []key) {
	store := w.store.Load()
	if store == nil {
		return nil
	}
	for _, o := range (*store).List() {
		if o, ok := o.(*object); ok {
			all = append(all, w.keyOf(o))
		}
	}
	return all
}

func (w *watched) keyOf(o *object) key {
	return key{kind: w.at, cluster: o.cluster, namespace: o.Namespace, name: o.Name}
}

// run watches the objects until ctx ends, as soon as the hub has the type.
func (w *watched) run(ctx context.Context, s *Server) error {
	for waits := false; ; waits = true {
		served, err := s.cfg.Hub.serves(w.resource)
		switch {
		case err != nil:
			s.cfg.Log.WarnContext(ctx, "the types that the hub serves cannot be read; trying again", "type", w.resource.String(), "err", err)
		case served:
			return w.watch(ctx, s)
		case !waits:
			s.cfg.Log.InfoContext(ctx, "the hub does not serve a type of registration; clusters see no objects of it until the hub does", "type", w.resource.String())
			if w.optional {
				w.notifyKnown()
			}
		}
		if !taskgroup.Sleep(ctx, lookAgain) {
			return ctx.Err()
		}
	}
}

func (w *watched) watch(ctx context.Context, s *Server) error {
	i := dynamicinformer.NewFilteredDynamicInformer(s.cfg.Hub.Own, w.resource, w.namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.LabelSelector, o.FieldSelector = w.labels, w.fields
		informer.Uncached(o)
	}).Informer()
	keep := func(u *unstructured.Unstructured) (any, error) { return w.keep(u) }
	if err := informer.Prepare(i, s.cfg.Log, keep, "type", w.resource.String()); err != nil {
		return fmt.Errorf("watch %s: %w", w.resource.Resource, err)
	}
	store := i.GetStore()
	w.store.Store(&store)
	seen, err := i.AddEventHandler(informer.Handler(func(was, is *object, _ bool) { s.changed(w, was, is) }))
	if err != nil {
		return fmt.Errorf("watch %s: %w", w.resource.Resource, err)
	}
	return taskgroup.Group(ctx, informer.Task(i), taskgroup.Task{Name: "first list", Run: func(ctx context.Context) error {
		if cache.WaitForCacheSync(ctx.Done(), seen.HasSynced) {
			w.notifyKnown()
		}
		<-ctx.Done()
		return nil
	}})
}
