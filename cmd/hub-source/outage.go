package main

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-io/hawser/pkg/transport"
)

// outage writes Events about the Lease of hub-source when the broker cannot be reached, with the reason, for
// users of kubectl. Works get no Event, because none is the cause and there may be many.
type outage struct {
	transport.Dialer
	events typedcorev1.EventsGetter
	lease  corev1.ObjectReference
	// failed has the latest error without an Event.
	failed chan error
}

func newOutage(d transport.Dialer, events typedcorev1.EventsGetter, namespace, name string) *outage {
	return &outage{Dialer: d, events: events, failed: make(chan error, 1), lease: corev1.ObjectReference{
		APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease", Namespace: namespace, Name: name,
	}}
}

// Dial implements transport.Dialer with the broker's dialer, and records its error.
func (o *outage) Dial(ctx context.Context) (transport.Conn, error) {
	c, err := o.Dialer.Dial(ctx)
	if err != nil && ctx.Err() == nil {
		select {
		case o.failed <- err:
		default: // the previous error is being written
		}
	}
	return c, err
}

// Run writes Events until ctx ends. A repeated Event increments its count.
func (o *outage) Run(ctx context.Context) error {
	b := record.NewBroadcaster(record.WithContext(ctx))
	defer b.Shutdown()
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: o.events.Events("")})
	recorder := b.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: program})
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-o.failed:
			recorder.Eventf(&o.lease, corev1.EventTypeWarning, "BrokerUnreachable",
				"%v; works stay as they are on their clusters. Start the broker, or find the step that fails: kubectl -n %s exec deploy/%s -- /%s doctor", err, o.lease.Namespace, program, program)
		}
	}
}
