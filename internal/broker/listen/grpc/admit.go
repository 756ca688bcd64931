package grpc

import (
	"context"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/tap"

	"github.com/hawser-io/hawser/internal/broker/listen"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// costOfRefusal is in refused calls: what the library made for one it keeps until
// the deadline that its caller chose.
func costOfRefusal(deadline time.Duration) float64 {
	if deadline > time.Minute {
		return 20
	}
	return 1
}

// tap judges a call by its headers, before anything of its body is read. It runs
// in the goroutine that reads the connection, and holds all of its calls up.
func (f *Front) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	c, err := connectionOf(ctx)
	if err != nil {
		return ctx, transportgrpc.Status(err).Err()
	}
	admitted, err := f.admit(ctx, c, info.FullMethodName)
	if err == nil {
		return admitted, nil
	}
	deadline, _ := ctx.Deadline()
	c.Insist(costOfRefusal(time.Until(deadline)))
	c.Refused(info.FullMethodName, listen.ReasonOf(err), err)
	return ctx, transportgrpc.Status(err).Err()
}

// admit counts a call, if c may make it: what it uses is given back when the
// context ends that is returned.
func (f *Front) admit(ctx context.Context, c *connection, method string) (context.Context, error) {
	if err := c.May(method); err != nil {
		return ctx, err
	}
	b, k := c.opened, listen.KindOf(method)
	if b == nil {
		return ctx, listen.ErrNoConnection
	}
	admitted, stop := f.bounded(ctx, k, b)
	if err := c.Begin(k, b); err != nil {
		stop()
		return ctx, err
	}
	c.opened = nil
	context.AfterFunc(admitted, func() { stop(); b.End() })
	return admitted, nil
}

// bounded bounds how long the message of a call may take, and the call where that
// is all there is to it.
func (f *Front) bounded(ctx context.Context, k listen.Kind, b *listen.Body) (context.Context, func()) {
	switch k {
	case listen.Unary:
		return context.WithTimeout(ctx, f.cfg.PublishTimeout)
	case listen.Reflecting:
		ctx, cancel := context.WithTimeout(context.WithValue(ctx, bodyKey{}, b), f.cfg.PublishTimeout)
		b.Superseded(cancel)
		return ctx, cancel
	default: // what opens a stream is one small message, which comes at once
		late := time.AfterFunc(f.cfg.PublishTimeout, func() { b.EndUnlessEnded() })
		return ctx, func() { late.Stop() }
	}
}

// bodyKey is the key of a reflection stream's body in its context.
type bodyKey struct{}

// reflect serves a reflection stream.
func (f *Front) reflect(srv any, ss ggrpc.ServerStream, next ggrpc.StreamHandler) error {
	b, ok := ss.Context().Value(bodyKey{}).(*listen.Body)
	if !ok {
		return listen.ErrNoConnection
	}
	return next(srv, asked{ServerStream: ss, body: b})
}

// asked counts what comes on a reflection stream, which is cheap to send and dear
// to answer.
type asked struct {
	ggrpc.ServerStream
	body *listen.Body
}

// RecvMsg implements grpc.ServerStream.
func (a asked) RecvMsg(m any) error {
	if err := a.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return a.body.Ask()
}
