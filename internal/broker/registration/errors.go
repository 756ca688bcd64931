package registration

import (
	"errors"
	"time"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

const (
	noSource   = "no source serves registration at the moment"
	sourceGone = "the source that serves registration has disconnected; it is unknown whether the request was executed"
)

// apiError is the error for a rejection by the hub, or by the broker on its behalf. Clients of Open Cluster
// Management read the text; Hawser clients act on the code.
func apiError(e codec.APIError) *transport.Error {
	code, next := codeOf(e)
	out := &transport.Error{Code: code, Next: next, Message: e.Text()}
	if next == transport.NextBackOff {
		out.Delay = max(request.RetryAfter, time.Duration(e.Details.RetryAfterSeconds)*time.Second)
	}
	return out
}

// codeOf returns the code and the next step for an HTTP status of Kubernetes.
func codeOf(e codec.APIError) (transport.Code, transport.NextStep) {
	switch e.Code {
	case 400, 405, 415, 422:
		return transport.CodeInvalid, transport.NextStop
	case 401:
		return transport.CodeUnauthenticated, transport.NextRefreshCredentials
	case 403:
		return transport.CodeDenied, transport.NextStop
	case 404, 410:
		return transport.CodeNotFound, transport.NextStop
	case 409:
		if e.Reason == "AlreadyExists" {
			return transport.CodeAlreadyExists, transport.NextStop
		}
		return transport.CodeConflict, transport.NextResync
	case 413:
		return transport.CodeTooLarge, transport.NextStop
	case 429:
		return transport.CodeOverloaded, transport.NextBackOff
	case 503, 504:
		return transport.CodeUnavailable, transport.NextBackOff
	}
	return transport.CodeInternal, transport.NextBackOff
}

func unavailable(message string) *transport.Error {
	return apiError(codec.APIError{Code: 503, Reason: "ServiceUnavailable", Message: message})
}

func overloaded(message string) *transport.Error {
	return apiError(codec.APIError{Code: 429, Reason: "TooManyRequests", Message: message})
}

func forbidden(message string) *transport.Error {
	return apiError(codec.APIError{Code: 403, Reason: "Forbidden", Message: message})
}

// Refusal converts an error of the broker's own checks into the form of a Kubernetes API error. Agents of Open
// Cluster Management can read no other form. An error in this form is returned unchanged.
func Refusal(err error) error {
	var e *transport.Error
	if !errors.As(err, &e) {
		return err
	}
	if _, ok := codec.ParseAPIError(e.Message); ok {
		return err
	}
	status := codec.APIError{Code: 400, Reason: "BadRequest", Message: e.Message}
	switch e.Code {
	case transport.CodeDenied:
		status.Code, status.Reason = 403, "Forbidden"
	case transport.CodeUnauthenticated:
		status.Code, status.Reason = 401, "Unauthorized"
	case transport.CodeTooLarge:
		status.Code, status.Reason = 413, "RequestEntityTooLarge"
	case transport.CodeOverloaded:
		status.Code, status.Reason = 429, "TooManyRequests"
	case transport.CodeUnavailable, transport.CodeDeadline:
		status.Code, status.Reason = 503, "ServiceUnavailable"
	case transport.CodeInternal:
		status.Code, status.Reason = 500, "InternalError"
	case transport.CodeInvalid, transport.CodeNotFound, transport.CodeAlreadyExists, transport.CodeConflict:
	}
	sent := *e
	sent.Message = status.Text()
	return &sent
}
