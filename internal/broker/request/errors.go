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

// RetryAfter is the retry delay in the errors of a broker that shuts down or failed.
const RetryAfter = time.Second

// Unavailable returns an error that a retry may avoid.
func Unavailable(attribute, message, hint string) *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: RetryAfter,
		Attribute: attribute, Message: message, Hint: hint,
	}
}

// Invalid returns the error for an invalid event.
func Invalid(attribute, message, hint string) *transport.Error {
	return transport.Refused(transport.CodeInvalid, attribute, message, hint)
}

// Missing returns the error for an event without a required attribute.
func Missing(attribute string) *transport.Error {
	return Invalid(attribute, fmt.Sprintf("attribute %q is required for this type of event", attribute), "")
}

// TooLarge returns the error for an event above the size limit.
func TooLarge(size, limit int) *transport.Error {
	return transport.Refused(transport.CodeTooLarge, "", fmt.Sprintf("event of %d bytes, at most %d are accepted", size, limit), "make the work smaller or split it")
}

// NotFound returns the error for a named object that does not exist.
func NotFound(message, hint string) *transport.Error {
	return transport.Refused(transport.CodeNotFound, "", message, hint)
}

// Overloaded returns the error for a lack of capacity.
func Overloaded(message string, delay time.Duration) *transport.Error {
	return &transport.Error{Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: delay, Message: message}
}

// SubscriptionOver returns the error for an event that names a subscription which has ended, here or at another broker.
func SubscriptionOver() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Attribute: codec.HeaderSubscriptionID,
		Message: "the subscription that the event names has ended", Hint: "publish it again on the next subscription",
	}
}

// ErrDraining returns the error of a broker that drains.
func ErrDraining() *transport.Error {
	return Unavailable("", "the broker is shutting down", "connect again, to another replica if there is one")
}

// ErrMoved returns the error of a broker that moves clients to other replicas: before it drains, or because it has more
// than its share.
func ErrMoved() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextUseAnotherServer,
		Message: "the broker moves this client to another replica", Hint: "connect again: other replicas accept this client",
	}
}

// Internal returns the error for a fault of the broker itself.
func Internal(cause error) *transport.Error {
	return &transport.Error{
		Code: transport.CodeInternal, Next: transport.NextBackOff, Delay: RetryAfter,
		Message: "internal error, nothing was changed", Hint: "the broker's log has the reason", Err: cause,
	}
}

// Store returns the answer to a caller when the store failed. A transport.Error stays as it is.
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
		// The error has no delay, because a source would also delay its deletions.
		return full("the broker's disk is nearly full; it accepts only deletions", 0, err)
	case errors.Is(err, store.ErrNoSpace):
		return full("the broker's disk is full, or it has no file descriptor left", RetryAfter, err)
	case errors.Is(err, store.ErrUnavailable):
		e := Unavailable("", "the database of the broker is not available", "the broker's log names the database and the problem")
		e.Err = err
		return e
	case errors.Is(err, store.ErrReadOnly):
		return &transport.Error{
			Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: 10 * RetryAfter,
			Message: "the broker's store rejects writes after an error",
			Hint:    "the operator of the broker must read its log and restart it", Err: err,
		}
	}
	return Internal(err)
}

// full returns the error if only deletions, or an operator, can make space.
func full(message string, delay time.Duration, cause error) *transport.Error {
	e := Overloaded(message, delay)
	e.Full, e.Err = true, cause
	return e
}

// CallerGone returns the error of a call whose own context ended first.
func CallerGone(ctx context.Context) *transport.Error {
	e := transport.GaveUp(ctx, "the caller has disconnected")
	if e.Code == transport.CodeDeadline {
		e.Next, e.Delay, e.Message = transport.NextBackOff, RetryAfter, "the call took too long"
	}
	return e
}

// StoreCall returns the error of a call of the store for a caller with this context, nil if there is none.
func StoreCall(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return CallerGone(ctx)
	default:
		return Store(err)
	}
}

// StreamBroken returns the error of a stream on which a write failed, or for which data could not be read.
func StreamBroken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return CallerGone(ctx)
	}
	if e, ok := err.(*transport.Error); ok { //nolint:errorlint // only an unwrapped *transport.Error is already the answer to the peer
		return e
	}
	return &transport.Error{Code: transport.CodeUnavailable, Message: "the stream broke", Err: err}
}

// NoSubscription returns the error for a sync event that names no running subscription of its publisher.
func NoSubscription(from identity.Identity) *transport.Error {
	return Invalid(codec.HeaderSubscriptionID, "the event names no running subscription of "+from.String()+" that speaks this protocol",
		"name the running subscription; events of an ended subscription are discarded")
}

// NotOfSource returns the error for an event that only sources may send, on a subscription of an agent. The
// authorization table rejects it too, except for a client that may claim any identity.
func NotOfSource() *transport.Error {
	return Invalid(codec.HeaderSubscriptionID, "the subscription is not one of a source", "name the subscription to the statuses of the source's works")
}

// Superseded returns the error for an event that a later event of its source supersedes.
func Superseded() *transport.Error {
	return Unavailable(codec.ExtFence, "the source has sent a later event", "publish the current state again with a higher number")
}
