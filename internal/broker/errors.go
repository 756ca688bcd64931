package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// comeBack is how long a party waits before it tries a broker again that goes
// away or failed.
const comeBack = time.Second

func invalid(attribute, message, hint string) *transport.Error {
	return &transport.Error{
		Code: transport.CodeInvalid, Next: transport.NextStop,
		Attribute: attribute, Message: message, Hint: hint,
	}
}

// missing is the error for an event that lacks an attribute.
func missing(attribute string) *transport.Error {
	return invalid(attribute, fmt.Sprintf("attribute %q is required for this type of event", attribute), "")
}

// undecodable is the error for bytes that package codec does not take.
func undecodable(err error) *transport.Error {
	e := invalid("", err.Error(), "")
	var a *codec.AttributeError
	if errors.As(err, &a) {
		e.Attribute = a.Attribute
	}
	return e
}

func tooLarge(size, limit int) *transport.Error {
	return &transport.Error{
		Code: transport.CodeTooLarge, Next: transport.NextStop,
		Message: fmt.Sprintf("event of %d bytes, at most %d are taken", size, limit),
		Hint:    "make the work smaller or split it",
	}
}

func overloaded(message string, delay time.Duration) *transport.Error {
	return &transport.Error{Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: delay, Message: message}
}

func goingAway() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: comeBack,
		Message: "the broker is shutting down",
		Hint:    "connect again, to another replica if there is one",
	}
}

func internalError(cause error) *transport.Error {
	return &transport.Error{
		Code: transport.CodeInternal, Next: transport.NextBackOff, Delay: comeBack,
		Message: "internal error, nothing was changed", Hint: "the broker's log says more", Err: cause,
	}
}

// storeError is what a caller is told when the store did not do its work.
// What already is an answer stays as it is.
func storeError(err error) *transport.Error {
	var e *transport.Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, store.ErrClosed) {
		return goingAway()
	}
	if errors.Is(err, store.ErrReadOnly) {
		return &transport.Error{
			Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: 10 * comeBack,
			Message: "the broker's store takes no writes after an error",
			Hint:    "its operator has to look at the broker's log and restart it", Err: err,
		}
	}
	return internalError(err)
}

// callerGone is what a call returns whose own context ended first.
func callerGone(ctx context.Context) *transport.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &transport.Error{
			Code: transport.CodeDeadline, Next: transport.NextBackOff, Delay: comeBack,
			Message: "the call took too long", Err: ctx.Err(),
		}
	}
	return &transport.Error{Code: transport.CodeUnavailable, Message: "the caller went away", Err: ctx.Err()}
}
