package history

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

// Signal passes evidence about a history to its receiver. Of several pieces of evidence it keeps the strongest.
type Signal struct {
	strongest atomic.Int32
	news      taskgroup.Bell
}

// NewSignal returns a Signal without evidence.
func NewSignal() *Signal { return &Signal{news: taskgroup.NewBell()} }

// Report stores evidence; Nothing means that a check is due. It does not block.
func (s *Signal) Report(e Evidence) {
	for old := s.strongest.Load(); int32(e) > old && !s.strongest.CompareAndSwap(old, int32(e)); {
		old = s.strongest.Load()
	}
	s.news.Ring()
}

// Follow calls decide with the reported evidence, until ctx ends. A nil Signal has no evidence.
func (s *Signal) Follow(ctx context.Context, decide func(Evidence)) error {
	if s == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	for {
		select {
		case <-s.news:
			decide(Evidence(s.strongest.Swap(int32(Nothing))))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Watches calls broke when a watch through next ends before its timeout, or cannot start. A reflector of
// client-go then continues from its position without an error.
func Watches(next http.RoundTripper, broke func()) http.RoundTripper {
	return &watches{next: next, broke: broke}
}

type watches struct {
	next  http.RoundTripper
	broke func()
}

// RoundTrip implements http.RoundTripper.
func (w *watches) RoundTrip(req *http.Request) (*http.Response, error) {
	query := req.URL.Query()
	if watch, _ := strconv.ParseBool(query.Get("watch")); !watch {
		return w.next.RoundTrip(req)
	}
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	in := time.Now().Add(time.Duration(seconds) * time.Second)
	res, err := w.next.RoundTrip(req)
	if err != nil {
		if req.Context().Err() == nil {
			w.broke()
		}
		return nil, err
	}
	res.Body = &stream{ReadCloser: res.Body, early: func() {
		if req.Context().Err() == nil && time.Now().Before(in) {
			w.broke()
		}
	}}
	return res, nil
}

// stream calls early at its end.
type stream struct {
	io.ReadCloser
	early func()
	ended bool
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	if err != nil && !s.ended {
		s.ended = true
		s.early()
	}
	return n, err
}
