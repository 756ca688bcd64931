// Package kubeerror says what an error of a kube-apiserver means: whether another attempt may help or none will,
// and how metrics name it.
package kubeerror

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/internal/refusal"
)

// MaxObject is the largest request in bytes that etcd takes, as it comes; an object is written in one.
const MaxObject = 3 << 19

// An answer that is the same for manyTimes attempts in finalAfter is one about the object.
const (
	finalAfter = 2 * time.Minute
	manyTimes  = 10
)

// Rejected reports whether the server says that it will never take what it was given.
func Rejected(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || TooLarge(err)
}

// TooLarge reports whether the server has no room for an object. It hands on what etcd, or its client of
// etcd, says: an internal error, known by its text only.
func TooLarge(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) || answerOf(err) != "" &&
		(strings.Contains(err.Error(), "etcdserver: request is too large") || strings.Contains(err.Error(), "message larger than max"))
}

// Result is the label by which metrics name the answer to a request: ok, conflict, not_found, forbidden, rejected
// or error. A denial by a policy or webhook of the hub is forbidden, whatever code it chose: of a
// ValidatingAdmissionPolicy that is the code of an invalid object.
func Result(err error) string {
	switch {
	case err == nil:
		return "ok"
	case apierrors.IsConflict(err):
		return "conflict"
	case apierrors.IsNotFound(err):
		return "not_found"
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return "forbidden"
	case Rejected(err):
		if _, denied := refusal.Of(err); denied {
			return "forbidden"
		}
		return "rejected"
	}
	return "error"
}

// IgnoreNotFound returns err, nil where it says that the object is not there, as after a deletion.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// answerOf is what the server says of one write, "" where it says something of itself, of another state of the
// object, or nothing. Texts may differ each time.
func answerOf(err error) string {
	var s apierrors.APIStatus
	if !errors.As(err, &s) || apierrors.IsConflict(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsUnauthorized(err) {
		return ""
	}
	return fmt.Sprint(s.Status().Code, s.Status().Reason)
}

// Series are the refusals of one object, one after the other. The zero value is that of no refusal.
type Series struct {
	answer string
	times  int
	since  time.Time
}

// Final takes one more refusal, and reports whether to give up: the server says that it will never take the
// object, or has said the same again and again, and took another one meanwhile, at tookAt.
func (s *Series) Final(err error, now, tookAt time.Time) bool {
	if answer := answerOf(err); answer != s.answer {
		s.answer, s.times, s.since = answer, 0, now
	}
	s.times++
	return Rejected(err) || s.answer != "" && s.times >= manyTimes && now.Sub(s.since) >= finalAfter && tookAt.After(s.since)
}

// SizeOf is how many bytes an object, or a part of one, has in etcd, as JSON; 0 for one that cannot be encoded.
func SizeOf(object any) int {
	text, err := json.Marshal(object)
	if err != nil {
		return 0
	}
	return len(text)
}
