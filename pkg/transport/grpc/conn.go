package grpc

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// Conn is one connection to a broker. No lock is held across a call. Publishing and receiving do not wait for
// each other.
type Conn struct {
	opts    Options
	broker  string // the used address, for display
	cc      *ggrpc.ClientConn
	close   func() error // once
	attempt *attempt
	// brokerLimit is the size of the largest event that the broker accepts, in bytes; 0 until the broker has
	// reported it.
	brokerLimit atomic.Int64
}

var _ transport.Conn = (*Conn)(nil)

// Close implements [transport.Conn].
func (c *Conn) Close() error {
	return c.close()
}

// WarningHeader has one value per warning beside a list of the admin service. Warnings are for display: an
// answer may be out of date, or the broker rejects writes.
const WarningHeader = "hawser-warning"

// Calls returns the connection for services other than the event service. [FromStatus] reads the errors of its
// calls.
func (c *Conn) Calls() ggrpc.ClientConnInterface { return c.cc }

// Publish implements [transport.Publisher]. An event that cannot be encoded is CodeInvalid, one above the limit
// CodeTooLarge; neither is sent.
func (c *Conn) Publish(ctx context.Context, e codec.Event, subscriptionID string) (transport.Receipt, error) {
	event, err := codec.Marshal(e)
	if err != nil {
		return transport.Receipt{}, transport.Invalid("the event cannot be encoded", err)
	}
	if size, limit := len(event), c.sendLimit(); size > limit {
		return transport.Receipt{}, &transport.Error{
			Code: transport.CodeTooLarge, Next: transport.NextStop,
			Message: fmt.Sprintf("event of %d bytes, at most %d are accepted", size, limit),
			Hint:    "make the work smaller or split it",
		}
	}
	callCtx, cancel := context.WithTimeout(ctx, c.opts.PublishTimeout)
	defer cancel()
	if subscriptionID != "" {
		callCtx = metadata.AppendToOutgoingContext(callCtx, codec.HeaderSubscriptionID, subscriptionID)
	}
	var trailer metadata.MD
	err = c.cc.Invoke(callCtx, cloudeventsv1.CloudEventService_Publish_FullMethodName,
		publishRequest(event), &emptypb.Empty{}, ggrpc.ForceCodecV2(raw{}), ggrpc.Trailer(&trailer))
	if err != nil {
		if ctx.Err() != nil {
			return transport.Receipt{}, transport.GaveUp(ctx, "the event was not published")
		}
		return transport.Receipt{Revision: revision(trailer)}, c.callError(err)
	}
	return transport.Receipt{Outcome: single(trailer, codec.HeaderOutcome), Revision: revision(trailer)}, nil
}

// revision returns the revision of a receipt, 0 if it is missing or invalid.
func revision(trailer metadata.MD) uint64 {
	n, err := strconv.ParseUint(single(trailer, codec.HeaderRevision), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (c *Conn) sendLimit() int {
	if broker := int(c.brokerLimit.Load()); broker > 0 {
		return min(broker, c.opts.MaxEventBytes)
	}
	return c.opts.MaxEventBytes
}

// callError is FromStatus for a call whose own context is still active.
func (c *Conn) callError(err error) *transport.Error {
	e := FromStatus(err)
	if e.Code == transport.CodeUnavailable && c.attempt.isGone() {
		// The text of the status is about a second handshake, which this side refused. It would be misleading.
		return &transport.Error{Code: transport.CodeUnavailable, Message: "the connection to " + c.broker + " is lost", Err: c.attempt.failure()}
	}
	return e
}

// single returns the value of a header that occurs exactly once, else "".
func single(md metadata.MD, key string) string {
	if v := md.Get(key); len(v) == 1 {
		return v[0]
	}
	return ""
}
