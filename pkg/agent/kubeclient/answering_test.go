package kubeclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// roundTrip is a http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAnswering_ReportsSinceWhenThereIsNoAnswer(t *testing.T) {
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	answer := func(code int, header ...string) (*http.Response, error) {
		r := &http.Response{StatusCode: code, Status: http.StatusText(code), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
		for _, h := range header {
			r.Header.Set(h, "x")
		}
		return r, nil
	}
	refused := errors.New("connection refused")
	a := &answering{now: func() time.Time { return at }}
	for _, step := range []struct {
		name  string
		next  roundTrip
		wants string
	}{
		{"an answer", func(*http.Request) (*http.Response, error) { return answer(200) }, ""},
		{"given up by its caller", func(*http.Request) (*http.Response, error) { return nil, context.Canceled }, ""},
		{"refused", func(*http.Request) (*http.Response, error) { return nil, refused }, "since 2026-11-28T12:03:00Z: connection refused"},
		{"given up, and still away", func(*http.Request) (*http.Response, error) { return nil, context.Canceled }, "since 2026-11-28T12:03:00Z: connection refused"},
		{"out of time", func(*http.Request) (*http.Response, error) { return nil, context.DeadlineExceeded }, "since 2026-11-28T12:03:00Z: context deadline exceeded"},
		{"a proxy without a server", func(*http.Request) (*http.Response, error) { return answer(503) }, "since 2026-11-28T12:03:00Z: a proxy answers"},
		{"an error of the server", func(*http.Request) (*http.Response, error) { return answer(500, "Audit-Id") }, ""},
		{"away again", func(*http.Request) (*http.Response, error) { return answer(502) }, "since 2026-11-28T12:08:00Z"},
		{"a refusal is an answer", func(*http.Request) (*http.Response, error) { return answer(403) }, ""},
	} {
		at = at.Add(time.Minute)
		a.next = step.next
		resp, err := a.RoundTrip(&http.Request{})
		if err == nil {
			_ = resp.Body.Close()
		}
		switch got := a.err(); {
		case step.wants == "" && got != nil:
			t.Errorf("%s: %v", step.name, got)
		case step.wants != "" && (got == nil || !strings.Contains(got.Error(), step.wants)):
			t.Errorf("%s: %v, want %q", step.name, got, step.wants)
		}
	}
}
