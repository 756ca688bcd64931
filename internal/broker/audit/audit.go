// Package audit writes who did what with a broker, one line of JSON each: who was
// refused and why, what operators did, and, where that is wanted, who connects and
// what is published. It never writes what is in a work. Whatever its level, it tells the
// log of the program who came, who went and who was refused.
//
// Whoever is audited waits for nothing: lines go through a queue, and are counted
// where that is full. Refusals that repeat are counted into one line, so that who
// is refused often fills no disk.
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

// Level is what is written.
type Level string

// The levels.
const (
	// Off: nothing.
	Off Level = "off"
	// Refusals: what was refused, connections that the broker ended, and what
	// operators did.
	Refusals Level = "refusals"
	// All: connections, publishes, subscriptions and lists too.
	All Level = "all"
)

// Validate says what is wrong with the level.
func (l Level) Validate() error {
	if l != Off && l != Refusals && l != All {
		return fmt.Errorf("audit %q: use off, refusals or all", string(l))
	}
	return nil
}

// The kinds of lines, in the field "event".
const (
	connected = "connected"
	ended     = "ended"
	refused   = "rejected"
	published = "published"
	called    = "called"
	operated  = "operated"
)

// Client is the other end of a connection.
type Client struct {
	// Identity is "role/name", "" without one.
	Identity string
	Addr     string
	Conn     uint64
	// Serial is that of the certificate, in hexadecimal digits.
	Serial string
	// Account is the user of the hub whose token it showed; "" where it is known by a certificate.
	Account string
}

func (w Client) attrs() []slog.Attr { return w.as("identity") }

// as returns them with the identity under a key.
func (w Client) as(key string) []slog.Attr {
	all := []slog.Attr{slog.String("addr", clip(w.Addr))}
	if w.Identity != "" {
		all = append(all, slog.String(key, clip(w.Identity)))
	}
	if w.Conn != 0 {
		all = append(all, slog.Uint64("conn", w.Conn))
	}
	if w.Serial != "" {
		all = append(all, slog.String("serial", clip(w.Serial)))
	}
	if w.Account != "" {
		all = append(all, slog.String("account", clip(w.Account)))
	}
	return all
}

// Publish is one event that somebody published, without its payload.
type Publish struct {
	Role, Name, Addr string
	Conn             uint64
	Kind             string
	Envelope         *codec.Envelope // nil where it could not be read
	Bytes            int
	Result           string
}

const (
	// queued is how many lines wait at most.
	queued = 4096
	// most bounds a text of a line, bytes; lists are shorter than maxList.
	most    = 256
	maxList = 10
)

// Log is an audit stream. A nil one writes nothing. Create it with [New]; methods
// may be called concurrently and never block.
type Log struct {
	level   Level
	out     io.Writer
	log     *slog.Logger
	queue   chan []byte
	now     func() time.Time
	lines   *prometheus.CounterVec
	dropped prometheus.Counter

	program *slog.Logger
	// onRefused hears of the agents of clusters that are refused, and why.
	onRefused func(cluster, why string)

	mu       sync.Mutex
	repeated repeated
	met      repeated // who came and who went
}

// New returns an audit stream that writes to out while [Log.Run] runs, and tells the log of
// the program.
func New(level Level, out io.Writer, r prometheus.Registerer, program *slog.Logger) *Log {
	meter := telemetry.NewMeter(r, "hawser_broker_audit_")
	l := &Log{
		level: level, out: out, program: program, queue: make(chan []byte, queued), now: time.Now,
		lines:   meter.Counters("records_total", "Records of the audit stream.", "event"),
		dropped: meter.Counter("dropped_records_total", "Records that were not written because they could not be, or not as fast."),
	}
	l.log = slog.New(slog.NewJSONHandler(telemetry.PrintableWriter{W: (*queue)(l)}, &slog.HandlerOptions{ReplaceAttr: rename}))
	return l
}

// rename gives the fields of every line their names.
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

