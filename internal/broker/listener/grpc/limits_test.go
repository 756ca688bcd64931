package grpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// wire is a connection on which a test sends frames that no library would send.
type wire struct {
	t       *testing.T
	conn    net.Conn
	framer  *http2.Framer
	block   bytes.Buffer
	headers *hpack.Encoder
	next    uint32
	answers map[uint32]map[string]string // trailers by stream
}

// openWire connects with the credentials of a client.
func openWire(t *testing.T, addr string, creds credentials.TransportCredentials) *wire {
	t.Helper()
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() }) // the front may have closed it
	conn, _, err := creds.ClientHandshake(t.Context(), "127.0.0.1", raw)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, conn: conn, framer: http2.NewFramer(conn, conn), next: 1, answers: map[uint32]map[string]string{}}
	w.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	w.headers = hpack.NewEncoder(&w.block)
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(conn, http2.ClientPreface)
	if err := errors.Join(err, w.framer.WriteSettings()); err != nil {
		t.Fatal(err)
	}
	return w
}

// call begins a call; more are further headers.
func (w *wire) call(method string, more ...string) uint32 {
	w.t.Helper()
	w.block.Reset()
	fields := append([]string{":method", "POST", ":scheme", "https", ":path", method, ":authority", "broker"}, more...)
	if len(more) == 0 {
		fields = append(fields, "content-type", "application/grpc")
	}
	for i := 0; i < len(fields); i += 2 {
		if err := w.headers.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			w.t.Fatal(err)
		}
	}
	id := w.next
	w.next += 2
	// If the server has ended the connection, the reader reports it.
	_ = w.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.block.Bytes(), EndHeaders: true})
	return id
}

// data sends a part of a body. It ignores errors, because the front may have stopped reading.
func (w *wire) data(stream uint32, end bool, b []byte) {
	_ = w.framer.WriteData(stream, end, b)
}

// begin returns the gRPC prefix of a message of n bytes.
func begin(n int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(n)) }

// answer waits for the end of a call and returns its status code and message.
func (w *wire) answer(stream uint32) (code, message string) {
	w.t.Helper()
	for w.answers[stream]["grpc-status"] == "" {
		if err := w.read(); err != nil {
			w.t.Fatalf("no answer on stream %d: %v", stream, err)
		}
	}
	return w.answers[stream]["grpc-status"], w.answers[stream]["grpc-message"]
}

func (w *wire) read() error {
	f, err := w.framer.ReadFrame()
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		if w.answers[f.StreamID] == nil {
			w.answers[f.StreamID] = map[string]string{}
		}
		for _, h := range f.Fields {
			w.answers[f.StreamID][h.Name] = h.Value
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return w.framer.WritePing(true, f.Data)
		}
	}
	return nil
}

// ended waits for the end of the connection.
func (w *wire) ended() {
	w.t.Helper()
	for {
		err := w.read()
		if e := (net.Error)(nil); errors.As(err, &e) && e.Timeout() {
			w.t.Fatal("the connection does not end")
		}
		if err != nil {
			return
		}
	}
}

// wantReserved waits until is returns true for the reserved bytes and calls.
func (f *front) wantReserved(t *testing.T, what string, is func(bodies int64, calls int) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for tick := time.NewTicker(time.Millisecond); ; {
		bodies, calls := f.Reserved()
		if is(bodies, calls) {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %d bytes of %d calls are held", what, bodies, calls)
		}
	}
}

func nothing(bodies int64, calls int) bool { return bodies == 0 && calls == 0 }

// accepts answers every publish.
var accepts = server{publish: func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
	return transport.Receipt{Outcome: "accepted"}, nil
}}

// limited starts a front with TLS.
func limited(t *testing.T, s server, edit func(*grpc.Config)) (*front, *testkit.CA) {
	t.Helper()
	ca := testkit.NewCA(t)
	return start(t, s, func(c *grpc.Config) { c.Credentials = ca.Server(); edit(c) }), ca
}

