// Package audit writes an audit stream, one line of JSON for each event: rejections and their reasons, and
// calls of operators. At level all it also writes connections, calls and publishes. It never writes the content
// of a work. At every level it logs connects, disconnects and rejections to the log of the program.
//
// Audited calls never wait. Lines go through a queue; if it is full, they are dropped and counted. Repeated
// rejections are counted in one line, so that a client cannot fill the disk.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Level selects the events that are written.
type Level string

// The levels.
const (
	// Off: nothing.
	Off Level = "off"
	// Rejections: rejections, connections that the broker ended, and calls of operators that change something.
	Rejections Level = "rejections"
	// All: also connections, publishes, subscriptions and lists.
	All Level = "all"
)

// Validate returns an error for an unknown level.
func (l Level) Validate() error {
	if l != Off && l != Rejections && l != All {
		return fmt.Errorf("audit %q: use off, rejections or all", string(l))
	}
	return nil
}

// The kinds of lines, in the field "event".
const (
	connected = "connected"
	ended     = "ended"
	rejected  = "rejected"
	published = "published"
	called    = "called"
	operated  = "operated"
)

// Client describes the client of a connection.
type Client struct {
	// Identity is "role/name", "" without one.
	Identity string
	Addr     string
	Conn     uint64
	// Serial is the serial number of the certificate, in hexadecimal digits.
	Serial string
	// Account is the user of its token at the hub; "" if a certificate identifies it.
	Account string
}

func (w Client) attrs() []slog.Attr { return w.as("identity") }

// as returns the attributes, with the identity under key.
func (w Client) as(key string) []slog.Attr {
	all := with([]slog.Attr{slog.String("addr", clip(w.Addr))}, key, w.Identity)
	if w.Conn != 0 {
		all = append(all, slog.Uint64("conn", w.Conn))
	}
	return with(with(all, "serial", w.Serial), "account", w.Account)
}

// with appends a text of bounded length, unless it is empty.
func with(all []slog.Attr, key, text string) []slog.Attr {
	if text == "" {
		return all
	}
	return append(all, slog.String(key, clip(text)))
}

// Publish is one published event, without its payload.
type Publish struct {
	Role, Name, Addr string
	Conn             uint64
	Kind             string
	Envelope         *codec.Envelope // nil if it could not be parsed
	Bytes            int
	Result           string
}

const (
	// queued is the maximum number of waiting lines.
	queued = 4096
	// most is the maximum length of a text in bytes, maxList that of a list.
	most    = 256
	maxList = 10
)

// Log is an audit stream. A nil Log writes nothing. Create it with [New]. Methods may be called concurrently
// and never block.
type Log struct {
	level   Level
	out     io.Writer
	log     *slog.Logger
	queue   chan []byte
	now     func() time.Time
	lines   *prometheus.CounterVec
	dropped prometheus.Counter

	program *slog.Logger
	// onRefused is called for each rejected agent, with its cluster and the reason.
	onRefused func(cluster, why string)

	mu       sync.Mutex
	repeated repeated
	met      repeated // connects and disconnects
}

// New returns an audit stream that writes to out while [Log.Run] runs. program is the log of the program.
func New(level Level, out io.Writer, r prometheus.Registerer, program *slog.Logger) *Log {
	meter := telemetry.NewMeter(r, "hawser_broker_audit_")
	l := &Log{
		level: level, out: out, program: program, queue: make(chan []byte, queued), now: time.Now,
		lines:   meter.Counters("records_total", "Records of the audit stream.", "event"),
		dropped: meter.Counter("dropped_records_total", "Records that were not written, because writing failed or was too slow."),
	}
	l.log = slog.New(slog.NewJSONHandler(telemetry.PrintableWriter{W: (*queue)(l)}, &slog.HandlerOptions{ReplaceAttr: rename}))
	return l
}

