package hubsource

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	workinformer "open-cluster-management.io/api/client/work/informers/externalversions/work/v1"
	workv1 "open-cluster-management.io/api/work/v1"

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
	w = &watch{over: make(chan struct{}), works: workinformer.NewFilteredManifestWorkInformer(s.cfg.Works, metav1.NamespaceAll, 0, cache.Indexers{}, uncached)}
	if err := w.works.SetTransform(trimmed); err != nil {
		return nil, err
	}
	if !s.cfg.Selection.all() {
		if w.clusters, err = s.cfg.Selection.informer(s.cfg.Metadata); err != nil {
			return nil, err
		}
	}
	for _, i := range w.all() {
		if err := i.SetWatchErrorHandlerWithContext(s.logWatch); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// uncached makes the first list return the present state, and not that of a cache of the API server that may
// lag.
func uncached(o *metav1.ListOptions) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
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
		select {
		case <-w.over:
			end()
		case <-ctx.Done():
		}
		return ctx.Err()
	}}}
	for _, i := range w.all() {
		tasks = append(tasks, taskgroup.Task{Name: "informer", Run: func(ctx context.Context) error {
			i.RunWithContext(ctx)
			return nil
		}})
	}
	if err := taskgroup.Group(listened, tasks...); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// synced waits until all informers have their first list. It returns false if ctx ends before.
func (w *watch) synced(ctx context.Context) bool {
	var synced []cache.InformerSynced
	for _, i := range w.all() {
		synced = append(synced, i.HasSynced)
	}
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}

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

func trimmed(o any) (any, error) {
	if w, ok := o.(*workv1.ManifestWork); ok {
		return Trim(w), nil
	}
	return o, nil
}

// logWatch logs failed lists and watches; they are retried.
func (s *Source) logWatch(ctx context.Context, _ *cache.Reflector, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	s.cfg.Log.Warn("watch on the hub ended and is started again", "err", err)
}

// feeding passes objects of one kind to the core, one at a time.
func feeding[T any](s *shell, epoch int, f func(int, T)) func(any) {
	return func(o any) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		if t, ok := o.(T); ok {
			s.mu.Lock()
			defer s.mu.Unlock()
			f(epoch, t)
		}
	}
}

// workEvents passes an informer's works to the core. A work that is not in a new list was not necessarily
// deleted. A work with a delete event of the hub was.
func (s *shell) workEvents(epoch int) cache.ResourceEventHandler {
	byID := func(f func(int, types.UID)) func(any) {
		return feeding(s, epoch, func(round int, w *workv1.ManifestWork) { f(round, w.UID) })
	}
	seen, deleted, missing := feeding(s, epoch, s.core.WorkSeen), byID(s.core.WorkDeleted), byID(s.core.WorkMissing)
	return cache.ResourceEventHandlerFuncs{
		AddFunc: seen,
		UpdateFunc: func(old, o any) {
			was, _ := old.(*workv1.ManifestWork)
			is, _ := o.(*workv1.ManifestWork)
			if was != nil && is != nil && was.UID != is.UID {
				missing(old) // the name was deleted and created again while the watch was broken, or the hub went back
			}
			seen(o)
		},
		DeleteFunc: func(o any) {
			if _, unseen := o.(cache.DeletedFinalStateUnknown); unseen {
				missing(o)
				return
			}
			deleted(o)
		},
	}
}

// clusterEvents passes the selected clusters to the core.
func (s *shell) clusterEvents(round int) cache.ResourceEventHandler {
	byName := func(f func(int, string)) func(any) {
		return feeding(s, round, func(epoch int, m *metav1.PartialObjectMetadata) { f(epoch, m.Name) })
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: byName(s.core.ClusterSelected), DeleteFunc: byName(s.core.ClusterUnselected)}
}
