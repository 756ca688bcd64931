package kubeerror_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/internal/kubeerror"
)

// internal is an API server's error without a reason, as for an error of etcd.
func internal(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: text}}
}

var errDown = apierrors.NewServiceUnavailable("the server has just begun")

func TestRejected(t *testing.T) {
	for _, err := range []error{
		internal("etcdserver: request is too large"),
		internal("rpc error: code = ResourceExhausted desc = trying to send message larger than max (2100000 vs. 2097152)"),
		apierrors.NewRequestEntityTooLargeError("limit is 3145728"), apierrors.NewBadRequest("what?"),
		apierrors.NewInvalid(schema.GroupKind{Kind: "A"}, "a", nil),
	} {
		if !kubeerror.Rejected(err) {
			t.Errorf("%v is not final", err)
		}
	}
	for _, err := range []error{
		nil, errors.New("etcdserver: request is too large"), errDown, apierrors.NewConflict(schema.GroupResource{}, "a", nil),
		internal("rpc error: code = ResourceExhausted desc = etcdserver: mvcc: database space exceeded"), internal("etcdserver: too many requests"),
	} {
		if kubeerror.Rejected(err) {
			t.Errorf("%v is final", err)
		}
	}
}

func TestSeries(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	after := func(s *kubeerror.Series, err error, tookAt time.Time) (final time.Duration) {
		for d := time.Duration(0); d < 10*time.Minute; d += 10 * time.Second {
			if s.IsFinal(err, begin.Add(d), tookAt) {
				return d
			}
		}
		return -1
	}
	webhook := internal("failed calling webhook")
	for name, c := range map[string]struct {
		err    error
		tookAt time.Duration
		want   time.Duration
	}{
		"others are taken":         {webhook, time.Second, 2 * time.Minute},
		"others were taken before": {webhook, -time.Second, -1},
		"about the server":         {errDown, time.Second, -1},
		"no answer":                {errors.New("connection refused"), time.Second, -1},
		"conflict":                 {apierrors.NewConflict(schema.GroupResource{}, "a", nil), time.Second, -1},
		"rejected":                 {apierrors.NewBadRequest("what?"), -time.Second, 0},
	} {
		if got := after(&kubeerror.Series{}, c.err, begin.Add(c.tookAt)); got != c.want {
			t.Errorf("%s: given up after %v, want %v", name, got, c.want)
		}
	}
}

// TestResult: a write that a policy denies is forbidden, also in the log of hub-source, even if its code is
// that of an invalid object.
func TestResult(t *testing.T) {
	byPolicy := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: `manifestworks "a" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no`,
	}}
	for want, err := range map[string]error{
		"ok": nil, "forbidden": byPolicy, "rejected": apierrors.NewInvalid(schema.GroupKind{Kind: "A"}, "a", nil), "error": errDown,
		"conflict": apierrors.NewConflict(schema.GroupResource{}, "a", nil), "not_found": apierrors.NewNotFound(schema.GroupResource{}, "a"),
	} {
		if got := kubeerror.Result(err); got != want {
			t.Errorf("%v is %s, want %s", err, got, want)
		}
	}
	if got := kubeerror.Result(internal(`Internal error occurred: failed calling webhook "w": connection refused`)); got != "error" {
		t.Errorf("a webhook that does not answer is %s", got)
	}
	if got := kubeerror.Result(apierrors.NewForbidden(schema.GroupResource{}, "a", nil)); got != "forbidden" {
		t.Errorf("a right that is missing is %s", got)
	}
}
