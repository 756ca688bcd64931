package registration

import (
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// retry is when something that failed is tried again, and why it failed.
type retry struct {
	failures int
	until    time.Time
	why      error
}

// failed waits twice as long as the last time, from first to last; half of it is random.
func (r *retry) failed(now time.Time, random float64, first, last time.Duration, why error) {
	d := min(last, first<<min(r.failures, 20)) // from a second, that is above any last
	r.failures++
	r.until, r.why = now.Add(d/2+time.Duration(random*float64(d/2))), why
}

// reasonOf is the reason that the hub's API gave, also where the broker answered in its form.
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

// plainly is an error as people read it: of the hub's API only what it says.
func plainly(err error) string {
	if e, ok := errors.AsType[*transport.Error](err); ok {
		if refusal, ok := codec.ParseAPIError(e.Message); ok && refusal.Message != "" {
			return refusal.Message
		}
	}
	return err.Error()
}
