package grpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/grpc/tap"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/denials"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
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
		c.calls.Inc()
		return admitted, nil
	}
	if deadline, _ := ctx.Deadline(); !c.refused.Spend(c.allowed.refused, f.gate.now(), costOfRefusal(time.Until(deadline))) {
		f.gate.flood(c)
	}
	f.refusedCall(c, info.FullMethodName, reasonOf(err), err)
	return ctx, transportgrpc.Status(err).Err()
}

// admit counts a call, if c may make it: what it uses is given back when the
// context ends that is returned.
func (f *Front) admit(ctx context.Context, c *connection, method string) (context.Context, error) {
	if c.refusal != nil {
		return ctx, c.refusal
	}
	if !c.believed {
		if e := (*transport.Error)(nil); errors.As(authz.May(c.identity, method), &e) {
			return ctx, &refusal{reason: "role", told: e}
		}
	}
	b, k := c.opened, kindOf(method)
	if b == nil {
		return ctx, errNoConnection
	}
	admitted, stop := f.bounded(ctx, k, b)
	if err := f.gate.begin(c, k, b); err != nil {
		stop()
		return ctx, err
	}
	c.opened = nil
	context.AfterFunc(admitted, func() { stop(); f.gate.end(b) })
	return admitted, nil
}

// bounded bounds how long the message of a call may take, and the call where that
// is all there is to it.
func (f *Front) bounded(ctx context.Context, k kind, b *body) (context.Context, func()) {
	switch k {
	case unary:
		return context.WithTimeout(ctx, f.cfg.PublishTimeout)
	case reflecting:
		ctx, cancel := context.WithTimeout(context.WithValue(ctx, bodyKey{}, b), f.cfg.PublishTimeout)
		b.cancel = cancel
		return ctx, cancel
	default: // what opens a stream is one small message, which comes at once
		late := time.AfterFunc(f.cfg.PublishTimeout, func() { f.gate.endUnlessEnded(b) })
		return ctx, func() { late.Stop() }
	}
}

// bodyKey is the key of a reflection stream's body in its context.
type bodyKey struct{}

// reflect serves a reflection stream.
func (f *Front) reflect(srv any, ss ggrpc.ServerStream, next ggrpc.StreamHandler) error {
	b, ok := ss.Context().Value(bodyKey{}).(*body)
	if !ok {
		return errNoConnection
	}
	return next(srv, asked{ServerStream: ss, gate: f.gate, body: b})
}

// asked counts what comes on a reflection stream, which is cheap to send and dear
// to answer.
type asked struct {
	ggrpc.ServerStream
	gate *gate
	body *body
}

// RecvMsg implements grpc.ServerStream.
func (a asked) RecvMsg(m any) error {
	if err := a.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return a.gate.ask(a.body)
}

// refusal is an answer to a call that is not let in.
type refusal struct {
	told *transport.Error
	// reason is a value of a metric's label.
	reason string
}

// Error implements error.
func (r *refusal) Error() string { return r.told.Error() }

// Unwrap returns what the caller is told.
func (r *refusal) Unwrap() error { return r.told }

// reasonOf is why a call is refused, as metrics and the audit stream name it.
func reasonOf(err error) string {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.reason
	}
	return transport.CodeOf(err).String()
}

// unidentified is the answer to who showed no certificate.
func unidentified() *refusal {
	return &refusal{reason: "no_certificate", told: &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
		Message: "the call needs an identity",
		Hint:    "connect with a client certificate that the broker's CA signed and its configuration maps to a role; health for probes is at /readyz of the admin port",
	}}
}

// unmapped is the answer to a certificate nobody knows.
func unmapped(err error) *refusal {
	return &refusal{reason: "unmapped", told: &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
		Message: err.Error(),
		Hint:    "add an identity rule for this subject to the broker's configuration, or use another certificate",
	}}
}

// keptOut is the answer to who an operator keeps out. What to do is said by the
// code too: a party gets new credentials, and comes back until it is let in.
func keptOut(id identity.Identity, d denials.Denial) *refusal {
	e := &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
		Message: fmt.Sprintf("%s is denied by an operator of the broker since %s", id, d.At.UTC().Format(time.RFC3339)),
		Hint:    "an operator lets it in again with: hawser allow " + d.Subject.String(),
	}
	if d.Subject.Serial != "" {
		e.Message = fmt.Sprintf("certificate %s of %s is denied by an operator of the broker since %s", d.Subject.Serial, id, d.At.UTC().Format(time.RFC3339))
		e.Hint = "get another certificate, or have an operator let this one in again with: hawser allow " + d.Subject.String()
	}
	return &refusal{reason: denied, told: e}
}

// comeBack is what who asks too much is told to wait.
const comeBack = time.Second

// overloaded is the answer to who asks too much.
func overloaded(reason, message, hint string) *refusal {
	return &refusal{reason: reason, told: &transport.Error{
		Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: comeBack, Message: message, Hint: hint,
	}}
}

// tooMany is the answer to who has all it may have.
func tooMany(id identity.Identity, what string, most int) *refusal {
	return overloaded("number", fmt.Sprintf("%s has %d %s, which is all it may have at a time", id, most, what),
		"end some, or give programs that share a certificate one each")
}

// tooManyLists is the answer where others list.
func tooManyLists(most int) *refusal {
	return overloaded("lists", fmt.Sprintf("%d lists are being made, which is all that are at a time", most), "try again")
}

// tooMuch is the answer to who has sent more bytes than it may.
func tooMuch(id identity.Identity) *refusal {
	return overloaded("rate", fmt.Sprintf("%s sends more bytes than it may", id), "try again later, and send less: a status that changes often need not be sent each time")
}

// tooOften is the answer to who asks too fast.
func tooOften(id identity.Identity, what string) *refusal {
	return overloaded("rate", fmt.Sprintf("%s begins %s faster than it may", id, what), "try again later, and less often")
}