// rename drops the level and names the message "event".
func rename(groups []string, a slog.Attr) slog.Attr {
	switch {
	case len(groups) > 0:
	case a.Key == slog.LevelKey:
		return slog.Attr{}
	case a.Key == slog.MessageKey:
		a.Key = "event"
	}
	return a
}

// queue is a Log with the method Write, for its slog handler.
type queue Log

// Write implements io.Writer.
func (q *queue) Write(line []byte) (int, error) {
	select {
	case q.queue <- append([]byte(nil), line...):
	default:
		q.dropped.Inc()
	}
	return len(line), nil
}

// Run writes until ctx ends, and then the waiting lines. Lines that cannot be written are counted.
func (l *Log) Run(ctx context.Context) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case line := <-l.queue:
			l.put(line)
		case <-tick.C:
			l.repeat(false)
		case <-ctx.Done():
			l.repeat(true)
			for {
				select {
				case line := <-l.queue:
					l.put(line)
				default:
					return
				}
			}
		}
	}
}

func (l *Log) put(line []byte) {
	if _, err := l.out.Write(line); err != nil {
		l.dropped.Inc()
	}
}

func (l *Log) write(event string, attrs []slog.Attr) {
	l.lines.WithLabelValues(event).Inc()
	l.log.LogAttrs(context.Background(), slog.LevelInfo, event, attrs...) //nolint:sloglint // one of the constants
}

func (l *Log) writes(level Level) bool {
	return l != nil && l.level != Off && (level == Rejections || l.level == All)
}

// Connected reports a connection of an identified client. until is the expiry of its certificate or token.
func (l *Log) Connected(w Client, until time.Time) {
	if l.meets(w, connected) {
		attrs := w.as("peer")
		if until.Unix() > 0 {
			attrs = append(attrs, slog.Time("certificate_not_after", until))
		}
		l.program.LogAttrs(context.Background(), slog.LevelInfo, "a client has connected", attrs...)
	}
	if l.writes(All) {
		l.write(connected, append(w.attrs(), slog.Time("certificate_not_after", until)))
	}
}

// Disconnected reports the end of a client's connection by the client or the network.
func (l *Log) Disconnected(w Client) {
	if l.meets(w, "left") {
		l.program.LogAttrs(context.Background(), slog.LevelInfo, "a client has disconnected", w.as("peer")...)
	}
}

// meets counts a connect or disconnect, and reports whether to log it.
func (l *Log) meets(w Client, what string) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.met.count(refusal{client: w.Identity, reason: what}, l.now())
}

// Ended reports that the broker ended a connection.
func (l *Log) Ended(w Client, reason string) {
	if l.writes(Rejections) {
		l.write(ended, append(w.attrs(), slog.String("reason", reason)))
	}
}

// OnRefused registers f, which is called for each rejected agent with its cluster and the reason. It is called
// once, before any client can connect.
func (l *Log) OnRefused(f func(cluster, why string)) {
	if l != nil {
		l.onRefused = f
	}
}

// Refused reports a rejected handshake or call. from is the address prefix of the client. method is "" for a
// handshake. err may be nil.
func (l *Log) Refused(w Client, from, method, reason string, err error) {
	if l == nil {
		return
	}
	if cluster, ok := strings.CutPrefix(w.Identity, "agent/"); ok && l.onRefused != nil {
		l.onRefused(cluster, whyOf(reason, err))
	}
	r := refusal{client: w.Identity, from: from, method: method, reason: reason}
	l.mu.Lock()
	first := l.repeated.count(r, l.now())
	l.mu.Unlock()
	if !first {
		return
	}
	attrs := with([]slog.Attr{slog.String("reason", reason)}, "method", method)
	if err != nil {
		attrs = append(attrs, slog.String("error", clip(err.Error())))
	}
	l.program.LogAttrs(context.Background(), slog.LevelInfo, "a client was rejected", append(w.as("peer"), attrs...)...)
	if l.writes(Rejections) {
		l.write(rejected, append(w.attrs(), attrs...))
	}
}

