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

// alreadyExists reports whether the hub has the object already. The broker may have sent the reason of the hub's API in
// its own form.
func alreadyExists(err error) bool {
	e, ok := errors.AsType[*transport.Error](err)
	if !ok {
		return false
	}
	if refusal, ok := codec.ParseAPIError(e.Message); ok && refusal.Reason != "" {
		return refusal.Reason == string(metav1.StatusReasonAlreadyExists)
	}
	return e.Code == transport.CodeAlreadyExists
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
