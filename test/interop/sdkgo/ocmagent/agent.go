package main

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	workinformers "open-cluster-management.io/api/client/work/informers/externalversions"
	workv1 "open-cluster-management.io/api/work/v1"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/options"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work"
	agentcodec "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/agent/codec"
	workstore "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/store"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/clients"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/options/builder"

	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/console"
	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/wire"
)

// agent is one OCM work agent: client, store and informer.
type agent struct {
	transport, config, cluster, id string
	backOff                        time.Duration
	quiet                          bool

	console  *console.Console
	received atomic.Int64
	works    *work.ClientHolder
}

func (a *agent) run(ctx context.Context, in io.Reader) error {
	clients.DelayFn = func() time.Duration { return a.backOff }
	_, transport, err := builder.NewConfigLoader(a.transport, a.config).LoadConfig()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	codec := wire.Codec[*workv1.ManifestWork]{
		Codec:    agentcodec.NewManifestBundleCodec(),
		Sent:     func(e *wire.Event) { a.print(console.Line{What: "sent", Event: e}) },
		Received: a.printReceived,
	}
	store := &loggingStore{AgentInformerWatcherStore: workstore.NewAgentInformerWatcherStore(), subscribed: func() {
		a.console.Print(console.Line{What: "subscribed"})
	}}
	o := options.NewGenericClientOptions(transport, codec, a.id).WithClusterName(a.cluster).WithClientWatcherStore(store)
	if a.works, err = work.NewAgentClientHolder(ctx, o); err != nil {
		return err
	}
	factory := workinformers.NewSharedInformerFactoryWithOptions(a.works.WorkInterface(), 0, workinformers.WithNamespace(a.cluster))
	informer := factory.Work().V1().ManifestWorks().Informer()
	if _, err := informer.AddEventHandler(a.handlers()); err != nil {
		return err
	}
	go informer.Run(ctx.Done()) // ends with the process
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("stopped before the informer was in sync")
	}
	return a.console.Serve(ctx, in, map[string]console.Handler{
		"list": a.list, "patch": a.patch, "count": a.count,
	})
}

// handlers print the events of the informer, as an agent's controllers see them.
func (a *agent) handlers() cache.ResourceEventHandler {
	report := func(what string) func(any) {
		return func(o any) {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			if w, ok := o.(*workv1.ManifestWork); ok {
				a.print(console.Line{What: what, Work: w})
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: report("added"), DeleteFunc: report("deleted"),
		UpdateFunc: func(_, o any) { report("modified")(o) },
	}
}

func (a *agent) print(l console.Line) {
	if !a.quiet {
		a.console.Print(l)
	}
}

// everySo is the number of received events after which a quiet agent prints a line.
const everySo = 1000

func (a *agent) printReceived(e *wire.Event, err error) {
	n := a.received.Add(1)
	if a.quiet {
		if n%everySo == 0 {
			a.console.Print(console.Line{What: "count", Count: int(n)})
		}
		return
	}
	l := console.Line{}
	if err != nil {
		l = console.Failure("", err)
	}
	l.What, l.Event = "received", e
	a.console.Print(l)
}

// list answers with all works that the agent holds.
func (a *agent) list(ctx context.Context, _ console.Command) (console.Line, error) {
	works, err := a.works.ManifestWorks(a.cluster).List(ctx, metav1.ListOptions{})
	if err != nil {
		return console.Line{}, err
	}
	return console.Line{Works: works.Items}, nil
}

// count answers with the number of events received.
func (a *agent) count(context.Context, console.Command) (console.Line, error) {
	return console.Line{Count: int(a.received.Load())}, nil
}

// patch patches a work as an agent's controllers do. A patch of the status is reported, any other patch stays
// local.
func (a *agent) patch(ctx context.Context, c console.Command) (console.Line, error) {
	var subresources []string
	if c.Status {
		subresources = []string{"status"}
	}
	w, err := a.works.ManifestWorks(a.cluster).Patch(ctx, c.Name, types.MergePatchType, c.Patch, metav1.PatchOptions{}, subresources...)
	return console.Line{Work: w}, err
}

// loggingStore reports when the client has subscribed: only then the client checks whether the store is ready
// for a resync.
type loggingStore struct {
	*workstore.AgentInformerWatcherStore
	subscribed func()
}

func (s *loggingStore) HasInitiated() bool {
	ready := s.AgentInformerWatcherStore.HasInitiated()
	if ready {
		s.subscribed()
	}
	return ready
}
