package history

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWrite_Compare(t *testing.T) {
	wrote := Write{"u1", "100"}
	for name, c := range map[string]struct {
		after, live Write
		want        Evidence
	}{
		"as it was written":            {wrote, wrote, Nothing},
		"written again":                {wrote, Write{"u1", "1000"}, Nothing},
		"before it was written":        {wrote, Write{"u1", "99"}, Older},
		"another one, as after a loss": {wrote, Write{"u2", "99"}, Missing},
		"gone":                         {wrote, Write{}, Missing},
		"nothing was written":          {Write{}, Write{"u1", "1"}, Nothing},
		"no number":                    {wrote, Write{"u1", "x"}, Nothing},
	} {
		if got := c.after.Compare(c.live); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if !IsBehind("99", "100") || IsBehind("100", "100") || IsBehind("101", "100") || IsBehind("", "100") || IsBehind("1", "") {
		t.Error("positions are compared wrongly")
	}
}

func TestHistory_EndsOnce(t *testing.T) {
	ended := 0
	h := New(Config{Ended: func() { ended++ }, Log: slog.New(slog.DiscardHandler)})
	n, over := h.Present()
	if h.HasEnded(n) {
		t.Error("the present history is over")
	}
	h.End(n, "once")
	h.End(n, "by what another watch saw")
	<-over
	if m, _ := h.Present(); ended != 1 || m == n || !h.HasEnded(n) || h.HasEnded(m) {
		t.Errorf("ended %d times, and is %d after %d", ended, m, n)
	}
}

// One check serves all watches that broke together, and a failed check is repeated.
func TestHistory_OneLookServesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, away := 0, errors.New("connection refused")
		err := away
		h := New(Config{OwnWrites: func(context.Context) error { looks++; return err }, Log: slog.New(slog.DiscardHandler)})
		broke := time.Now()
		<-time.After(time.Second)
		if got := h.Check(t.Context(), broke); !errors.Is(got, away) {
			t.Fatalf("got %v", got)
		}
		err = nil
		for range 10 {
			if err := h.Check(t.Context(), broke); err != nil {
				t.Fatal(err)
			}
		}
		if looks != 2 {
			t.Errorf("%d looks, want one that failed and one", looks)
		}
		<-time.After(time.Second)
		if err := h.Check(t.Context(), time.Now().Add(-time.Millisecond)); err != nil || looks != 3 {
			t.Errorf("%d looks after another break, %v", looks, err)
		}
	})
}

func TestSignal_KeepsTheStrongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSignal()
		s.Report(Nothing)
		s.Report(Older)
		s.Report(Missing)
		var got []Evidence
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- s.Follow(ctx, func(e Evidence) { got = append(got, e) }) }()
		go func() { ended <- (*Signal)(nil).Follow(ctx, nil) }()
		synctest.Wait()
		s.Report(Nothing)
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		}
		if !slices.Equal(got, []Evidence{Older, Nothing}) {
			t.Errorf("reported %v", got)
		}
	})
}

type answer func(*http.Request) (*http.Response, error)

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func TestWatches_ReportsBrokenWatches(t *testing.T) {
	for name, c := range map[string]struct {
		query string
		lasts time.Duration
		err   error
		want  int
	}{
		"a list":                        {query: "limit=1", want: 0},
		"a watch that ends in time":     {query: "watch=true&timeoutSeconds=300", lasts: 300 * time.Second, want: 0},
		"a watch that ends early":       {query: "watch=1&timeoutSeconds=300", lasts: time.Second, want: 1},
		"a watch that is not to be had": {query: "watch=true&timeoutSeconds=300", err: errors.New("connection refused"), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				broke := 0
				w := Watches(answer(func(*http.Request) (*http.Response, error) {
					return &http.Response{Body: io.NopCloser(strings.NewReader("{}"))}, c.err
				}), func() { broke++ })
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://hub/apis/x/v1/things?"+c.query, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				res, err := w.RoundTrip(req)
				if !errors.Is(err, c.err) {
					t.Fatal(err)
				}
				if err == nil {
					defer res.Body.Close()
					<-time.After(c.lasts)
					if _, err := io.ReadAll(res.Body); err != nil {
						t.Fatal(err)
					}
					_, _ = res.Body.Read(make([]byte, 1)) // the end is reported once
				}
				if broke != c.want {
					t.Errorf("reported %d times, want %d", broke, c.want)
				}
			})
		})
	}
}
