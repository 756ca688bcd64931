package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Code is the closed set of reasons for which a call fails. Every front maps
// it to its own codes in one table.
type Code int

// The codes.
const (
	// CodeInternal: a bug or a broken disk; trying again may help.
	CodeInternal Code = iota
	// CodeInvalid: the event or request can never be accepted as it is.
	CodeInvalid
	// CodeUnauthenticated: no or bad credentials.
	CodeUnauthenticated
	// CodeDenied: the identity does not allow this.
	CodeDenied
	// CodeNotFound: the thing named does not exist.
	CodeNotFound
	// CodeAlreadyExists: the name is taken by another work or owner.
	CodeAlreadyExists
	// CodeConflict: a condition (supersedes, if-revision) does not hold.
	CodeConflict
	// CodeTooLarge: the event is above the limit.
	CodeTooLarge
	// CodeOverloaded: try again after Error.Delay. With Error.Attribute or
	// Error.ClusterOnly other events may be taken meanwhile.
	CodeOverloaded
	// CodeUnavailable: the connection or the peer is gone or going away.
	CodeUnavailable
	// CodeDeadline: the peer did not answer in time.
	CodeDeadline
)

// String returns the name of the code, for logs and metrics.
func (c Code) String() string {
	names := [...]string{"internal", "invalid", "unauthenticated", "denied", "not_found", "already_exists", "conflict", "too_large", "overloaded", "unavailable", "deadline"}
	if c < 0 || int(c) >= len(names) {
		return fmt.Sprintf("code(%d)", int(c))
	}
	return names[c]
}

// NextStep is what the party that got an error should do.
type NextStep int

// The next steps; the zero value leaves it to the code.
const (
	NextUnspecified NextStep = iota
	// NextRefreshCredentials: get new credentials, then connect again.
	NextRefreshCredentials
	// NextResync: send the version list, or compare by inventory.
	NextResync
	// NextBackOff: try the same again after Delay.
	NextBackOff
	// NextStop: never try the same again.
	NextStop
)

// Error is the error of every call that crosses a transport.
type Error struct {
	Code Code
	// Next and Delay tell what to do; see NextStep.
	Next  NextStep
	Delay time.Duration
	// Attribute is the context attribute at fault, without "ce-"; may be empty.
	Attribute string
	// ClusterOnly: it is about what comes for the same cluster; what comes for others
	// need not wait.
	ClusterOnly bool
	// Full: the peer has no room on its disk, whoever asks, until a person makes some.
	Full bool
	// Message says what is wrong, Hint what a person can do; Hint may be empty.
	Message string
	Hint    string
	// Err is the cause, never sent to the peer; may be nil.
	Err error
}

// Error returns code, message and hint; the cause is added if there is one.
func (e *Error) Error() string {
	s := e.Code.String() + ": " + e.Message
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AttributeCertificate is the Attribute of an error that only a new certificate ends: the one that was
// shown is good, and does not count any more.
const AttributeCertificate = "certificate"

// GaveUp is the error of a call whose caller gave up, which ctx tells.
func GaveUp(ctx context.Context, message string) *Error {
	e := &Error{Code: CodeUnavailable, Message: message, Err: ctx.Err()}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.Code = CodeDeadline
	}
	return e
}

// Invalid is the error about what can never be taken as it is. It names the attribute that
// cause is about, if any; cause may be nil.
func Invalid(message string, cause error) *Error {
	e := &Error{Code: CodeInvalid, Next: NextStop, Message: message, Err: cause}
	if attribute, ok := errors.AsType[*codec.AttributeError](cause); ok {
		e.Attribute = attribute.Attribute
	}
	return e
}

// CodeOf returns the code of the first *Error in err's chain, else CodeInternal.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// Retryable reports whether the same call may succeed later. Explicit advice
// of the peer (Next) wins over the code.
func Retryable(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return true
	}
	switch e.Next {
	case NextStop:
		return false
	case NextBackOff, NextResync, NextRefreshCredentials:
		return true
	case NextUnspecified:
	}
	switch e.Code {
	case CodeInvalid, CodeDenied, CodeNotFound, CodeAlreadyExists, CodeConflict, CodeTooLarge:
		return false
	case CodeInternal, CodeUnauthenticated, CodeOverloaded, CodeUnavailable, CodeDeadline:
		return true
	}
	return true
}
