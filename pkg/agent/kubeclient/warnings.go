package kubeclient

import (
	"context"
	"strconv"
	"strings"
)

// Warnings collects the warnings of the server about requests. The zero value is ready. Only one request at a
// time may use it.
type Warnings struct{ unknown []string }

// maxWarnings bounds the recorded fields. A Kubernetes server names at most 100.
const maxWarnings = 100

// UnknownFields returns the paths of fields that the server does not know and drops, such as
// "spec.containers[0].imgae".
func (w *Warnings) UnknownFields() []string { return w.unknown }

type warningsKey struct{}

// WithWarnings returns a context whose requests record the server's warnings in w.
func WithWarnings(ctx context.Context, w *Warnings) context.Context {
	return context.WithValue(ctx, warningsKey{}, w)
}

// Warn records a warning about a request with this context. Most warnings concern the author of the manifest
// and are not recorded.
func Warn(ctx context.Context, text string) {
	w, _ := ctx.Value(warningsKey{}).(*Warnings)
	quoted, unknown := strings.CutPrefix(text, "unknown field ")
	if w == nil || !unknown || len(w.unknown) == maxWarnings {
		return
	}
	if path, err := strconv.Unquote(quoted); err == nil {
		w.unknown = append(w.unknown, path)
	}
}

// warningHandler passes warnings of the server to their request.
type warningHandler struct{}

// warningMiscellaneous is the only warn code that Kubernetes uses.
const warningMiscellaneous = 299

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (warningHandler) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if code == warningMiscellaneous {
		Warn(ctx, text)
	}
}
