package grpc

import (
	"context"
	"strings"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/hawser-io/hawser/internal/broker/listener"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// costOfRefusal returns the charge for a rejected call, in calls. It grows with the deadline, because the
// library keeps the state of the call until then.
func costOfRefusal(deadline time.Duration) float64 {
	if deadline > time.Minute {
		return 20
	}
	return 1
}

// tap decides about a call by its headers, before its body is read. It runs in the goroutine that reads the
// connection, and delays all its calls.
func (f *Front) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	c, err := connectionOf(ctx)
	if err != nil {
		return ctx, transportgrpc.Status(err).Err()
	}
	ctx, err = f.admit(ctx, c, info)
	c.opened = nil
	if err != nil {
		c.flood, err = refuse(ctx, c, info.FullMethodName, err)
	}
	return ctx, err
}

// refuse reports and charges a rejected call. answer is the error for the caller. flood is not nil if the
// connection had too many rejected calls and must end.
func refuse(ctx context.Context, c *connection, method string, err error) (flood, answer error) {
	c.Refused(method, listener.ReasonOf(err), err)
	deadline, _ := ctx.Deadline()
	return c.ChargeRefusedCall(costOfRefusal(time.Until(deadline))), transportgrpc.Status(err).Err()
}

// admit counts a call if c may make it. Its resources are released when the returned context ends.
func (f *Front) admit(ctx context.Context, c *connection, info *tap.Info) (context.Context, error) {
	pending, err := c.TakeToken(tokenOf(info.Header))
	switch {
	case pending:
		ctx = context.WithValue(ctx, pendingKey{}, info.FullMethodName)
	case err == nil:
		err = c.CheckMethod(info.FullMethodName)
	}
	if err != nil {
		return ctx, err
	}
	b, k := c.opened, listener.KindOf(info.FullMethodName)
	if b == nil {
		return ctx, listener.ErrNoConnection
	}
	admitted, stop := f.bounded(ctx, k, b)
	if err := c.Begin(k, b); err != nil {
		stop()
		return ctx, err
	}
	a := &call{Context: admitted, body: b, stop: stop}
	a.detach = context.AfterFunc(ctx, a.ended) // the library cancels ctx when the call has ended
	return a, nil
}

// call is the context of an admitted call. Its end releases what the call uses.
type call struct {
	context.Context //nolint:containedctx // it is a context
	body            *listener.Body
	stop            func()
	detach          func() bool
}

// callKey is the context key of the [call] itself.
type callKey struct{}

// Value implements context.Context.
func (a *call) Value(key any) any {
	if key == (callKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// callOf returns the call of a context, nil without one.
func callOf(ctx context.Context) *call {
	a, _ := ctx.Value(callKey{}).(*call)
	return a
}

func (a *call) ended() {
	a.stop()
	a.body.End()
}

// served releases the resources of a call whose handler returns, without another goroutine. The library cancels
// the context after that.
func (a *call) served() {
	if a != nil && a.detach() {
		a.body.End()
	}
}

// tokenOf returns the bearer token from the headers of a call, "" without one. A malformed header is returned
// unchanged; its review will fail.
func tokenOf(headers metadata.MD) string {
	all := headers.Get("authorization")
	if len(all) == 0 {
		return ""
	}
	text := strings.TrimSpace(strings.Join(all, ","))
	const scheme = "bearer "
	if len(text) > len(scheme) && strings.EqualFold(text[:len(scheme)], scheme) {
		return strings.TrimSpace(text[len(scheme):])
	}
	return text
}

// pendingKey is the context key of the method name of a call that began before its client was identified.
type pendingKey struct{}

// waitForIdentity waits until the client is identified, and then decides about the call. Before that, no work
// is done for the call.
func (f *Front) waitForIdentity(ctx context.Context) error {
	method, pending := ctx.Value(pendingKey{}).(string)
	if !pending {
		return nil
	}
	c, err := connectionOf(ctx)
	if err != nil {
		return transportgrpc.Status(err).Err()
	}
	if err = c.WaitForIdentity(ctx); err == nil {
		err = c.CheckMethod(method)
	}
	if err != nil {
		_, err = refuse(ctx, c, method, err)
	}
	return err
}

// identifiedStream is waitForIdentity for streams.
func (f *Front) identifiedStream(srv any, ss ggrpc.ServerStream, _ *ggrpc.StreamServerInfo, next ggrpc.StreamHandler) error {
	if err := f.waitForIdentity(ss.Context()); err != nil {
		return err
	}
	return next(srv, ss)
}

// bounded limits the time for the request of a call and, for unary and reflection calls, for the whole call.
func (f *Front) bounded(ctx context.Context, k listener.Kind, b *listener.Body) (context.Context, func()) {
	switch k {
	case listener.Unary:
		if sooner, ok := ctx.Deadline(); ok && time.Until(sooner) <= f.cfg.PublishTimeout {
			return ctx, func() {}
		}
		return context.WithTimeout(ctx, f.cfg.PublishTimeout)
	case listener.Reflecting:
		ctx, cancel := context.WithTimeout(ctx, f.cfg.PublishTimeout)
		b.Superseded(cancel)
		return ctx, cancel
	default: // the request of a stream is one small message, sent at once
		late := time.AfterFunc(f.cfg.PublishTimeout, func() { b.EndUnlessEnded() })
		return ctx, func() { late.Stop() }
	}
}

// reflect serves a reflection stream.
func (f *Front) reflect(srv any, ss ggrpc.ServerStream, next ggrpc.StreamHandler) error {
	a := callOf(ss.Context())
	if a == nil {
		return listener.ErrNoConnection
	}
	return next(srv, requestedCall{ServerStream: ss, body: a.body})
}

// requestedCall counts the messages on a reflection stream, which are cheap to send and expensive to answer.
type requestedCall struct {
	ggrpc.ServerStream
	body *listener.Body
}

// RecvMsg implements grpc.ServerStream.
func (a requestedCall) RecvMsg(m any) error {
	if err := a.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return a.body.Reserve()
}
