package kubeclient

import (
	"context"
	"strconv"
	"strings"
)

// Warnings are what the server says about requests besides answering them. The zero value is ready. One
// request at a time may have it.
type Warnings struct{ unknown []string }

// maxWarnings bounds how many fields are noted. A server of Kubernetes names 100 at most.
const maxWarnings = 100

// UnknownFields returns the paths of the fields that the server does not know, as in
// "spec.containers[0].imgae". It drops them.
func (w *Warnings) UnknownFields() []string { return w.unknown }

type warningsKey struct{}

// WithWarnings returns a context whose requests note in w what the server says about them.
func WithWarnings(ctx context.Context, w *Warnings) context.Context {
	return context.WithValue(ctx, warningsKey{}, w)
}

// Warn notes a warning about a request with this context. Most warnings are the business of the author
// of the manifest, and are not noted.
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

// warningHandler passes what the server says to the request that it is about.
type warningHandler struct{}

// warningMiscellaneous is the only code of HTTP that Kubernetes uses.
const warningMiscellaneous = 299

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (warningHandler) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if code == warningMiscellaneous {
		Warn(ctx, text)
	}
}
