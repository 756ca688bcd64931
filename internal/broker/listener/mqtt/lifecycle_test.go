package mqtt_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/mochi-mqtt/server/v2/packets"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/listener/mqtt"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// TestPort_OneForAllProtocols checks that ALPN selects the protocol. Without ALPN or TLS the first byte shows
// it.
func TestPort_OneForAllProtocols(t *testing.T) {
	for name, edit := range map[string]func(*grpc.Config, *mqtt.Config){
		"TLS": cleartext, "plaintext": func(g *grpc.Config, _ *mqtt.Config) { g.Insecure = true },
	} {
		s := open(t, accepts, edit)
		for _, protocols := range [][]string{{"mqtt"}, {}, {"mqtt", "http/1.1"}} {
			p := s.raw(source1, protocols...)
			p.send(connectPacket())
			p.expect(packets.Connack)
			p.send(publish(1, specs1, event(t, "hub1", "cluster1", "w1", 1)))
			p.expect(packets.Puback)
		}
		for _, protocols := range [][]string{{"http/1.1"}, {}} {
			p := s.web(name, protocols...)
			p.send(connectPacket())
			p.expect(packets.Connack)
			b := encoded(t, publish(1, specs1, event(t, "hub1", "cluster1", "w1", 1)))
			p.sendBytes(b[:1]) // in two pieces
			p.sendBytes(b[1:])
			p.expect(packets.Puback)
		}
		credentials := insecure.NewCredentials()
		if s.ca != nil {
			credentials = s.ca.Client(source1)
		}
		d, err := transportgrpc.NewDialer(transportgrpc.Options{Target: s.addr, Credentials: credentials})
		if err != nil {
			t.Fatal(err)
		}
		c, err := d.Dial(t.Context())
		if err != nil {
			t.Fatalf("%s: gRPC: %v", name, err)
		}
		e, err := codec.FromMessage(event(t, "hub1", "cluster1", "w1", 1))
		if err == nil {
			_, err = c.Publish(t.Context(), e, "")
		}
		if err != nil {
			t.Errorf("%s: gRPC: %v", name, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// web opens a WebSocket.
func (s *site) web(name string, protocols ...string) *peer {
	s.t.Helper()
	scheme := "ws://"
	if s.ca != nil {
		scheme = "wss://"
	}
	tr := &http.Transport{
		DialContext:    func(context.Context, string, string) (net.Conn, error) { return s.raw(source1, protocols...).Conn, nil },
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return s.raw(source1, protocols...).Conn, nil },
	}
	s.t.Cleanup(tr.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	s.t.Cleanup(cancel)
	c, _, err := websocket.Dial(ctx, scheme+s.addr+"/any/path", &websocket.DialOptions{HTTPClient: &http.Client{Transport: tr}, Subprotocols: []string{"mqtt"}}) //nolint:bodyclose // of a WebSocket there is none
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	conn := websocket.NetConn(ctx, c, websocket.MessageBinary)
	s.t.Cleanup(func() { _ = c.CloseNow() }) // an error means: closed already
	return &peer{s.t, conn}
}

// TestWebSocket_Refusals checks that a web page of another site cannot use the certificate of the browser, and
// that other protocols are rejected.
func TestWebSocket_Refusals(t *testing.T) {
	s := open(t, accepts, cleartext)
	for name, c := range map[string]struct{ request, want string }{
		"another site":   {"Origin: https://elsewhere.example\r\nSec-WebSocket-Protocol: mqtt\r\n", "403"},
		"no subprotocol": {"", "101"}, // the upgrade succeeds; a close frame follows
	} {
		p := s.raw(source1, "http/1.1")
		p.sendBytes([]byte("GET / HTTP/1.1\r\nHost: " + s.addr + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" + c.request + "\r\n"))
		var got [512]byte
		n, err := p.Read(got[:])
		if err != nil || !strings.HasPrefix(string(got[:n]), "HTTP/1.1 "+c.want) {
			t.Errorf("%s: %q, %v", name, got[:n], err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDrain checks the drain of connections. A connection with a subscription ends when the server ends the
// subscription. Another connection ends when its publishes are answered.
func TestDrain(t *testing.T) {
	g, all := newGated("w1/1"), make(chan *called, 1)
	g.subscribe = func(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
		c := &called{ctx: ctx, out: out, end: make(chan error, 1)}
		if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
			return err
		}
		all <- c
		return <-c.end
	}
	s := open(t, g, cleartext)
	idle, publishing, agent := s.join(source2), s.join(source1), s.join(agent1)
	agent.send(subscribe(1, allSpecs))
	agent.expect(packets.Suback)
	call := await(t, all)
	publishing.send(publish(1, specs1, event(t, "hub1", "cluster1", "w1", 1)))
	g.wait(t)
	s.stop()
	if k := idle.gone(); k.ReasonCode != 0x8B || user(k, "hawser-delay") == "" {
		t.Errorf("%#02x %v", k.ReasonCode, k.Properties.User)
	}
	close(g.release["w1/1"])
	publishing.expect(packets.Puback)
	if k := publishing.gone(); k.ReasonCode != 0x8B {
		t.Errorf("%#02x", k.ReasonCode)
	}
	agent.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	agent.expect(packets.Pingresp)
	call.end <- &transport.Error{Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: 3 * time.Second, Message: "going away"}
	if k := agent.gone(); k.ReasonCode != 0x8B || user(k, "hawser-delay") != "3s" {
		t.Errorf("%#02x %v", k.ReasonCode, k.Properties.User)
	}
}

// TestMove checks that a client of a broker that shuts down beside other replicas gets the reason code for it.
func TestMove(t *testing.T) {
	s, all := calls()
	agent := open(t, s, cleartext).join(agent1)
	agent.send(subscribe(1, allSpecs))
	call := await(t, all)
	if err := call.out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
		t.Fatal(err)
	}
	agent.expect(packets.Suback)
	call.end <- &transport.Error{Code: transport.CodeUnavailable, Next: transport.NextUseAnotherServer, Message: "going away"}
	if k := agent.gone(); k.ReasonCode != 0x9C || user(k, "hawser-next-step") != "use_another_server" {
		t.Errorf("%#02x %v", k.ReasonCode, k.Properties.User)
	}
}

// TestDrain_Deadline checks that connections that do not end are cut.
func TestDrain_Deadline(t *testing.T) {
	s := accepts
	s.subscribe = func(ctx context.Context, _ transport.Peer, _ transport.RawSubscription, out transport.Stream) error {
		if err := out.Accept(transport.Accepted{SubscriptionID: "s"}); err != nil {
			return err
		}
		<-ctx.Done() // the drain does not end it
		return ctx.Err()
	}
	o := open(t, s, func(g *grpc.Config, m *mqtt.Config) {
		g.DrainTimeout, m.DrainTimeout = 50*time.Millisecond, 50*time.Millisecond
	})
	agent, muted := o.join(agent1), o.raw(agent1)
	agent.send(subscribe(1, allSpecs))
	agent.expect(packets.Suback)
	o.stop()
	agent.gone()
	muted.gone()
}

// TestSilence checks that a client without packets for 1.5 times its keep alive gets the reason and is
// disconnected.
func TestSilence(t *testing.T) {
	p, _ := open(t, accepts, cleartext).connect(agent1, func(k *packets.Packet) { k.Connect.Keepalive = 1 })
	start := time.Now()
	if k := p.gone(); k.ReasonCode != 0x8D || time.Since(start) < time.Second {
		t.Errorf("%#02x after %s", k.ReasonCode, time.Since(start))
	}
}

// TestHalfPacket checks that the rest of a packet has its own timeout, independent of the keep alive.
func TestHalfPacket(t *testing.T) {
	s := open(t, accepts, func(_ *grpc.Config, m *mqtt.Config) { m.PublishTimeout = 50 * time.Millisecond })
	for name, b := range map[string][]byte{"type": {0x32}, "length": {0x32, 0x80}, "body": append([]byte{0x32}, append(number(15<<20), 0, 1)...)} {
		p, _ := s.connect(source1, func(k *packets.Packet) { k.Connect.ClientIdentifier = name })
		p.sendBytes(b)
		p.gone()
	}
}

// TestSlowReading checks that the data for a client that does not read is bounded, and that other clients are
// not delayed.
func TestSlowReading(t *testing.T) {
	s, all := calls()
	o := open(t, s, cleartext)
	slow, other := o.join(agent1), o.join(source1)
	k := subscribe(1, allSpecs)
	k.Filters[0].Qos = 0 // QoS 0 has no window
	slow.send(k)
	slow.expect(packets.Suback)
	call := await(t, all)
	m := event(t, "hub1", "cluster1", "w1", 1)
	m.Payload = make([]byte, 1<<20)
	e, ended := wire(t, m), make(chan int, 1)
	go func() { // ends with the connection
		n := 0
		for ; call.out.Send(e) == nil; n++ {
		}
		ended <- n
	}()
	other.send(publish(1, specs1, event(t, "hub1", "cluster1", "w1", 1)))
	other.expect(packets.Puback)
	if err := slow.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := slow.NetConn().Close(); err != nil { // without DISCONNECT
		t.Fatal(err)
	}
	if n := await(t, ended); n > 200 {
		t.Errorf("%d MiB were sent to a client that does not read", n)
	}
}

// TestEnd_SendsOn checks that the broker reads data only for a limited time after it has ended a connection.
func TestEnd_SendsOn(t *testing.T) {
	p := open(t, accepts, cleartext).join(agent1)
	wrong := append(append([]byte{0x00}, number(60<<10)...), make([]byte, 60<<10)...)
	const most = 64 << 20 // much more than the broker reads and the buffers hold
	for sent := 0; sent < most; sent += len(wrong) {
		if _, err := p.Write(wrong); err != nil {
			return
		}
	}
	t.Errorf("%d MiB were taken", most>>20)
}

// TestSubscribe_Panic checks that a panic ends the connection, and is counted.
func TestSubscribe_Panic(t *testing.T) {
	s := accepts
	s.subscribe = func(context.Context, transport.Peer, transport.RawSubscription, transport.Stream) error {
		panic("oops")
	}
	o := open(t, s, cleartext)
	agent := o.join(agent1)
	agent.send(subscribe(1, allSpecs))
	if k := agent.expect(packets.Suback); k.ReasonCodes[0] != 0x80 || strings.Contains(k.Properties.ReasonString, "oops") {
		t.Errorf("%#02x %q", k.ReasonCodes[0], k.Properties.ReasonString)
	}
	await(t, o.panics)
}

// TestIdle_Memory checks that an agent that waits for works over TLS takes at most 34 KiB, with its stacks. It
// has two goroutines: one reads, one serves its subscription. A whole process takes a quarter more, because it
// does not use all of its memory.
func TestIdle_Memory(t *testing.T) {
	const sessions, each = 400, 34 << 10
	k := testkit.StartBroker(t, testkit.Options{Port: true})
	s := &site{t: t, addr: k.Addr, ca: k.CA}
	s.join(agent1)
	before, goroutines := heap(), runtime.NumGoroutine()
	for n := range sessions {
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close() // only the TCP socket of the client stays
		agent := identity.Identity{Role: identity.Agent, Name: fmt.Sprint("c", n)}
		conn, err := s.ca.Dial(raw, agent, "mqtt")
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{t, conn}
		p.send(connectPacket(), subscribe(1, "sources/+/clusters/"+agent.Name+"/sourceevents"))
		p.expect(packets.Connack)
		p.expect(packets.Suback)
	}
	// Goroutines that handle the last packets end by themselves.
	for began := time.Now(); runtime.NumGoroutine() > goroutines+2*sessions && time.Since(began) < patience; {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine() - goroutines; n > 2*sessions {
		t.Errorf("%d goroutines for %d sessions, want two for each", n, sessions)
	}
	used := int64(heap()) - int64(before)
	t.Logf("%d bytes for each session", used/sessions)
	if used > sessions*each && !raceDetector {
		t.Errorf("%d bytes for each session, want %d at most", used/sessions, each)
	}
}

// NetConn is the connection below TLS.
func (p *peer) NetConn() net.Conn {
	if c, ok := p.Conn.(*tls.Conn); ok {
		return c.NetConn()
	}
	return p.Conn
}
