package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	workinformers "open-cluster-management.io/api/client/work/informers/externalversions"
	workv1 "open-cluster-management.io/api/work/v1"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/options"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work"
	sourcecodec "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/source/codec"
	workstore "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/store"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/clients"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/options/builder"

	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/console"
	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/wire"
)

// source is one OCM work source: client, store and informer.
type source struct {
	transport, config, id, client string
	backOff                       time.Duration

	console *console.Console
	works   *work.ClientHolder
}

func (s *source) run(ctx context.Context, in io.Reader) error {
	clients.DelayFn = func() time.Duration { return s.backOff }
	_, transport, err := builder.NewConfigLoader(s.transport, s.config).LoadConfig()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	codec := wire.Codec[*workv1.ManifestWork]{
		Codec: sourcecodec.NewManifestBundleCodec(),
		Sent:  func(e *wire.Event) { s.console.Print(console.Line{What: "sent", Event: e}) },
		Received: func(e *wire.Event, err error) {
			l := console.Line{}
			if err != nil {
				l = console.Failure("", err)
			}
			l.What, l.Event = "received", e
			s.console.Print(l)
		},
	}
	store := &loggingStore{SourceInformerWatcherStore: workstore.NewSourceInformerWatcherStore(ctx), subscribed: func() {
		s.console.Print(console.Line{What: "subscribed"})
	}, ready: make(chan struct{})}
	o := options.NewGenericClientOptions(transport, codec, cmp.Or(s.client, s.id)).WithSourceID(s.id).WithClientWatcherStore(store)
	if s.works, err = work.NewSourceClientHolder(ctx, o); err != nil {
		return err
	}
	factory := workinformers.NewSharedInformerFactoryWithOptions(s.works.WorkInterface(), 0)
	informer := factory.Work().V1().ManifestWorks().Informer()
	if _, err := informer.AddEventHandler(s.handlers()); err != nil {
		return err
	}
	store.SetInformer(informer)
	close(store.ready)
	go informer.Run(ctx.Done()) // ends with the process
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("stopped before the informer was in sync")
	}
	return s.console.Serve(ctx, in, map[string]console.Handler{
		"create": s.create, "patch": s.patch, "delete": s.remove, "list": s.list,
	})
}

// handlers print the events of the informer, which are those that a caller of the source sees.
func (s *source) handlers() cache.ResourceEventHandler {
	report := func(what string) func(any) {
		return func(o any) {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			if w, ok := o.(*workv1.ManifestWork); ok {
				s.console.Print(console.Line{What: what, Work: w})
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: report("added"), DeleteFunc: report("deleted"),
		UpdateFunc: func(_, o any) { report("modified")(o) },
	}
}

func (s *source) create(ctx context.Context, c console.Command) (console.Line, error) {
	w, err := s.works.ManifestWorks(c.Namespace).Create(ctx, c.Work, metav1.CreateOptions{})
	return console.Line{Work: w}, err
}

func (s *source) patch(ctx context.Context, c console.Command) (console.Line, error) {
	w, err := s.works.ManifestWorks(c.Namespace).Patch(ctx, c.Name, types.MergePatchType, c.Patch, metav1.PatchOptions{})
	return console.Line{Work: w}, err
}

func (s *source) remove(ctx context.Context, c console.Command) (console.Line, error) {
	return console.Line{}, s.works.ManifestWorks(c.Namespace).Delete(ctx, c.Name, metav1.DeleteOptions{})
}

// list answers with all works in the source's cache.
func (s *source) list(ctx context.Context, _ console.Command) (console.Line, error) {
	works, err := s.works.ManifestWorks(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return console.Line{}, err
	}
	return console.Line{Works: works.Items}, nil
}

// loggingStore reports when the client has subscribed: only then the client checks whether the store is ready
// for a resync.
type loggingStore struct {
	*workstore.SourceInformerWatcherStore
	subscribed func()
	// ready is closed when the store has its informer. The client may subscribe before that.
	ready chan struct{}
}

func (s *loggingStore) HasInitiated() bool {
	select {
	case <-s.ready:
	default:
		return false
	}
	ok := s.SourceInformerWatcherStore.HasInitiated()
	if ok {
		s.subscribed()
	}
	return ok
}
