//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/pki"
)

// garbled are invalid headers, by their shape. The gRPC library answers each with a trailer or a reset, without
// a call of the broker's code.
var garbled = map[string][][2]string{
	"connection":   headers("connection", "keep-alive"),
	"content type": {{":method", "POST"}, {":scheme", "https"}, {":path", publish}, {"content-type", "text/html"}},
	"no type":      {{":method", "POST"}, {":scheme", "https"}, {":path", publish}},
	"timeout":      headers("grpc-timeout", "soon"),
	"binary":       headers("x-bin", "\u00e4"),
	"hosts":        headers("host", "a", "host", "b"),
	"upper case":   headers("X", "y"),
	"get":          append([][2]string{{":method", "GET"}}, headers()[1:]...),
	"long":         headers(slices.Repeat([]string{"x", strings.Repeat("y", 3<<10)}, 25)...),
}

// headers returns the headers of a call, with additional ones.
func headers(more ...string) [][2]string {
	all := [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", publish}, {"content-type", "application/grpc"}, {"te", "trailers"}}
	for i := 0; i < len(more); i += 2 {
		all = append(all, [2]string{more[i], more[i+1]})
	}
	return all
}

const (
	// manyGarbled is the number of headers that an attacker sends on one connection. mostAnswered of them may be
	// answered before the connection ends. A client without a certificate may have a hundred rejected calls, and
	// ten per second.
	manyGarbled  = 30_000
	mostAnswered = 200
	// manyPings is more than the number of pings that a client without a certificate may send at once.
	manyPings = 3000
)

// TestHeaders: headers that the library rejects cost the sender its connection, and the fleet continues.
func TestHeaders(t *testing.T) { attack(t, "headers") }

// TestHeaders_AreCharged: for each shape, no more headers are answered than rejected calls, and each is logged.
func TestHeaders_AreCharged(t *testing.T) {
	s := alone(t, "")
	for shape, fields := range garbled {
		before := s.counted(`hawser_listener_rejected_calls_total{code="invalid",reason="headers"}`)
		n, ended := s.garble(fields)
		if n > mostAnswered || !ended {
			t.Errorf("%s: %.0f headers without a certificate were answered on one connection, at most %d may be; it ended: %t", shape, n, mostAnswered, ended)
		}
		if got := s.counted(`hawser_listener_rejected_calls_total{code="invalid",reason="headers"}`) - before; got < n-1 {
			t.Errorf("%s: %.0f of %.0f were counted", shape, got, n)
		}
	}
	if log := s.broker.LogTail(); !strings.Contains(log, "reason=headers") {
		t.Errorf("the log does not report them: %s", log)
	}
}

// TestPings_AreCharged: a library answers the pings of a WebSocket too, and they are charged.
func TestPings_AreCharged(t *testing.T) {
	s := alone(t, "")
	config := target{pki: s.pki}.config(false)
	config.NextProtos = []string{"http/1.1"}
	tr := &http.Transport{TLSClientConfig: config}
	defer tr.CloseIdleConnections()
	c, _, err := websocket.Dial(t.Context(), "wss://"+s.addr, &websocket.DialOptions{HTTPClient: &http.Client{Transport: tr}, Subprotocols: []string{"mqtt"}}) //nolint:bodyclose // of a WebSocket there is none
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseNow() }() // the broker has closed it already
	ctx, cancel := context.WithTimeout(c.CloseRead(t.Context()), 5*time.Second)
	defer cancel()
	n := 0
	for ; n < manyPings && err == nil; n++ {
		err = c.Ping(ctx)
	}
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d pings without a certificate were answered on one connection, and it goes on", n)
	}
}

// alone starts a broker without a fleet. more is additional configuration.
func alone(t *testing.T, more string) *stage {
	t.Helper()
	s := prepareStage(t)
	config := filepath.Join(s.dir, "broker.yaml")
	rule := fmt.Sprintf("identities: [{commonName: 'hawser:source:%s', role: source, name: %s}]\n", source, source)
	if err := os.WriteFile(config, []byte(rule+more), 0o600); err != nil {
		t.Fatal(err)
	}
	s.brokerAt = childproc.Spec{
		Name: "broker", Path: brokerProgram(t), LogFile: filepath.Join(s.dir, "broker.log"), Ready: s.ready,
		Args: []string{
			"--config", config, "--listen", s.addr, "--admin-listen", s.admin, "--data-dir", filepath.Join(s.dir, "data"),
			"--tls-cert-file", s.pki.Cert(pki.Broker, "broker"), "--tls-key-file", s.pki.Key(pki.Broker, "broker"), "--client-ca-file", s.pki.CACert(),
		},
	}
	s.startBroker()
	t.Cleanup(s.broker.Kill)
	return s
}

// counted returns the value of a metric of the broker.
func (s *stage) counted(name string) float64 {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.admin+"/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var n float64
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			if _, err := fmt.Sscan(value, &n); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return n
}

// garble sends headers on one connection without a certificate, until all are sent or the connection ends. It
// returns the number of answers.
func (s *stage) garble(fields [][2]string) (answered float64, ended bool) {
	s.t.Helper()
	l := &load{}
	w, err := target{addr: s.addr, pki: s.pki, load: l, real: true}.open(s.t.Context(), false)
	if err != nil {
		s.t.Fatal(err)
	}
	defer w.Close()
	for n := 0; n < manyGarbled && err == nil; n += each {
		err = w.many(fields)
	}
	ctx, cancel := context.WithTimeout(w.ended, time.Second)
	defer cancel()
	_ = every(ctx, 10*time.Millisecond, func() error { // until the connection ends, or all are answered
		if l.answered() >= manyGarbled {
			return io.EOF
		}
		return nil
	})
	return float64(l.answered()), w.ended.Err() != nil
}

func (l *load) answered() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n["calls answered"] + l.n["calls reset"]
}

// each is the number of calls that begin with one write.
const each = 300

// many starts calls with these headers in one write, without bodies.
func (w *wire) many(fields [][2]string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all strings.Builder
	framer := http2.NewFramer(&all, nil)
	for range each {
		w.block.Reset()
		for _, f := range fields {
			if err := w.headers.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
				return err
			}
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: w.next, BlockFragment: w.block.Bytes(), EndHeaders: true, EndStream: true}); err != nil {
			return err
		}
		w.next += 2
	}
	_, err := io.WriteString(w.Conn, all.String())
	w.load.add("garbled headers", each)
	return err
}

// garble sends headers of all shapes on six connections, without a pause.
func garble(ctx context.Context, t target) error {
	shapes := slices.Sorted(maps.Keys(garbled))
	return sideBySide(ctx, 6, again, func(ctx context.Context) error {
		w, err := t.open(ctx, false)
		if err != nil {
			return err
		}
		defer w.Close()
		for i := 0; err == nil && w.ended.Err() == nil; i++ {
			err = w.many(garbled[shapes[i%len(shapes)]])
		}
		return err
	})
}
