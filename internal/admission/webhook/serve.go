package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"runtime/debug"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/admission"
)

// serve answers one review. The client gets an answer even after a panic.
func (w *Webhook) serve(to http.ResponseWriter, r *http.Request) {
	began := time.Now()
	op, res := operationOther, resultPanicked
	defer func() {
		if p := recover(); p != nil {
			w.cfg.Log.Error("webhook request panicked", "panic", p, "stack", string(debug.Stack()))
			http.Error(to, "the webhook of hawser-hub-source failed, see its log", http.StatusInternalServerError)
		}
		w.metrics.observe(op, res, time.Since(began))
	}()
	ctx, cancel := context.WithTimeout(r.Context(), timeOf(r))
	defer cancel()
	// A slow body occupies a connection, but no slot.
	body, err := read(to, r)
	var req *admissionv1.AdmissionRequest
	if err == nil {
		select {
		case w.slots <- struct{}{}:
			defer func() { <-w.slots }()
		case <-ctx.Done():
			res = resultOverloaded
			http.Error(to, "the webhook of hawser-hub-source is overloaded, try again", http.StatusServiceUnavailable)
			return
		}
		req, err = admission.Decode(body)
	}
	if err != nil {
		res = resultMalformed
		code := http.StatusBadRequest
		if status, ok := errors.AsType[*requestError](err); ok {
			code = status.code
		}
		http.Error(to, err.Error(), code)
		return
	}
	op = operationOf(req)
	var v admission.Response
	v, res = w.judge(ctx, req)
	w.cfg.Log.Debug("work reviewed", "operation", op, "result", res, "cluster", req.Namespace, "work", req.Name, "user", req.UserInfo.Username)
	answer, err := admission.Encode(req.UID, v)
	if err != nil {
		panic(err) // recovered above: an answer can always be encoded
	}
	to.Header().Set("Content-Type", "application/json")
	_, _ = to.Write(answer) // a client that has disconnected needs no answer
}

// timeOf returns how long a request may take: a little less than its client waits.
func timeOf(r *http.Request) time.Duration {
	d := maxTime
	if requested, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil && requested > 0 {
		d = min(d, requested)
	}
	return d - d/10
}

// requestError is an error about a request that is no review.
type requestError struct {
	code int
	err  error
}

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return e.err }

// read returns the body.
func read(to http.ResponseWriter, r *http.Request) ([]byte, error) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return nil, &requestError{http.StatusUnsupportedMediaType, errors.New("send an AdmissionReview as application/json")}
	}
	body, err := io.ReadAll(http.MaxBytesReader(to, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &requestError{http.StatusRequestEntityTooLarge, fmt.Errorf("the review is larger than %d bytes", large.Limit)}
	case err != nil:
		return nil, fmt.Errorf("the review did not arrive: %w", err)
	}
	return body, nil
}

// judge applies the rules and, if needed, checks on the hub whether the user may use the executor.
func (w *Webhook) judge(ctx context.Context, req *admissionv1.AdmissionRequest) (admission.Response, result) {
	a := w.cfg.Rules.Check(req)
	switch {
	case a.Problem != "":
		return admission.Refused(a.Problem, a.Warnings), resultRejected
	case a.Executor == nil:
		return admission.Response{Warnings: a.Warnings}, resultAdmitted
	}
	review, err := w.cfg.Access.Create(ctx, a.Executor.Review(), metav1.CreateOptions{})
	switch {
	case err != nil:
		return admission.Unanswered(fmt.Errorf("the hub did not answer whether the user may use the executor: %w", err)), resultFailed
	case !review.Status.Allowed:
		return admission.Refused(a.Executor.Denial(), a.Warnings), resultRejected
	}
	return admission.Response{Warnings: a.Warnings}, resultAdmitted
}
