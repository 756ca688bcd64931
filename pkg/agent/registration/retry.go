package registration

import (
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// retry has the time of the next attempt and the last error.
type retry struct {
	failures int
	until    time.Time
	why      error
}

// failed doubles the last wait, between first and last. Half of the wait is random.
func (r *retry) failed(now time.Time, random float64, first, last time.Duration, why error) {
	d := min(last, first<<min(r.failures, 20)) // shifted by more it would exceed any last
	r.failures++
	r.until, r.why = now.Add(d/2+time.Duration(random*float64(d/2))), why
}

// reasonOf returns the reason of the hub's API, also if the broker sent it in its own form.
func reasonOf(err error) metav1.StatusReason {
	var e *transport.Error
	if !errors.As(err, &e) {
		return ""
	}
	if refusal, ok := codec.ParseAPIError(e.Message); ok && refusal.Reason != "" {
		return metav1.StatusReason(refusal.Reason)
	}
	switch e.Code {
	case transport.CodeAlreadyExists:
		return metav1.StatusReasonAlreadyExists
	case transport.CodeConflict:
		return metav1.StatusReasonConflict
	default:
		return ""
	}
}

// errorText returns an error text for operators; of the hub's API errors only the message.
func errorText(err error) string {
	if e, ok := errors.AsType[*transport.Error](err); ok {
		if refusal, ok := codec.ParseAPIError(e.Message); ok && refusal.Message != "" {
			return refusal.Message
		}
	}
	return err.Error()
}