// queue is a Log as its handler writes to it.
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

// Run writes until ctx ends, and then what is left. What cannot be written is
// counted.
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
	return l != nil && l.level != Off && (level == Refusals || l.level == All)
}

// Connected tells of a connection whose peer has an identity.
func (l *Log) Connected(w Client, until time.Time) {
	if l.meets(w, connected) {
		attrs := w.as("peer")
		if until.Unix() > 0 {
			attrs = append(attrs, slog.Time("certificate_not_after", until))
		}
		l.program.LogAttrs(context.Background(), slog.LevelInfo, "a party has connected", attrs...)
	}
	if l.writes(All) {
		l.write(connected, append(w.attrs(), slog.Time("certificate_not_after", until)))
	}
}

// Left tells of a connection whose peer has gone, or lost it.
func (l *Log) Left(w Client) {
	if l.meets(w, "left") {
		l.program.LogAttrs(context.Background(), slog.LevelInfo, "a party has left", w.as("peer")...)
	}
}

// meets counts that somebody came or went, and reports whether the log is to say it.
func (l *Log) meets(w Client, what string) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.met.count(refusal{client: w.Identity, reason: what}, l.now())
}

// Ended tells that the broker ended a connection.
func (l *Log) Ended(w Client, reason string) {
	if l.writes(Refusals) {
		l.write(ended, append(w.attrs(), slog.String("reason", reason)))
	}
}

// OnRefused has f called with the cluster of each agent that is refused, and why. It is called
// once, before anybody can be.
func (l *Log) OnRefused(f func(cluster, why string)) {
	if l != nil {
		l.onRefused = f
	}
}

// Refused tells that a handshake, or a call, was refused: from is the network it
// came from, method "" for a handshake, err may be nil.
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
	attrs := []slog.Attr{slog.String("reason", reason)}
	if method != "" {
		attrs = append(attrs, slog.String("method", clip(method)))
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", clip(err.Error())))
	}
	l.program.LogAttrs(context.Background(), slog.LevelInfo, "a party was refused", append(w.as("peer"), attrs...)...)
	if l.writes(Refusals) {
		l.write(refused, append(w.attrs(), attrs...))
	}
}

// whyOf is why somebody was refused, for people.
func whyOf(reason string, err error) string {
	if e := (*transport.Error)(nil); errors.As(err, &e) {
		return e.Message
	}
	if err != nil {
		return err.Error()
	}
	return reason
}

// repeat writes how often refusals repeated, when their time is over; the log hears also
// how often parties came and went.
func (l *Log) repeat(all bool) {
	l.mu.Lock()
	counted, met := l.repeated.over(l.now(), all), l.met.over(l.now(), all)
	l.mu.Unlock()
	for _, c := range append(met, counted...) {
		l.program.Info("the same again", "of", c.reason, "peer", clip(c.client), "from", clip(c.from), "method", clip(c.method), "times", c.n)
	}
	if !l.writes(Refusals) {
		return
	}
	for _, c := range counted {
		attrs := []slog.Attr{slog.String("reason", c.reason), slog.Int("repeated", c.n)}
		for key, value := range map[string]string{"from": c.from, "identity": c.client, "method": c.method} {
			if value != "" {
				attrs = append(attrs, slog.String(key, clip(value)))
			}
		}
		l.write(refused, attrs)
	}
}

// Published tells what was published.
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

// Called tells of a call that reads, when it has ended.
func (l *Log) Called(w Client, method string, err error) {
	if l.writes(All) {
		l.write(called, outcome(append(w.attrs(), slog.String("method", clip(method))), err))
	}
}

// Operated tells what an operator did, with what; request may be nil.
func (l *Log) Operated(w Client, method string, req any, err error) {
	if !l.writes(Refusals) {
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

// fields are those of a request, bounded: of lists the beginning and the length.
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

// text is a value, of a message its first text.
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

// clip bounds what somebody else chose; that it is printable, the encoding sees
// to.
func clip(s string) string {
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
