package broker

import (
	"context"
	"fmt"

	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/registration"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Publish implements [transport.Server]. It returns nil when a spec, a status or a release is on disk. For an
// event about a subscription it returns when the event is recorded; the answer follows on the subscription.
func (b *Broker) Publish(ctx context.Context, p transport.Peer, event []byte, subscriptionID string) (r transport.Receipt, err error) {
	start := b.cfg.Now()
	kind := "unknown"
	var env *codec.Envelope
	defer func() {
		result := r.Outcome
		if err != nil {
			result = transport.CodeOf(err).String()
		}
		b.publishes.WithLabelValues(kind, result).Inc()
		b.publishDuration.WithLabelValues(kind).Observe(b.cfg.Now().Sub(start).Seconds())
		b.cfg.Audit.Published(audit.Publish{
			Role: p.Role, Name: p.Name, Addr: p.Addr, Conn: p.Conn, Kind: kind, Envelope: env, Bytes: len(event), Result: result,
		})
	}()
	defer func() { err = b.asKubernetesError(env, err) }()
	defer b.recovered(&err)
	env, incoming, err := codec.Ingest(event)
	if err != nil {
		return r, transport.Undecodable(err)
	}
	if err := b.feed.Closing(); err != nil {
		return r, err
	}
	if ctx.Err() != nil { // the event was delayed until its caller gave up
		return r, request.CallerGone(ctx)
	}
	e := &request.Event{User: p.User, Groups: p.Groups, Issued: p.CertificateIssued, Conn: p.Conn, Subscription: subscriptionID, Size: len(event), Env: env, Incoming: incoming}
	kind, handle := b.handler(env)
	if e.From, err = b.admit(p, env); err != nil {
		return r, err
	}
	if e.Payload, err = b.reserveMemory(e); err != nil {
		return r, err
	}
	defer b.reading.Free(e.From, e.Payload)
	// If the store made no decision, the receipt has the current revision.
	defer func() {
		if r.Revision == 0 {
			r.Revision = b.cfg.Store.Head().Revision
		}
	}()
	return handle(ctx, e)
}

// asKubernetesError converts an error of registration into a Kubernetes API error, the form that the publisher
// reads. env is nil if the event could not be parsed.
func (b *Broker) asKubernetesError(env *codec.Envelope, err error) error {
	if err != nil && env != nil && b.registration != nil && registration.Serves(env.Type.DataType) {
		return registration.Refusal(err)
	}
	return err
}

// reserveMemory reserves the memory for decoding a list or a sync event. The memory can be much larger than the
// received event, because an empty entry takes only two bytes there.
func (b *Broker) reserveMemory(e *request.Event) (int, error) {
	n, err := e.Env.PayloadBytes()
	switch {
	case err != nil:
		refused := transport.Undecodable(err)
		refused.Attribute = "data"
		return 0, refused
	case n > b.cfg.QueueBytes/2: // the event never fits into the budget
		return 0, transport.Refused(transport.CodeTooLarge, "data",
			fmt.Sprintf("the data takes %d bytes of memory, at most %d are accepted", n, b.cfg.QueueBytes/2), "split it into several events")
	case !b.reading.Reserve(e.From, n):
		return 0, request.Overloaded("too many bytes of lists and sync events are in flight", request.RetryAfter)
	}
	return n, nil
}

// handler handles one kind of event.
type handler func(ctx context.Context, e *request.Event) (transport.Receipt, error)

// handler returns the kind of an event, as a metric label value, and its handler.
func (b *Broker) handler(env *codec.Envelope) (kind string, h handler) {
	switch {
	case b.registers(env):
		return "registration", b.registration.Publish
	case env.RawType == codec.TypeRelease:
		return "release", b.intake.Release
	case env.RawType == codec.TypeAck:
		return "ack", withoutReceipt(b.feed.Acknowledge)
	case env.RawType == codec.TypeInventoryRequest:
		return "inventory", withoutReceipt(b.feed.RequestPage)
	case env.RawType == codec.TypeSyncReport:
		return "sync_report", withoutReceipt(b.syncReport)
	case env.RawType == codec.TypeOrphanReport:
		return "orphan_report", withoutReceipt(b.feed.OrphanReport)
	case env.Type.Action == codec.ResyncRequest:
		return "resync", withoutReceipt(b.feed.Resync)
	case env.Type.Subresource == codec.Status:
		return "status", b.intake.PutStatus
	case env.Type.Subresource == codec.Spec:
		return "spec", b.intake.PutSpec
	}
	return "unknown", func(context.Context, *request.Event) (r transport.Receipt, err error) {
		return r, request.Invalid("type", "events of type "+env.RawType+" are not accepted", "")
	}
}

// withoutReceipt makes a handler of a function that returns no receipt.
func withoutReceipt(f func(ctx context.Context, e *request.Event) error) handler {
	return func(ctx context.Context, e *request.Event) (r transport.Receipt, err error) {
		if err := f(ctx, e); err != nil {
			return r, err
		}
		r.Outcome = codec.OutcomeAccepted
		return r, nil
	}
}

// syncReport passes the sync report of a source to package syncstate.
func (b *Broker) syncReport(ctx context.Context, e *request.Event) error {
	f := b.intake.Find(e.Subscription, e.From)
	if f == nil {
		return request.NoSubscription(e.From)
	}
	return b.sync.Sources.SyncReport(ctx, e, f)
}

// registers reports whether an event is about registration, and registration is configured.
func (b *Broker) registers(env *codec.Envelope) bool {
	return b.registration != nil && (codec.RegistrationEvent(env.RawType) || registration.Serves(env.Type.DataType))
}

// admit checks that the type is supported and that the peer may publish the event.
func (b *Broker) admit(p transport.Peer, env *codec.Envelope) (identity.Identity, error) {
	c := authz.Call{
		Method: authz.Publish, Type: env.Type,
		Source: env.Source, Cluster: env.Cluster, Namespace: env.ObjectNS,
		Deleting: env.Deleting, AllowedClusters: b.cfg.Quotas.Of(env.Source).AllowedClusters,
	}
	registers := b.registers(env)
	if registers && p.Transport == transport.MQTT { // MQTT answers in order, so one request to the hub would delay the answers to all later publishes
		return identity.Identity{}, request.Invalid("type", "clusters do not join over MQTT", "use gRPC for events of type "+env.RawType)
	}
	if env.Type == (codec.EventType{}) {
		c.RawType = env.RawType
	} else if _, ok := codec.Lookup(env.Type.DataType); !ok && !registers {
		return identity.Identity{}, request.Invalid("type", "data type "+env.Type.DataType.String()+" is not served",
			"use "+codec.ManifestBundles.String())
	}
	id := authz.Identify(p, c, b.cfg.Insecure)
	err := authz.Authorize(id, c)
	if !registers && err == nil && b.registration != nil && id.Role == identity.Agent {
		err = b.registration.Accepted(id.Name)
	}
	return id, err
}
