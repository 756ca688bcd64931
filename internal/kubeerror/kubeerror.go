// Package kubeerror classifies the errors of a kube-apiserver: whether another attempt may help, and how
// metrics name them.
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

// MaxObject is the largest request in bytes that etcd accepts by default; one request writes a whole object.
const MaxObject = 3 << 19

// An answer that stays the same for manyTimes attempts, and for finalAfter at least, is about the object.
const (
	finalAfter = 2 * time.Minute
	manyTimes  = 10
)

// Rejected reports whether the server will never accept the object.
func Rejected(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || TooLarge(err)
}

// TooLarge reports whether an object is too large for the server. The server returns the text of etcd, or of
// its client, as an internal error, so only the text identifies it.
func TooLarge(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) || answerOf(err) != "" &&
		(strings.Contains(err.Error(), "etcdserver: request is too large") || strings.Contains(err.Error(), "message larger than max"))
}

// Result returns the metric label of the answer to a request: ok, conflict, not_found, forbidden, rejected or
// error. A denial by a policy or webhook of the hub is forbidden, whatever its code is. The code of a
// ValidatingAdmissionPolicy is that of an invalid object.
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

// IgnoreNotFound returns err, or nil if the object does not exist, as after a deletion.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// answerOf returns the server's answer about one write. It returns "" for an answer about the server itself, or
// about another state of the object, and for no answer. Texts may differ each time.
func answerOf(err error) string {
	var s apierrors.APIStatus
	if !errors.As(err, &s) || apierrors.IsConflict(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsUnauthorized(err) {
		return ""
	}
	return fmt.Sprint(s.Status().Code, s.Status().Reason)
}

// Series counts refusals of one object in a row. The zero value has none.
type Series struct {
	answer string
	times  int
	since  time.Time
}

// IsFinal counts one more refusal, and reports whether to give up. It returns true if the server will never
// accept the object. It also does if the server repeats the same answer, and has accepted another object, at
// tookAt, since the first refusal.
func (s *Series) IsFinal(err error, now, tookAt time.Time) bool {
	if answer := answerOf(err); answer != s.answer {
		s.answer, s.times, s.since = answer, 0, now
	}
	s.times++
	return Rejected(err) || s.answer != "" && s.times >= manyTimes && now.Sub(s.since) >= finalAfter && tookAt.After(s.since)
}

// SizeOf returns the size in bytes of an object, or a part of one, in etcd, as JSON. It returns 0 if the object
// cannot be encoded.
func SizeOf(object any) int {
	text, err := json.Marshal(object)
	if err != nil {
		return 0
	}
	return len(text)
}
