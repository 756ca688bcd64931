package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

// Limits of the log lines about one client. A client that repeatedly triggers the same message cannot fill a
// disk: the limit is less than 1 MB per minute.
const (
	// linesAtOnce is the burst of lines of one message about one client; then one line per second is written.
	linesAtOnce = 20
	// maxValue bounds a value, in bytes, maxListed the number of elements of a list.
	maxValue, maxListed = 2 << 10, 64
	// maxSubjects is the maximum number of distinct pairs of message and client.
	maxSubjects = 4096
)

// clientKeys are the attributes that identify the client of a line.
var clientKeys = []string{"cluster", "source", "peer"}

// rateLimitHandler is a log handler that limits the lines per client.
type rateLimitHandler struct {
	slog.Handler
	client string // from the attributes of WithAttrs
	limits *recentLines
	level  *slog.LevelVar
}

// Handle writes a line, or counts it for the next line of its kind.
func (q rateLimitHandler) Handle(ctx context.Context, r slog.Record) error {
	client := q.client
	r.Attrs(func(a slog.Attr) bool {
		client = clientOf(a, client)
		return client == ""
	})
	if client == "" || r.Level < slog.LevelInfo {
		return q.Handler.Handle(ctx, r)
	}
	write, leftOut := q.limits.allow(r.Message, client, r.Time)
	if !write {
		return nil
	}
	if leftOut > 0 {
		r.AddAttrs(slog.Int("suppressed_before", leftOut))
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs returns the handler for lines that all have attrs.
func (q rateLimitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		q.client = clientOf(a, q.client)
	}
	q.Handler = q.Handler.WithAttrs(attrs)
	return q
}

// WithGroup returns the handler for lines whose attributes are in a group.
func (q rateLimitHandler) WithGroup(name string) slog.Handler {
	q.Handler = q.Handler.WithGroup(name)
	return q
}

func clientOf(a slog.Attr, known string) string {
	if known != "" || !slices.Contains(clientKeys, a.Key) {
		return known
	}
	return a.Key + "/" + a.Value.String()
}

// recentLines counts lines.
type recentLines struct {
	mu          sync.Mutex
	lines       map[[2]string]*subject // by message and client
	collectedAt time.Time              // the last removal of entries without a count
}

// subject is one message about one client.
type subject struct {
	used    int // number of used lines of linesAtOnce
	at      time.Time
	leftOut int
}

// allow reports whether to write a line, and how many lines before it were left out.
func (s *recentLines) allow(message, client string, now time.Time) (write bool, leftOut int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.about(message, client, now)
	l.recover(now)
	if l.used == linesAtOnce {
		l.leftOut++
		return false, 0
	}
	l.used++
	leftOut, l.leftOut = l.leftOut, 0
	return true, leftOut
}

// about returns the entry of a message and client or, if there are too many, the shared entry of the message.
func (s *recentLines) about(message, client string, now time.Time) *subject {
	if l := s.lines[[2]string{message, client}]; l != nil {
		return l
	}
	if len(s.lines) >= maxSubjects && now.Sub(s.collectedAt) >= time.Second {
		s.collectedAt = now
		maps.DeleteFunc(s.lines, func(_ [2]string, l *subject) bool {
			l.recover(now)
			return l.used == 0
		})
	}
	if len(s.lines) >= maxSubjects {
		client = "" // there are few messages, so these always fit
	}
	key := [2]string{message, client}
	if s.lines[key] == nil {
		s.lines[key] = &subject{at: now}
	}
	return s.lines[key]
}

// recover restores the allowance for the elapsed time.
func (l *subject) recover(now time.Time) {
	if n := int(now.Sub(l.at) / time.Second); n > 0 {
		l.used, l.at = max(0, l.used-n), l.at.Add(time.Duration(n)*time.Second)
	}
}

// cut shortens the values of an attribute.
func cut(_ []string, a slog.Attr) slog.Attr {
	if a.Key == "stack" { // a value of the program itself
		return a
	}
	switch v := a.Value.Any().(type) {
	case string:
		a.Value = slog.StringValue(shortened(v, maxValue))
	case error:
		if text := v.Error(); len(text) > maxValue {
			a.Value = slog.StringValue(shortened(text, maxValue))
		}
	case []string:
		short := make([]string, min(len(v), maxValue/maxListed))
		for i := range short {
			short[i] = shortened(v[i], maxListed)
		}
		a.Value = slog.AnyValue(short)
	}
	return a
}

func shortened(s string, most int) string {
	if len(s) <= most {
		return s
	}
	end := most
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return fmt.Sprintf("%s... (%d bytes)", s[:end], len(s))
}
