package hubsource

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	workinformer "open-cluster-management.io/api/client/work/informers/externalversions/work/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/informer"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
)

// watch holds the informers of a hub. They begin with a list that no cache answered.
type watch struct {
	works    cache.SharedIndexInformer
	clusters cache.SharedIndexInformer // nil if all namespaces are served
	over     chan struct{}             // closed when the epoch is over
}

func (s *Source) watch() (w *watch, err error) {
	w = &watch{over: make(chan struct{}), works: workinformer.NewFilteredManifestWorkInformer(s.cfg.Works, metav1.NamespaceAll, 0, cache.Indexers{}, informer.Uncached)}
	if !s.cfg.Selection.all() {
		if w.clusters, err = s.cfg.Selection.informer(s.cfg.Metadata, s.cfg.Log); err != nil {
			return nil, err
		}
	}
	return w, informer.Prepare(w.works, s.cfg.Log, func(o *workv1.ManifestWork) (any, error) { return Trim(o), nil })
}

func (w *watch) all() []cache.SharedIndexInformer {
	if w.clusters == nil {
		return []cache.SharedIndexInformer{w.works}
	}
	return []cache.SharedIndexInformer{w.clusters, w.works} // clusters first
}

// run runs the informers until the epoch is over, and returns when ctx ends.
func (w *watch) run(ctx context.Context) error {
	listened, end := context.WithCancel(ctx)
	defer end()
	tasks := []taskgroup.Task{{Name: "end", Run: func(ctx context.Context) error {
		if taskgroup.Wait(ctx, w.over) {
			end()
		}
		return ctx.Err()
	}}}
	for _, i := range w.all() {
		tasks = append(tasks, informer.Task(i))
	}
	if err := taskgroup.Group(listened, tasks...); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// synced waits until all informers have their first list. It returns false if ctx ends before.
func (w *watch) synced(ctx context.Context) bool { return informer.Synced(ctx, w.all()...) }

// live runs the hub epochs, one after the other. Each has its own informers, broker session and tasks beside
// the works. The informers of the first epoch already run.
func (s *Source) live(ctx context.Context, sh *shell, w *watch) error {
	for first := true; ; first = false {
		epoch, lifetime, end := sh.begin(ctx)
		tasks := append([]taskgroup.Task{{Name: "session", Run: func(ctx context.Context) error { return s.session(ctx, sh, w, epoch) }}}, s.cfg.Leading...)
		if !first {
			tasks = append(tasks, taskgroup.Task{Name: "informers", Run: w.run})
		}
		err := taskgroup.Group(lifetime, tasks...)
		end()
		close(w.over)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if w, err = s.watch(); err != nil {
			return err
		}
	}
}

// session feeds the core from the informers of an epoch. Once all objects are shown, it keeps the session with
// the broker.
func (s *Source) session(ctx context.Context, sh *shell, w *watch, epoch int) error {
	var filled []cache.InformerSynced
	for _, i := range w.all() {
		handler := sh.workEvents(epoch)
		if i == w.clusters {
			handler = sh.clusterEvents(epoch)
		}
		r, err := i.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("watch the hub: %w", err)
		}
		defer func() { _ = i.RemoveEventHandler(r) }() // fails only for a registration of another informer
		filled = append(filled, r.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), filled...) {
		return ctx.Err()
	}
	link := session.New(session.Config{
		Dialer: s.cfg.Dialer, Changed: s.cfg.Changed, Filter: transport.Filter{Source: s.cfg.ID, DataType: codec.ManifestBundles},
		Handler: sessionHandler{sh, epoch}, Log: s.cfg.Log, Metrics: s.sessions,
	})
	sh.use(link)
	defer sh.use(nil)
	return link.Run(ctx)
}

// workEvents passes an informer's works to the core. A work that is not in a new list was not necessarily
// deleted. A work with a delete event of the hub was.
func (s *shell) workEvents(epoch int) cache.ResourceEventHandler {
	return informer.Handler(func(was, is *workv1.ManifestWork, unseen bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case is == nil && !unseen:
			s.core.WorkDeleted(epoch, was.UID)
		case is == nil:
			s.core.WorkMissing(epoch, was.UID)
		case was != nil && was.UID != is.UID: // the name was deleted and created again while the watch was broken, or the hub went back
			s.core.WorkMissing(epoch, was.UID)
			fallthrough
		default:
			s.core.WorkSeen(epoch, is)
		}
	})
}

// clusterEvents passes the selected clusters to the core.
func (s *shell) clusterEvents(epoch int) cache.ResourceEventHandler {
	return informer.Handler(func(was, is *metav1.PartialObjectMetadata, _ bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case is == nil:
			s.core.ClusterUnselected(epoch, was.Name)
		case was == nil:
			s.core.ClusterSelected(epoch, is.Name)
		}
	})
}
