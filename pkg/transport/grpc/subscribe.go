package grpc

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// refusalTimeout bounds the wait for the reason if the header of a Subscribe is not that of an accepted one.
const refusalTimeout = 5 * time.Second

var subscribeDesc = ggrpc.StreamDesc{StreamName: "Subscribe", ServerStreams: true}

// Subscribe implements [transport.Subscriber]. h runs on the calling goroutine, with ctx. An event that cannot
// be decoded is logged and dropped. A broker could only send it again.
func (c *Conn) Subscribe(ctx context.Context, s transport.Subscription, ready func(transport.Accepted), h transport.Handler) error {
	if (s.Source == "") == (s.Cluster == "") {
		return transport.Invalid("a subscription names either a source or a cluster", nil)
	}
	streamCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// ended returns why the subscription ended, given the stream's error.
	ended := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if own, ok := errors.AsType[*transport.Error](context.Cause(streamCtx)); ok {
			return own
		}
		if errors.Is(err, io.EOF) {
			return &transport.Error{Code: transport.CodeUnavailable, Message: "the broker ended the subscription"}
		}
		return c.callError(err)
	}

	stream, accepted, err := c.open(streamCtx, cancel, s)
	if err != nil {
		return ended(err)
	}
	c.brokerLimit.Store(int64(accepted.MaxEventBytes))
	ready(accepted)

	events, done := make(chan codec.Event), make(chan struct{})
	var readErr error
	// The reader ends with the stream. Each return below has cancelled the stream or seen its end, and waits for
	// done.
	go func() {
		defer close(done)
		readErr = c.read(streamCtx, cancel, stream, events, c.healthTimeout(s.Hello))
	}()
	for {
		select {
		case e := <-events:
			if err := h(ctx, e); err != nil {
				cancel(nil)
				<-done
				return err
			}
		case <-done:
			return ended(readErr)
		}
	}
}

// open sends the request and waits for the header of the answer.
func (c *Conn) open(ctx context.Context, cancel context.CancelCauseFunc, s transport.Subscription) (ggrpc.ClientStream, transport.Accepted, error) {
	timer := time.AfterFunc(c.opts.SubscribeTimeout, func() {
		cancel(&transport.Error{
			Code:    transport.CodeDeadline,
			Message: "the broker did not answer the subscription within " + c.opts.SubscribeTimeout.String(),
		})
	})
	defer timer.Stop()
	stream, err := c.cc.NewStream(helloContext(ctx, s.Hello), &subscribeDesc,
		cloudeventsv1.CloudEventService_Subscribe_FullMethodName, ggrpc.ForceCodecV2(raw{}))
	if err != nil {
		return nil, transport.Accepted{}, err
	}
	err = stream.SendMsg(&cloudeventsv1.SubscriptionRequest{
		Source: s.Source, ClusterName: s.Cluster, DataType: s.DataType.String(),
	})
	// io.EOF only means that the stream ended; Header and RecvMsg return the reason.
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, transport.Accepted{}, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, transport.Accepted{}, err
	}
	header, err := stream.Header()
	if err != nil {
		return nil, transport.Accepted{}, err
	}
	accepted := transport.Accepted{
		SubscriptionID: single(header, codec.HeaderSubscriptionID),
		Resync:         single(header, codec.HeaderResync),
		StoreID:        single(header, codec.HeaderStoreID),
		Roots:          c.attempt.verifiedBy(),
		MaxEventBytes:  positive(single(header, codec.HeaderMaxEventBytes)),
		Transport:      transport.GRPC,
		Broker:         c.broker,
	}
	if transport.SpeaksHawser(single(header, codec.HeaderProtocol)) {
		accepted.Protocol = transport.Protocol
	}
	if accepted.SubscriptionID != "" {
		return stream, accepted, nil
	}
	// A refused call has no such header either; its reason follows at the end of the stream.
	foreign := &transport.Error{
		Code:    transport.CodeInvalid,
		Message: `the answer to the subscription carries no single "` + codec.HeaderSubscriptionID + `" header`,
		Hint:    "the server is no broker of this protocol, or a proxy removes the header: check the address",
	}
	refusal := time.AfterFunc(refusalTimeout, func() { cancel(foreign) })
	defer refusal.Stop()
	var unexpected received
	switch err := stream.RecvMsg(&unexpected); {
	case err == nil:
		unexpected.buffer.Free()
	case !errors.Is(err, io.EOF):
		return nil, transport.Accepted{}, err
	}
	return nil, transport.Accepted{}, foreign
}

// helloContext adds the headers of a client; an OCM client has none.
func helloContext(ctx context.Context, hello transport.Hello) context.Context {
	var kv []string
	if hello.Heartbeat > 0 {
		kv = append(kv, codec.HeaderHeartbeat, strconv.Itoa(int(hello.Heartbeat/time.Second)))
	}
	if hello.Protocol == 0 {
		return metadata.AppendToOutgoingContext(ctx, kv...)
	}
	kv = append(kv, codec.HeaderProtocol, strconv.Itoa(hello.Protocol))
	if hello.Cursor != "" {
		kv = append(kv, codec.HeaderCursor, hello.Cursor)
	}
	if hello.ClusterUID != "" {
		kv = append(kv, codec.HeaderClusterUID, hello.ClusterUID)
	}
	if hello.Version != "" {
		kv = append(kv, codec.HeaderVersion, hello.Version)
	}
	if hello.Former != "" {
		kv = append(kv, codec.HeaderFormer, hello.Former)
	}
	if hello.SubscribedAt != "" {
		kv = append(kv, codec.HeaderSubscribedAt, hello.SubscribedAt)
	}
	return metadata.AppendToOutgoingContext(ctx, kv...)
}

// healthTimeout returns the time without an event or heartbeat after which a subscription ends; not positive: none.
func (c *Conn) healthTimeout(hello transport.Hello) time.Duration {
	if c.opts.HealthTimeout < 0 {
		return c.opts.HealthTimeout
	}
	return max(c.opts.HealthTimeout, transport.MissedHeartbeats*hello.Heartbeat)
}

// read forwards events until the stream ends, and watches its health. The health timeout runs only while the
// reader is ready to receive. So a slow handler does not make the broker appear dead.
func (c *Conn) read(ctx context.Context, cancel context.CancelCauseFunc, stream ggrpc.ClientStream, events chan<- codec.Event, health time.Duration) error {
	silence := time.AfterFunc(never, func() {
		cancel(&transport.Error{
			Code:    transport.CodeUnavailable,
			Message: "neither event nor heartbeat from the broker within " + health.String(),
		})
	})
	defer silence.Stop()
	var message received
	for {
		if health > 0 {
			silence.Reset(health)
		}
		err := stream.RecvMsg(&message)
		silence.Stop()
		if err != nil {
			return err
		}
		e, heartbeat, err := message.next()
		if heartbeat {
			continue
		}
		if err != nil {
			c.opts.Log.ErrorContext(ctx, "event from the broker cannot be decoded and is dropped", "broker", c.broker, "error", err)
			continue
		}
		select {
		case events <- e:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// positive parses a decimal number; it returns 0, unknown, if the text is missing or invalid.
func positive(s string) int {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int(n)
}
