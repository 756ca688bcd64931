package grpc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// maxText bounds message and hint of a status, in bytes. Both are sent in HTTP/2 headers, which peers limit to
// as little as 8 KiB, with the details base64 encoded.
const maxText = 1024

// toGRPC maps each code to its gRPC code, one to one. An OCM client, which reads no details, then still
// distinguishes "too large" (OutOfRange) from "retry later" (ResourceExhausted).
var toGRPC = map[transport.Code]codes.Code{
	transport.CodeInternal:        codes.Internal,
	transport.CodeInvalid:         codes.InvalidArgument,
	transport.CodeUnauthenticated: codes.Unauthenticated,
	transport.CodeDenied:          codes.PermissionDenied,
	transport.CodeNotFound:        codes.NotFound,
	transport.CodeAlreadyExists:   codes.AlreadyExists,
	transport.CodeConflict:        codes.Aborted,
	transport.CodeTooLarge:        codes.OutOfRange,
	transport.CodeOverloaded:      codes.ResourceExhausted,
	transport.CodeUnavailable:     codes.Unavailable,
	transport.CodeDeadline:        codes.DeadlineExceeded,
}

// fromGRPC is the inverse of toGRPC. It also maps the codes of OCM brokers, proxies and the gRPC library.
var fromGRPC = map[codes.Code]transport.Code{
	codes.Internal:          transport.CodeInternal,
	codes.InvalidArgument:   transport.CodeInvalid,
	codes.Unauthenticated:   transport.CodeUnauthenticated,
	codes.PermissionDenied:  transport.CodeDenied,
	codes.NotFound:          transport.CodeNotFound,
	codes.AlreadyExists:     transport.CodeAlreadyExists,
	codes.Aborted:           transport.CodeConflict,
	codes.OutOfRange:        transport.CodeTooLarge,
	codes.ResourceExhausted: transport.CodeOverloaded,
	codes.Unavailable:       transport.CodeUnavailable,
	codes.DeadlineExceeded:  transport.CodeDeadline,

	// The caller's own cancellation is recognised by its context before this table is used. Other cancellations
	// come from a proxy or from Close.
	codes.Canceled: transport.CodeUnavailable,
	// OCM brokers answer Unknown if a handler returned an error without a code, and FailedPrecondition for all
	// failures of their backend.
	codes.Unknown:            transport.CodeInternal,
	codes.FailedPrecondition: transport.CodeInternal,
	codes.DataLoss:           transport.CodeInternal,
	codes.Unimplemented:      transport.CodeInvalid,
}

var toNextStep = map[transport.NextStep]hawserv1.NextStep{
	transport.NextUnspecified:        hawserv1.NextStep_NEXT_STEP_UNSPECIFIED,
	transport.NextRefreshCredentials: hawserv1.NextStep_NEXT_STEP_REFRESH_CREDENTIALS,
	transport.NextResync:             hawserv1.NextStep_NEXT_STEP_RESYNC,
	transport.NextBackOff:            hawserv1.NextStep_NEXT_STEP_BACK_OFF,
	transport.NextStop:               hawserv1.NextStep_NEXT_STEP_STOP,
	transport.NextUseAnotherServer:   hawserv1.NextStep_NEXT_STEP_USE_ANOTHER_SERVER,
}

var fromNextStep = map[hawserv1.NextStep]transport.NextStep{
	hawserv1.NextStep_NEXT_STEP_UNSPECIFIED:         transport.NextUnspecified,
	hawserv1.NextStep_NEXT_STEP_REFRESH_CREDENTIALS: transport.NextRefreshCredentials,
	hawserv1.NextStep_NEXT_STEP_RESYNC:              transport.NextResync,
	hawserv1.NextStep_NEXT_STEP_BACK_OFF:            transport.NextBackOff,
	hawserv1.NextStep_NEXT_STEP_STOP:                transport.NextStop,
	hawserv1.NextStep_NEXT_STEP_USE_ANOTHER_SERVER:  transport.NextUseAnotherServer,
}

// Status returns the gRPC status for err, OK for nil. It contains code, message, attribute, hint, next step,
// delay and scope of the first *transport.Error in err's chain. It never contains the cause.
//
// An error that is already a status is returned unchanged. A context error becomes Canceled or
// DeadlineExceeded. Any other error becomes Internal without its text, which may name files or other clients.
// Log it where it occurs.
func Status(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	if te, ok := errors.AsType[*transport.Error](err); ok {
		return fromError(te)
	}
	if st, ok := status.FromError(err); ok {
		return st
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err)
	}
	return status.New(codes.Internal, "internal error")
}