// whyOf returns the reason of a rejection as text.
func whyOf(reason string, err error) string {
	if e := (*transport.Error)(nil); errors.As(err, &e) {
		return e.Message
	}
	if err != nil {
		return err.Error()
	}
	return reason
}

// repeat writes the counts of rejections whose period has ended, or all if all is true. It also logs the counts
// of connects and disconnects.
func (l *Log) repeat(all bool) {
	l.mu.Lock()
	counted, met := l.repeated.over(l.now(), all), l.met.over(l.now(), all)
	l.mu.Unlock()
	for _, c := range append(met, counted...) {
		l.program.Info("the same event was repeated", "of", c.reason, "peer", clip(c.client), "from", clip(c.from), "method", clip(c.method), "times", c.n)
	}
	if !l.writes(Rejections) {
		return
	}
	for _, c := range counted {
		attrs := []slog.Attr{slog.String("reason", c.reason), slog.Int("repeated", c.n)}
		l.write(rejected, with(with(with(attrs, "from", c.from), "identity", c.client), "method", c.method))
	}
}

// Published reports a publish.
func (l *Log) Published(p Publish) {
	if !l.writes(All) {
		return
	}
	attrs := Client{Identity: p.Role + "/" + p.Name, Addr: p.Addr, Conn: p.Conn}.attrs()
	attrs = append(attrs, slog.String("kind", p.Kind), slog.Int("bytes", p.Bytes), slog.String("result", p.Result))
	if e := p.Envelope; e != nil {
		attrs = append(attrs, slog.String("type", clip(e.RawType)), slog.String("source", clip(e.Source)), slog.String("cluster", clip(e.Cluster)))
		if e.ResourceID != "" {
			attrs = append(attrs, slog.String("resource_id", clip(e.ResourceID)), slog.Int64("version", e.Version))
		}
	}
	l.write(published, attrs)
}

// Called reports the end of a call that reads.
func (l *Log) Called(w Client, method string, err error) {
	if l.writes(All) {
		l.write(called, outcome(append(w.attrs(), slog.String("method", clip(method))), err))
	}
}

// Operated reports a call of an operator that changes something. req may be nil.
func (l *Log) Operated(w Client, method string, req any, err error) {
	if !l.writes(Rejections) {
		return
	}
	attrs := append(w.attrs(), slog.String("method", clip(method)))
	if m, ok := req.(proto.Message); ok {
		attrs = append(attrs, slog.Attr{Key: "request", Value: slog.GroupValue(fields(m.ProtoReflect())...)})
	}
	l.write(operated, outcome(attrs, err))
}

func outcome(attrs []slog.Attr, err error) []slog.Attr {
	if err != nil {
		return append(attrs, slog.String("error", clip(err.Error())))
	}
	return append(attrs, slog.String("result", "ok"))
}

// fields returns the fields of a request with bounded size: of a list its beginning and its length.
func fields(m protoreflect.Message) (all []slog.Attr) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(f.Name())
		switch {
		case f.IsList():
			var items []string
			for i := range min(v.List().Len(), maxList) {
				items = append(items, text(v.List().Get(i)))
			}
			all = append(all, slog.Int(name+"_count", v.List().Len()), slog.Any(name, items))
		case f.IsMap():
			all = append(all, slog.Int(name+"_count", v.Map().Len()))
		default:
			all = append(all, slog.String(name, text(v)))
		}
		return true
	})
	return all
}

// text returns a value as text; of a message its first string.
func text(v protoreflect.Value) string {
	m, ok := v.Interface().(protoreflect.Message)
	if !ok {
		return clip(v.String())
	}
	s := ""
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Kind() == protoreflect.StringKind && !f.IsList() {
			s = clip(v.String())
		}
		return s == ""
	})
	return s
}

// clip limits the length of text that a client chose. The encoding makes it printable.
func clip(s string) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
