package grpc

import (
	"context"
	"strconv"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// serviceDesc is the generated description, with handlers that keep events as bytes.
var serviceDesc = ggrpc.ServiceDesc{
	ServiceName: cloudeventsv1.CloudEventService_ServiceDesc.ServiceName,
	HandlerType: (*any)(nil),
	Methods:     []ggrpc.MethodDesc{{MethodName: "Publish", Handler: handlePublish}},
	Streams:     []ggrpc.StreamDesc{{StreamName: "Subscribe", Handler: handleSubscribe, ServerStreams: true}},
	Metadata:    cloudeventsv1.CloudEventService_ServiceDesc.Metadata,
}

// empty is the answer to every Publish. It is immutable.
var empty = &emptypb.Empty{}

func handlePublish(srv any, ctx context.Context, decode func(any) error, interceptor ggrpc.UnaryServerInterceptor) (any, error) { //nolint:revive // the signature is the library's
	f := srv.(*Front)
	c, err := connectionOf(ctx)
	if err != nil {
		return nil, transportgrpc.Status(err).Err()
	}
	defer callOf(ctx).served()
	req := &publishRequest{}
	defer req.free()
	if err := decode(req); err != nil {
		return nil, err
	}
	handler := func(ctx context.Context, _ any) (any, error) { return f.publish(ctx, c, req) }
	if interceptor == nil {
		return handler(ctx, req)
	}
	return interceptor(ctx, req, &f.publishInfo, handler)
}

func (f *Front) publish(ctx context.Context, c *connection, r *publishRequest) (any, error) {
	if r.event == nil {
		return nil, transportgrpc.Status(&transport.Error{
			Code: transport.CodeInvalid, Next: transport.NextStop, Message: "the request carries no event",
		}).Err()
	}
	receipt, err := f.cfg.Server.Publish(ctx, c.Peer(), r.event, header(ctx, codec.HeaderSubscriptionID))
	if e := ggrpc.SetTrailer(ctx, trailerOf(receipt)); err == nil { // the receipt is sent with an error too
		err = e
	}
	if err != nil {
		return nil, f.answer(ctx, err)
	}
	return empty, nil
}

// trailerOf returns a receipt as trailers.
func trailerOf(r transport.Receipt) metadata.MD {
	md := metadata.MD{}
	if r.Outcome != "" {
		md.Set(codec.HeaderOutcome, r.Outcome)
	}
	if r.Revision != 0 {
		md.Set(codec.HeaderRevision, codec.FormatRevision(r.Revision))
	}
	return md
}

// handleSubscribe waits for the end of a subscription. The library ends a stream when its handler returns, so
// each stream has this goroutine. Its stack stays small: the subscription is served in other goroutines, which
// end when nothing is due.
func handleSubscribe(srv any, ss ggrpc.ServerStream) error {
	ended := make(chan error, 1)
	go srv.(*Front).subscribe(ss, func(err error) { ended <- err }) // returns before the end, or calls ended
	return <-ended
}

// subscribe reads the request of a subscription, and begins it.
func (f *Front) subscribe(ss ggrpc.ServerStream, ended func(error)) {
	ctx := ss.Context()
	defer func() {
		if p := recover(); p != nil {
			ended(f.panicked(ctx, p))
		}
	}()
	c, err := connectionOf(ctx)
	if err != nil {
		ended(transportgrpc.Status(err).Err())
		return
	}
	var r cloudeventsv1.SubscriptionRequest
	if err := ss.RecvMsg(&r); err != nil {
		ended(err)
		return
	}
	raw := transport.RawSubscription{Source: r.GetSource(), Cluster: r.GetClusterName(), DataType: r.GetDataType(), Hello: helloOf(ctx)}
	f.cfg.Server.Start(ctx, c.Peer(), raw, stream{ss}, func(err error) {
		if err != nil {
			err = f.answer(ctx, err)
		}
		ended(err)
	})
}

// helloOf returns what a client reports about itself. A client with an unknown protocol version is
// served as an OCM client.
func helloOf(ctx context.Context) transport.Hello {
	seconds, _ := strconv.ParseUint(header(ctx, codec.HeaderHeartbeat), 10, 16) // what is no number asks for nothing
	heartbeat := time.Duration(seconds) * time.Second
	if !transport.SpeaksHawser(header(ctx, codec.HeaderProtocol)) {
		return transport.Hello{Heartbeat: heartbeat}
	}
	return transport.Hello{
		Heartbeat:    heartbeat,
		Protocol:     transport.Protocol,
		Cursor:       header(ctx, codec.HeaderCursor),
		ClusterUID:   header(ctx, codec.HeaderClusterUID),
		Version:      header(ctx, codec.HeaderVersion),
		Former:       header(ctx, codec.HeaderFormer),
		SubscribedAt: header(ctx, codec.HeaderSubscribedAt),
	}
}

// header returns the value of a header, "" if it is missing or repeated.
func header(ctx context.Context, key string) string {
	if v := metadata.ValueFromIncomingContext(ctx, key); len(v) == 1 {
		return v[0]
	}
	return ""
}

// stream is the sending side of one subscription.
type stream struct{ ggrpc.ServerStream }

var _ transport.Stream = stream{}

// Accept implements [transport.Stream].
func (s stream) Accept(a transport.Accepted) error {
	kv := []string{codec.HeaderSubscriptionID, a.SubscriptionID}
	if a.Protocol > 0 {
		kv = append(kv,
			codec.HeaderProtocol, strconv.Itoa(a.Protocol),
			codec.HeaderResync, a.Resync,
			codec.HeaderMaxEventBytes, strconv.Itoa(a.MaxEventBytes))
		if a.StoreID != "" {
			kv = append(kv, codec.HeaderStoreID, a.StoreID)
		}
	}
	return s.SendHeader(metadata.Pairs(kv...))
}

// Send implements [transport.Stream].
func (s stream) Send(parts ...[]byte) error { return s.SendMsg(event(parts)) }