func fromError(e *transport.Error) *status.Status {
	code, ok := toGRPC[e.Code]
	if !ok {
		code = codes.Internal
	}
	st := status.New(code, clip(e.Message))
	if e.Next == transport.NextUnspecified && e.Delay <= 0 && e.Attribute == "" && !e.ClusterOnly && !e.Full && e.Hint == "" {
		return st
	}
	detail := &hawserv1.ErrorDetail{
		NextStep:    toNextStep[e.Next],
		Attribute:   clip(e.Attribute),
		ClusterOnly: e.ClusterOnly,
		Full:        e.Full,
		Hint:        clip(e.Hint),
	}
	if e.Delay > 0 {
		detail.Delay = durationpb.New(e.Delay)
	}
	withDetail, err := st.WithDetails(protoadapt.MessageV1Of(detail))
	if err != nil {
		// Reached only if the message cannot be encoded. The code alone is still correct.
		return st
	}
	return withDetail
}

// clip returns s as valid UTF-8 of at most maxText bytes. Other text cannot be encoded, or exceeds the peer's
// header limit.
func clip(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "")
}

// FromStatus returns the *transport.Error of an RPC that failed with err, or nil for nil or an OK status. It
// also maps codes of OCM brokers, proxies and the gRPC library; see fromGRPC. A caller must check its own
// context first. Canceled here means that the other side cancelled.
func FromStatus(err error) *transport.Error {
	if err == nil {
		return nil
	}
	if te, ok := errors.AsType[*transport.Error](err); ok {
		return te
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	if st.Code() == codes.OK {
		return nil
	}
	code, ok := fromGRPC[st.Code()]
	if !ok {
		code = transport.CodeInternal
	}
	e := &transport.Error{Code: code, Message: st.Message()}
	if detail := errorDetail(st); detail != nil {
		e.Next = fromNextStep[detail.GetNextStep()]
		e.Delay = delayOf(detail.GetDelay())
		e.Attribute, e.ClusterOnly, e.Full = detail.GetAttribute(), detail.GetClusterOnly(), detail.GetFull()
		e.Hint = detail.GetHint()
		return e
	}
	explainForeign(e, st)
	return e
}

func errorDetail(st *status.Status) *hawserv1.ErrorDetail {
	for _, d := range st.Details() {
		if detail, ok := d.(*hawserv1.ErrorDetail); ok {
			return detail
		}
	}
	return nil
}

// delayOf returns the delay that a peer sent, 0 if it is missing, invalid or negative.
func delayOf(d *durationpb.Duration) time.Duration {
	if d == nil || d.CheckValid() != nil {
		return 0
	}
	return max(0, d.AsDuration())
}

// explainForeign improves errors that no Hawser broker sent.
func explainForeign(e *transport.Error, st *status.Status) {
	switch st.Code() {
	case codes.ResourceExhausted:
		// The gRPC library rejects a message above its limit, on either side, with the code of an overload and no
		// detail. Only its text distinguishes "never" from "later".
		if strings.Contains(st.Message(), "larger than max") {
			e.Code = transport.CodeTooLarge
			e.Hint = "raise the largest event size on both sides, or make the event smaller"
		}
	case codes.Unimplemented:
		e.Hint = "the server at this address does not serve io.cloudevents.v1.CloudEventService; check host and port"
	case codes.FailedPrecondition:
		explainOCM(e, st.Message())
	default:
		if e.Message == "" {
			e.Message = "the peer answered " + st.Code().String() + " without a reason"
		}
	}
}

// explainOCM reads the errors of an OCM broker's backend: the Go value of the error as JSON. An API error is
// {"ErrStatus": <Kubernetes status>}, any other error is {}.
func explainOCM(e *transport.Error, message string) {
	if !strings.HasPrefix(message, "{") {
		return
	}
	var body struct {
		ErrStatus struct {
			Message string `json:"message"`
			Code    int    `json:"code"`
		} `json:"ErrStatus"`
	}
	if err := json.Unmarshal([]byte(message), &body); err != nil {
		return // another text that begins with a brace; it is kept
	}
	switch body.ErrStatus.Code {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		e.Code = transport.CodeInvalid
	case http.StatusForbidden:
		e.Code = transport.CodeDenied
	case http.StatusNotFound:
		e.Code = transport.CodeNotFound
	case http.StatusConflict:
		// The backend lost a race against another writer of the same object; the event itself is valid.
		e.Code, e.Next = transport.CodeConflict, transport.NextBackOff
	}
	e.Message = body.ErrStatus.Message
	if e.Message == "" {
		e.Message = "the broker's backend failed without a reason"
	}
}