// TestLimits_UnidentifiedClientIsNotRead checks that the error is sent after the headers, and contains the next
// step.
func TestLimits_UnidentifiedClientIsNotRead(t *testing.T) {
	f, ca := limited(t, accepts, func(*grpc.Config) {})
	w := openWire(t, f.addr, ca.Anonymous())
	for _, method := range []string{authz.Publish, authz.Subscribe, authz.HealthCheck, authz.Backup, "/some.Other/Method"} {
		id := w.call(method)
		w.data(id, false, begin(16<<20-1))
		if code, message := w.answer(id); code != fmt.Sprint(int(codes.Unauthenticated)) || message == "" {
			t.Errorf("%s: code %s, %q", method, code, message)
		}
	}
	f.wantReserved(t, "after all", nothing)
}

// TestLimits_CountsFramesOfTheLibrary makes many concurrent calls: complete ones, rejected ones, reset ones,
// and some that the library rejects itself. All their bytes must be released.
func TestLimits_CountsFramesOfTheLibrary(t *testing.T) {
	f, ca := limited(t, accepts, func(*grpc.Config) {})
	w := openWire(t, f.addr, ca.Client(agent1))
	body := append(begin(2000), append([]byte{0x0a, 0xcd, 0x0f}, make([]byte, 1997)...)...)
	var open []uint32
	for range 20 {
		whole, refused, reset, foreign := w.call(authz.Publish), w.call(authz.Backup), w.call(authz.Publish), w.call(authz.Publish, "content-type", "text/html")
		for _, id := range []uint32{refused, reset, foreign} {
			w.data(id, false, body[:1000])
		}
		w.data(whole, false, body[:7])
		open = append(open, whole)
		if err := w.framer.WriteRSTStream(reset, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	f.wantReserved(t, "half sent", func(bodies int64, calls int) bool { return calls == 20 && bodies == 20*(7+256) })
	for _, id := range open {
		w.data(id, true, body[7:])
	}
	for _, id := range open {
		if code, message := w.answer(id); code != "0" {
			t.Errorf("stream %d: code %s, %s", id, code, message)
		}
	}
	f.wantReserved(t, "in the end", nothing)
}

// TestLimits_UnreadStream checks that the window bounds the data on a stream that is not read. The window does
// not grow; beyond it the stream ends.
func TestLimits_UnreadStream(t *testing.T) {
	f, ca := limited(t, server{publish: func(ctx context.Context, _ transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		<-ctx.Done()
		return transport.Receipt{}, ctx.Err()
	}}, func(c *grpc.Config) { c.PublishTimeout = time.Hour })
	w := openWire(t, f.addr, ca.Client(agent1))
	id := w.call(authz.Publish)
	w.data(id, false, append(begin(5), "\x0a\x03\x0a\x01a"...)) // the front reads this message and no more
	piece := make([]byte, 16<<10)
	for range 3 {
		w.data(id, false, piece)
	}
	w.data(id, false, piece[:16<<10-64])
	f.wantReserved(t, "the window", func(bodies int64, calls int) bool { return calls == 1 && bodies == 4*(16<<10+256)+10+256 })
	w.data(id, false, piece)
	f.wantReserved(t, "beyond it", nothing)
}

// TestLimits_UnfinishedBodies checks that the bytes of one identity, and of all, stay within the budget. The
// largest connection is ended, and the others continue.
func TestLimits_UnfinishedBodies(t *testing.T) {
	f, ca := limited(t, accepts, func(c *grpc.Config) { c.BodyBytes, c.BodyBytesEach = 150<<10, 140<<10 })
	large, small, other := openWire(t, f.addr, ca.Client(agent1)), openWire(t, f.addr, ca.Client(agent1)), openWire(t, f.addr, ca.Client(source1))
	piece := make([]byte, 16<<10)
	fill := func(w *wire, n int) uint32 {
		id := w.call(authz.Publish)
		w.data(id, false, begin(1<<20))
		for range n {
			w.data(id, false, piece)
		}
		return id
	}
	fill(large, 3)
	fill(large, 3)
	f.wantReserved(t, "one connection", func(bodies int64, _ int) bool { return bodies > 96<<10 })
	rest := fill(small, 3) // above the budget of one identity
	large.ended()
	f.wantReserved(t, "the other one", func(bodies int64, calls int) bool { return calls == 1 && bodies > 48<<10 && bodies < 64<<10 })
	fill(other, 3)
	fill(other, 4) // above the budget of all identities
	other.ended()
	small.data(rest, true, nil) // the message is too short; the call gets an answer
	if code, _ := small.answer(rest); code == "0" {
		t.Errorf("code %s", code)
	}
	f.wantReserved(t, "in the end", nothing)
}

// TestLimits_MissingMessageEndsCall checks that a missing message ends its call or, for a stream, its
// connection.
func TestLimits_MissingMessageEndsCall(t *testing.T) {
	f, ca := limited(t, accepts, func(c *grpc.Config) { c.PublishTimeout = 50 * time.Millisecond })
	w := openWire(t, f.addr, ca.Client(agent1))
	id := w.call(authz.Publish)
	w.data(id, false, begin(1000))
	if code, message := w.answer(id); code != fmt.Sprint(int(codes.DeadlineExceeded)) || message == "" {
		t.Errorf("code %s, %q", code, message)
	}
	w.call(authz.Subscribe)
	w.ended()
	f.wantReserved(t, "in the end", nothing)
}

// TestLimits_ConnectionWithoutACall checks that a connection without calls is ended.
func TestLimits_ConnectionWithoutACall(t *testing.T) {
	ca := testkit.NewCA(t)
	f := prepare(t, accepts, func(c *grpc.Config) { c.Credentials = ca.Server() })
	f.LimitIdle(500 * time.Millisecond)
	f.run(t)
	openWire(t, f.addr, ca.Client(agent1)).ended()
}

// TestLimits_ConnectionsOfOneIdentity checks that the calls of a connection above the limit get the reason.
func TestLimits_ConnectionsOfOneIdentity(t *testing.T) {
	f, ca := limited(t, accepts, func(*grpc.Config) {})
	for n := range 17 {
		err := ocmClient(dial(t, f.addr, ca.Client(agent1))).publish(t, &cloudeventsv1.CloudEvent{Id: "1"})
		e := transportgrpc.FromStatus(err)
		if n < 16 && err != nil {
			t.Errorf("connection %d: %v", n, err)
		}
		if n == 16 && (transport.CodeOf(e) != transport.CodeOverloaded || e.Next != transport.NextBackOff || e.Delay <= 0 || e.Hint == "") {
			t.Errorf("one too many: %+v", e)
		}
	}
	if err := ocmClient(dial(t, f.addr, ca.Client(source1))).publish(t, &cloudeventsv1.CloudEvent{Id: "1"}); err != nil {
		t.Errorf("another identity: %v", err)
	}
}

// TestLimits_Reflection checks that an identity has at most one reflection stream, with a limited rate of
// messages. A new stream ends the previous one.
func TestLimits_Reflection(t *testing.T) {
	f, ca := limited(t, accepts, func(*grpc.Config) {})
	req := &grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}
	open := func() grpc_reflection_v1.ServerReflection_ServerReflectionInfoClient {
		s, err := grpc_reflection_v1.NewServerReflectionClient(dial(t, f.addr, ca.Client(viewer))).ServerReflectionInfo(t.Context())
		if err == nil {
			err = s.Send(req)
		}
		if err == nil {
			_, err = s.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := open()
	second := open()
	if _, err := first.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("the first of two: %v", err)
	}
	var err error
	n := 0
	for ; err == nil && n < 10_000; n++ {
		if err = second.Send(req); err == nil || errors.Is(err, io.EOF) {
			_, err = second.Recv()
		}
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("after %d questions: %v", n, err)
	}
}

// TestLimits_RefusalWithADistantDeadline checks that a rejection arrives for any deadline of the call. Several
// calls with a distant deadline end the connection, because their state is kept until then.
func TestLimits_RefusalWithADistantDeadline(t *testing.T) {
	f, ca := limited(t, accepts, func(*grpc.Config) {})
	w := openWire(t, f.addr, ca.Client(viewer))
	remote := []string{"content-type", "application/grpc", "grpc-timeout", "99999999H"}
	if code, _ := w.answer(w.call(authz.Backup, remote...)); code != fmt.Sprint(int(codes.PermissionDenied)) {
		t.Errorf("code %s", code)
	}
	for range 20 {
		w.call(authz.Backup, remote...)
	}
	w.ended()
}

// TestLimits_Refusals checks that a client that continues after many rejections loses its connection, and so
// does one that sends bytes outside of calls.
func TestLimits_Refusals(t *testing.T) {
	f, ca := limited(t, accepts, func(*grpc.Config) {})
	w := openWire(t, f.addr, ca.Client(agent1))
	for range 400 {
		w.call(authz.Backup)
	}
	w.ended()
	w = openWire(t, f.addr, ca.Client(source1))
	id := w.call(authz.Backup)
	_, _ = w.answer(id)
	for range 600 {
		w.data(id, false, make([]byte, 16<<10))
	}
	w.ended()
}

// TestLimits_ProxyProtocol checks that the client address is the one that a trusted proxy sends. A proxy that
// sends none is rejected; other peers are not trusted.
func TestLimits_ProxyProtocol(t *testing.T) {
	peers := make(chan string, 1)
	s := server{publish: func(_ context.Context, p transport.Peer, _ []byte, _ string) (transport.Receipt, error) {
		peers <- p.Addr
		return transport.Receipt{}, nil
	}}
	header := proxyproto.HeaderProxyFromAddrs(2, &net.TCPAddr{IP: net.ParseIP("192.0.2.7"), Port: 1234}, &net.TCPAddr{IP: net.ParseIP("192.0.2.8"), Port: 8090})
	for name, c := range map[string]struct {
		trusted  string
		accepted bool
		want     string // the address; "": the connection is rejected
	}{
		"trusted":                 {"127.0.0.0/8", true, "192.0.2.7:1234"},
		"trusted, without header": {"127.0.0.0/8", false, ""},
		"not trusted":             {"10.0.0.0/8", true, ""},
		"not trusted, no header":  {"10.0.0.0/8", false, "127.0.0.1"},
	} {
		f, ca := limited(t, s, func(cfg *grpc.Config) { cfg.Proxies = []netip.Prefix{netip.MustParsePrefix(c.trusted)} })
		d := dialer(t, transportgrpc.Options{Target: f.addr, Credentials: ca.Client(agent1), DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err == nil && c.accepted {
				_, err = header.WriteTo(conn)
			}
			return conn, err
		}})
		conn, err := d.Dial(t.Context())
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: a connection", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := conn.Publish(t.Context(), event(t), ""); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := <-peers; !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: from %s, want %s", name, got, c.want)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// event returns a spec event of a source.
func event(t *testing.T) codec.Event {
	t.Helper()
	e, err := codec.Builder{
		ID: "1", Time: time.Now(), Source: "source1", Cluster: "cluster1",
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.UpdateRequest}.String(),
		ContentType: codec.ContentTypeJSON, Data: []byte("{}"),
		Extensions: map[string]any{codec.ExtResourceID: "w", codec.ExtResourceVersion: 1},
	}.Event()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// openTCP connects without TLS.
func openTCP(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the front may have closed it
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestLimits_GarbledHeaders checks headers that the library rejects without calling tap. Each is charged once
// as a rejected call, for any number of frames. Other calls continue.
func TestLimits_GarbledHeaders(t *testing.T) {
	var out syncbuffer.Buffer
	stream := audit.New(audit.Rejections, &out, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	now := time.Now() // the clock does not move, so no charge is refunded
	f, ca := limited(t, accepts, func(c *grpc.Config) { c.Audit, c.Now = stream, func() time.Time { return now } })
	w := openWire(t, f.addr, ca.Client(agent1))
	body := append(begin(5), "\x0a\x03\x0a\x01a"...)
	for range 200 { // the number of rejected calls that one connection of an agent may have
		id := w.call(authz.Publish, "content-type", "application/grpc", "connection", "close")
		w.data(id, true, nil)
	}
	id := w.call(authz.Publish)
	w.data(id, true, body)
	if code, message := w.answer(id); code != "0" {
		t.Errorf("a call beside them: code %s, %s", code, message)
	}
	w.block.Reset()
	if err := w.headers.WriteField(hpack.HeaderField{Name: ":method", Value: "GET"}); err != nil {
		t.Fatal(err)
	}
	err := w.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: w.next, BlockFragment: w.block.Bytes()})
	if err := errors.Join(err, w.framer.WriteContinuation(w.next, false, nil), w.framer.WriteContinuation(w.next, true, nil), w.framer.WritePing(false, [8]byte{})); err != nil {
		t.Fatal(err)
	}
	w.ended() // one too many
	f.stop()
	if err := <-f.ended; err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	stream.Run(ended)
	for _, want := range []string{`"reason":"headers","error":"invalid: the headers are not those of a call`, `"reason":"headers","repeated":200,`, `"event":"ended"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in:\n%s", want, out.String())
		}
	}
}
