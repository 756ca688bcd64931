package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

func TestError_Text(t *testing.T) {
	for want, e := range map[string]*transport.Error{
		"denied: not yours":                       {Code: transport.CodeDenied, Message: "not yours"},
		"too_large: 9 bytes (split it)":           {Code: transport.CodeTooLarge, Message: "9 bytes", Hint: "split it"},
		"unavailable: gone: EOF":                  {Code: transport.CodeUnavailable, Message: "gone", Err: io.EOF},
		"code(99): new (look it up): EOF":         {Code: 99, Message: "new", Hint: "look it up", Err: io.EOF},
		"code(-1): the constant before the first": {Code: -1, Message: "the constant before the first"},
	} {
		if e.Error() != want {
			t.Errorf("got %q, want %q", e.Error(), want)
		}
	}
	if e := (&transport.Error{Err: io.EOF}); !errors.Is(e, io.EOF) {
		t.Error("the cause is not in the chain")
	}
}

func TestCodeOf(t *testing.T) {
	e := fmt.Errorf("publish: %w", &transport.Error{Code: transport.CodeConflict})
	if c := transport.CodeOf(e); c != transport.CodeConflict {
		t.Errorf("wrapped: got %v", c)
	}
	if c := transport.CodeOf(io.EOF); c != transport.CodeInternal {
		t.Errorf("untyped: got %v", c)
	}
}

func TestRetryable(t *testing.T) {
	never := map[transport.Code]bool{
		transport.CodeInvalid: true, transport.CodeDenied: true, transport.CodeNotFound: true,
		transport.CodeAlreadyExists: true, transport.CodeConflict: true, transport.CodeTooLarge: true,
	}
	for code := transport.CodeInternal; code <= transport.CodeDeadline; code++ {
		for next, want := range map[transport.NextStep]bool{
			transport.NextUnspecified:        !never[code],
			transport.NextRefreshCredentials: true,
			transport.NextResync:             true,
			transport.NextBackOff:            true,
			transport.NextStop:               false,
		} {
			e := fmt.Errorf("x: %w", &transport.Error{Code: code, Next: next})
			if got := transport.Retryable(e); got != want {
				t.Errorf("%v, next step %d: got %t", code, next, got)
			}
		}
	}
	if !transport.Retryable(io.EOF) {
		t.Error("an untyped error is worth another try")
	}
}

func TestGaveUp(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer stop()
	for ctx, code := range map[context.Context]transport.Code{cancelled: transport.CodeUnavailable, late: transport.CodeDeadline} {
		if e := transport.GaveUp(ctx, "no answer"); e.Code != code || e.Message != "no answer" || !errors.Is(e, ctx.Err()) {
			t.Errorf("%v: %v", ctx.Err(), e)
		}
	}
}

func TestInvalid_NamesTheAttribute(t *testing.T) {
	for want, cause := range map[string]error{"": nil, "time": fmt.Errorf("at 7: %w", &codec.AttributeError{Attribute: "time"})} {
		if e := transport.Invalid("unreadable", cause); e.Code != transport.CodeInvalid || transport.Retryable(e) || e.Attribute != want || !errors.Is(e, cause) && cause != nil {
			t.Errorf("%v: %+v", cause, e)
		}
	}
}
