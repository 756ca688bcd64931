package request

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// RetryAfter is how long a party waits before it tries a broker again that goes away
// or failed.
const RetryAfter = time.Second

// Refused is the error for what is the same however often it is tried; attribute is what
// is wrong, "" if nothing single is.
func Refused(code transport.Code, attribute, message, hint string) *transport.Error {
	return &transport.Error{Code: code, Next: transport.NextStop, Attribute: attribute, Message: message, Hint: hint}
}

// Unavailable is the error for what may succeed when it is tried again.
func Unavailable(attribute, message, hint string) *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: RetryAfter,
		Attribute: attribute, Message: message, Hint: hint,
	}
}

// Invalid is the error for what is wrong in itself.
func Invalid(attribute, message, hint string) *transport.Error {
	return Refused(transport.CodeInvalid, attribute, message, hint)
}

// Missing is the error for an event that lacks an attribute.
func Missing(attribute string) *transport.Error {
	return Invalid(attribute, fmt.Sprintf("attribute %q is required for this type of event", attribute), "")
}

// Undecodable is the error for bytes that package codec refuses.
func Undecodable(err error) *transport.Error {
	e := Invalid("", err.Error(), "")
	if a, ok := errors.AsType[*codec.AttributeError](err); ok {
		e.Attribute = a.Attribute
	}
	return e
}

// TooLarge is the error for an event above the limit.
func TooLarge(size, limit int) *transport.Error {
	return Refused(transport.CodeTooLarge, "", fmt.Sprintf("event of %d bytes, at most %d are taken", size, limit), "make the work smaller or split it")
}

// NotFound is the error for something named that is not there.
func NotFound(message, hint string) *transport.Error {
	return Refused(transport.CodeNotFound, "", message, hint)
}

// Overloaded is the error where there is no room at the moment.
func Overloaded(message string, delay time.Duration) *transport.Error {
	return &transport.Error{Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: delay, Message: message}
}

// ErrDraining is the error of a broker that drains.
func ErrDraining() *transport.Error {
	return Unavailable("", "the broker is shutting down", "connect again, to another replica if there is one")
}

// Internal is the error for what nobody but the broker can help.
func Internal(cause error) *transport.Error {
	return &transport.Error{
		Code: transport.CodeInternal, Next: transport.NextBackOff, Delay: RetryAfter,
		Message: "internal error, nothing was changed", Hint: "the broker's log says more", Err: cause,
	}
}

// Store is what a caller is told when the store did not do its work. What already is
// an answer stays as it is.
func Store(err error) *transport.Error {
	var e *transport.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, store.ErrClosed):
		return ErrDraining()
	case errors.Is(err, store.ErrBackup):
		return Overloaded("another backup is being made", RetryAfter)
	case errors.Is(err, store.ErrLow):
		// Without a delay: a source that waits with all it has to say would wait with
		// deletions too.
		return full("the broker's disk is nearly full: it takes deletions, and nothing new", 0, err)
	case errors.Is(err, store.ErrNoSpace):
		return full("the broker's disk is full, or it has no file descriptor left", RetryAfter, err)
	case errors.Is(err, store.ErrReadOnly):
		return &transport.Error{
			Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: 10 * RetryAfter,
			Message: "the broker's store takes no writes after an error",
			Hint:    "its operator has to look at the broker's log and restart it", Err: err,
		}
	}
	return Internal(err)
}

// full is the error where only a person makes room.
func full(message string, delay time.Duration, cause error) *transport.Error {
	e := Overloaded(message, delay)
	e.Full, e.Err = true, cause
	return e
}

// CallerGone is what a call returns whose own context ended first.
func CallerGone(ctx context.Context) *transport.Error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &transport.Error{
			Code: transport.CodeDeadline, Next: transport.NextBackOff, Delay: RetryAfter,
			Message: "the call took too long", Err: ctx.Err(),
		}
	}
	return &transport.Error{Code: transport.CodeUnavailable, Message: "the caller went away", Err: ctx.Err()}
}

// Broken is the end of a stream that could not be written to, or for which something could not
// be read.
func Broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return CallerGone(ctx)
	}
	if e, ok := err.(*transport.Error); ok { //nolint:errorlint // only our own are already what the peer is told
		return e
	}
	return &transport.Error{Code: transport.CodeUnavailable, Message: "the stream broke", Err: err}
}

// NoSubscription is the error for a sync event that belongs to no running
// subscription of its publisher.
func NoSubscription(from identity.Identity) *transport.Error {
	return Invalid(codec.HeaderSubscriptionID, "the event names no running subscription of "+from.String()+" that speaks this protocol",
		"name the subscription that it belongs to; what belonged to one that ended is void")
}

// NotOfSource is the error for what only sources ask for, on a subscription of an
// agent. The authorization table says so too, but for a party whose identity is what
// it claims.
func NotOfSource() *transport.Error {
	return Invalid(codec.HeaderSubscriptionID, "the subscription is not one of a source", "name the subscription to the statuses of the source's works")
}

// Superseded is the error for what a source said before something later.
func Superseded() *transport.Error {
	return Unavailable(codec.ExtFence, "the source has said something later", "say it again of what is so now, with a higher number")
}
