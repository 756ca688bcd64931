package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Code is the closed set of reasons for a failed call. Each listener maps it to its own codes in one table.
type Code int

// The codes.
const (
	// CodeInternal: a bug or a disk error; a retry may help.
	CodeInternal Code = iota
	// CodeInvalid: the event or request can never be accepted unchanged.
	CodeInvalid
	// CodeUnauthenticated: no or invalid credentials.
	CodeUnauthenticated
	// CodeDenied: the identity does not allow this.
	CodeDenied
	// CodeNotFound: the named object does not exist.
	CodeNotFound
	// CodeAlreadyExists: the name belongs to another work or owner.
	CodeAlreadyExists
	// CodeConflict: a condition (supersedes, if-revision) does not hold.
	CodeConflict
	// CodeTooLarge: the event exceeds the limit.
	CodeTooLarge
	// CodeOverloaded: try again after Error.Delay. With Error.Attribute or Error.ClusterOnly other events may still
	// be accepted.
	CodeOverloaded
	// CodeUnavailable: the connection or the peer has ended, or is about to end.
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

// NextStep is the action of the client that received an error.
type NextStep int

// The next steps; with the zero value the code determines the step.
const (
	NextUnspecified NextStep = iota
	// NextRefreshCredentials: get new credentials, then connect again.
	NextRefreshCredentials
	// NextResync: send the version list, or compare by inventory.
	NextResync
	// NextBackOff: retry unchanged after Delay.
	NextBackOff
	// NextStop: do not retry unchanged.
	NextStop
	// NextUseAnotherServer: connect again at once. This broker shuts down, and others of its hub accept the client.
	NextUseAnotherServer
)

// Error is the error of all calls over a transport.
type Error struct {
	Code Code
	// Next and Delay are the advice; see NextStep.
	Next  NextStep
	Delay time.Duration
	// Attribute is the context attribute at fault, without "ce-"; may be empty.
	Attribute string
	// ClusterOnly: the error applies to events of the same cluster; events for others need not wait.
	ClusterOnly bool
	// Full: the disk of the peer is full for all clients until an operator frees space.
	Full bool
	// Message is the problem, Hint the remedy; Hint may be empty.
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

// AttributeCertificate is the Attribute of an error that only a new certificate resolves: the shown one is
// valid but no longer accepted.
const AttributeCertificate = "certificate"

// GaveUp returns the error of a call that its caller cancelled; ctx determines the code.
func GaveUp(ctx context.Context, message string) *Error {
	e := &Error{Code: CodeUnavailable, Message: message, Err: ctx.Err()}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e.Code = CodeDeadline
	}
	return e
}

// Invalid returns the error for input that can never be accepted unchanged. It names the attribute of cause, if
// any; cause may be nil.
func Invalid(message string, cause error) *Error {
	e := &Error{Code: CodeInvalid, Next: NextStop, Message: message, Err: cause}
	if attribute, ok := errors.AsType[*codec.AttributeError](cause); ok {
		e.Attribute = attribute.Attribute
	}
	return e
}

// Undecodable returns the error for bytes that package codec rejects.
func Undecodable(err error) *Error {
	e := Invalid(err.Error(), err)
	e.Err = nil // the message has its text
	return e
}

// Refused returns an error that a retry cannot avoid. attribute is the wrong attribute, "" if there is no single
// one.
func Refused(code Code, attribute, message, hint string) *Error {
	return &Error{Code: code, Next: NextStop, Attribute: attribute, Message: message, Hint: hint}
}

// Unauthenticated returns the error for a client without valid credentials.
func Unauthenticated(message, hint string) *Error {
	return &Error{Code: CodeUnauthenticated, Next: NextRefreshCredentials, Message: message, Hint: hint}
}

// CodeOf returns the code of the first *Error in err's chain, else CodeInternal.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// Retryable reports whether the same call may succeed later. Advice of the peer (Next) takes precedence over
// the code.
func Retryable(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return true
	}
	switch e.Next {
	case NextStop:
		return false
	case NextBackOff, NextResync, NextRefreshCredentials, NextUseAnotherServer:
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
