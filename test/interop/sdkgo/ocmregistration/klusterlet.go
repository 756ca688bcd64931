package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/options"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/serviceaccount"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/store"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/constants"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/clients"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/options/builder"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/options/grpc"

	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/console"
	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/wire"
)

// klusterlet holds the OCM clients of one cluster. They share one connection, as those of OCM's registration
// agent do.
type klusterlet struct {
	config, cluster string
	types           []string
	backOff         time.Duration

	console *console.Console
	options *grpc.GRPCOptions
	kinds   map[string]kind // by data type
}

// kind holds the actions of a test on one data type. An action is nil if the OCM client does not have it.
type kind struct {
	create, update func(context.Context, json.RawMessage) (any, error)
	patch          func(ctx context.Context, name string, patch []byte) (any, error)
	list           func(context.Context) ([]any, error)
	informer       cache.SharedInformer
}

func (k *klusterlet) run(ctx context.Context, in io.Reader) error {
	clients.DelayFn = func() time.Duration { return k.backOff }
	_, config, err := builder.NewConfigLoader(constants.ConfigTypeGRPC, k.config).LoadConfig()
	if err != nil {
		return err
	}
	var ok bool
	if k.options, ok = config.(*grpc.GRPCOptions); !ok {
		return fmt.Errorf("%s: no configuration of sdk-go for gRPC", k.config)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := k.connect(ctx); err != nil {
		return err
	}
	for dataType, kind := range k.kinds {
		if kind.informer == nil {
			continue
		}
		if _, err := kind.informer.AddEventHandler(k.handlers(dataType)); err != nil {
			return err
		}
		go kind.informer.Run(ctx.Done()) // ends with the process
		if !cache.WaitForCacheSync(ctx.Done(), kind.informer.HasSynced) {
			return errors.New("stopped before the informer was in sync")
		}
	}
	return k.console.Serve(ctx, in, map[string]console.Handler{
		"create": k.create, "update": k.update, "patch": k.patch, "list": k.list, "token": k.token,
	})
}

// connect creates the clients, in the order of OCM's agent.
func (k *klusterlet) connect(ctx context.Context) error {
	k.kinds = map[string]kind{}
	wanted := map[string]bool{}
	for _, t := range k.types {
		wanted[t] = true
	}
	for _, m := range makers {
		if len(wanted) > 0 && !wanted[m.dataType] {
			continue
		}
		made, err := m.make(ctx, k)
		if err != nil {
			return fmt.Errorf("%s: %w", m.dataType, err)
		}
		k.kinds[m.dataType] = made
		delete(wanted, m.dataType)
		if len(k.types) > 0 && len(wanted) == 0 {
			break
		}
	}
	for t := range wanted {
		return fmt.Errorf("no OCM client for data type %q", t)
	}
	return nil
}

// clientOptions returns the options that OCM uses for a client of a type. The codec and the store print what
// passes them.
func clientOptions[T generic.ResourceObject](k *klusterlet, codec generic.Codec[T], held store.ClientWatcherStore[T]) *options.GenericClientOptions[T] {
	dataType := codec.EventDataType().String()
	reporting := wire.Codec[T]{
		Codec: codec,
		Sent:  func(e *wire.Event) { k.console.Print(console.Line{What: "sent", Type: dataType, Event: e}) },
		Received: func(e *wire.Event, err error) {
			l := console.Line{}
			if err != nil {
				l = console.Failure("", err)
			}
			l.What, l.Type, l.Event = "received", dataType, e
			k.console.Print(l)
		},
	}
	return options.NewGenericClientOptions(any(k.options), reporting, k.cluster).WithClusterName(k.cluster).
		WithClientWatcherStore(loggingStore[T]{ClientWatcherStore: held, subscribed: func() {
			k.console.Print(console.Line{What: "subscribed", Type: dataType})
		}})
}

// loggingStore reports when the client has subscribed: only then the client checks whether the store is ready
// for a resync.
type loggingStore[T generic.ResourceObject] struct {
	store.ClientWatcherStore[T]
	subscribed func()
}

func (s loggingStore[T]) HasInitiated() bool {
	ready := s.ClientWatcherStore.HasInitiated()
	if ready {
		s.subscribed()
	}
	return ready
}

// handlers print the events of an informer, as a klusterlet's controllers see them.
func (k *klusterlet) handlers(dataType string) cache.ResourceEventHandler {
	report := func(what string) func(any) {
		return func(o any) {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			k.console.Print(console.Line{What: what, Type: dataType, Object: o})
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: report("added"), DeleteFunc: report("deleted"),
		UpdateFunc: func(_, o any) { report("modified")(o) },
	}
}

var errNoVerb = errors.New("the OCM client of this type has no such verb")

func (k *klusterlet) create(ctx context.Context, c console.Command) (console.Line, error) {
	do := k.kinds[c.Type].create
	if do == nil {
		return console.Line{}, errNoVerb
	}
	o, err := do(ctx, c.Object)
	return console.Line{Object: o}, err
}

func (k *klusterlet) update(ctx context.Context, c console.Command) (console.Line, error) {
	do := k.kinds[c.Type].update
	if do == nil {
		return console.Line{}, errNoVerb
	}
	o, err := do(ctx, c.Object)
	return console.Line{Object: o}, err
}

func (k *klusterlet) patch(ctx context.Context, c console.Command) (console.Line, error) {
	do := k.kinds[c.Type].patch
	if do == nil {
		return console.Line{}, errNoVerb
	}
	o, err := do(ctx, c.Name, c.Patch)
	return console.Line{Object: o}, err
}

// list answers with the objects of the client of a type.
func (k *klusterlet) list(ctx context.Context, c console.Command) (console.Line, error) {
	do := k.kinds[c.Type].list
	if do == nil {
		return console.Line{}, errNoVerb
	}
	held, err := do(ctx)
	return console.Line{Objects: held}, err
}

// token requests a token of a ServiceAccount. The client subscribes, sends the request, and waits up to 10 s for
// its own answer.
func (k *klusterlet) token(ctx context.Context, c console.Command) (console.Line, error) {
	seconds := int64(c.Count)
	o, err := serviceaccount.NewServiceAccountClient(k.cluster, k.options).CreateToken(ctx, c.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	return console.Line{Object: o}, err
}
