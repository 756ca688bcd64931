package mqtt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/internal/dialing"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

const (
	specTopic   = "sources/source1/clusters/cluster1/sourceevents"
	statusTopic = "sources/source1/clusters/cluster1/agentevents"
)

// newEvent is a spec of source1 for cluster1.
func newEvent(n int) codec.Event {
	e := event.New()
	e.SetID(fmt.Sprintf("event-%d", n))
	e.SetSource("source1")
	e.SetType(codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.CreateRequest}.String())
	e.SetTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	e.SetExtension(codec.ExtClusterName, "cluster1")
	e.SetExtension(codec.ExtOriginalSource, "")
	e.SetExtension(codec.ExtResourceID, fmt.Sprintf("work-%d", n))
	e.SetExtension(codec.ExtResourceVersion, int32(1))
	return e
}

func agentSubscription() transport.Subscription {
	return transport.Subscription{Filter: transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles}}
}

func messageOf(t testing.TB, e codec.Event) codec.Message {
	t.Helper()
	m, err := codec.ToMessage(e)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func wantCode(t *testing.T, err error, code transport.Code, texts ...string) transport.Error {
	t.Helper()
	var e *transport.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want code %v", err, code)
	}
	for _, text := range texts {
		if !strings.Contains(e.Error(), text) {
			t.Fatalf("%v does not contain %q", err, text)
		}
	}
	return *e
}

// subscribed is a running Subscribe.
type subscribed struct {
	ready chan transport.Accepted
	ended chan error
}

func subscribe(t testing.TB, c transport.Conn, s transport.Subscription, h transport.Handler) subscribed {
	t.Helper()
	r := subscribed{ready: make(chan transport.Accepted, 1), ended: make(chan error, 1)}
	go func() { // ends with the connection, which the test closes
		r.ended <- c.Subscribe(t.Context(), s, func(a transport.Accepted) { r.ready <- a }, h)
	}()
	return r
}

func await[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("%s: not within %v", what, patience)
	}
	panic("unreachable")
}

func acceptAll(context.Context, codec.Event) error { return nil }

func publishAsync(t testing.TB, c transport.Conn, e codec.Event) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { // ends with the connection at the latest
		_, err := c.Publish(t.Context(), e, "")
		done <- err
	}()
	return done
}

// stay reads until the client leaves, and answers pings.
func (p *peer) stay() {
	for cp := p.read(); cp != nil; cp = p.read() {
		if cp.Type == packets.PINGREQ {
			p.write(packets.NewControlPacket(packets.PINGRESP))
		}
	}
}

// TestConnect checks the CONNECT to a broker of unknown kind.
func TestConnect(t *testing.T) {
	got := make(chan *packets.Connect, 1)
	f := newFake(t, func(p *peer) { p.welcome(false); got <- p.connect; p.stay() })
	o := options(f)
	o.Login = func() Login { return Login{User: "u", Password: "p"} }
	o.Will = func() (codec.Event, bool) {
		return newStatus(1), true
	}
	dial(t, newDialer(t, o))
	c := await(t, got, "CONNECT")
	if c.ClientID != "client-1" || c.Username != "u" || string(c.Password) != "p" || c.KeepAlive != 30 || c.CleanStart {
		t.Errorf("%+v", c)
	}
	p := c.Properties
	if *p.SessionExpiryInterval != 3600 || *p.ReceiveMaximum != receiveMaximum || *p.MaximumPacketSize != 16<<20+64<<10 || p.TopicAliasMaximum != nil || len(p.User) > 0 {
		t.Errorf("properties %+v", p)
	}
	if !c.WillFlag || c.WillTopic != statusTopic || c.WillQOS != 1 || c.WillRetain || *c.WillProperties.WillDelayInterval != 30 || len(c.WillProperties.User) == 0 {
		t.Errorf("will %+v", c)
	}

	// paho would truncate a longer password.
	o.Login = func() Login { return Login{User: "u", Password: strings.Repeat("p", codec.MaxTextBytes+1)} }
	_, err := newDialer(t, o).Dial(t.Context())
	wantCode(t, err, transport.CodeInvalid, "password")
	o.Login = nil
	o.Will = func() (codec.Event, bool) {
		e := newStatus(1)
		e.DataEncoded = make([]byte, codec.MaxTextBytes+1)
		return e, true
	}
	_, err = newDialer(t, o).Dial(t.Context())
	wantCode(t, err, transport.CodeInvalid, "the will")

	// Events for a disconnected member of a shared subscription must not wait for that member.
	o = options(f)
	o.Topics.AgentEvents = "$share/g/" + o.Topics.AgentEvents
	dial(t, newDialer(t, o))
	o.Will = func() (codec.Event, bool) { return newStatus(1), true } // the broker would publish this will at once
	dial(t, newDialer(t, o))
	for range 2 {
		if c := await(t, got, "CONNECT"); !c.CleanStart || c.Properties.SessionExpiryInterval != nil || c.WillFlag || c.UsernameFlag {
			t.Errorf("shared: %+v", c)
		}
	}

	// A will without a topic does not prevent connecting.
	o = options(f)
	o.Topics.AgentEvents = "sources/+/clusters/+/agentevents"
	o.Will = func() (codec.Event, bool) {
		e := newStatus(1)
		e.SetExtension(codec.ExtOriginalSource, "")
		return e, true
	}
	dial(t, newDialer(t, o))
	if c := await(t, got, "CONNECT"); c.WillFlag {
		t.Errorf("a will without a topic: %+v", c)
	}
}

// TestClose_DecidesAboutTheWill: an OCM broker keeps the will; a Hawser broker gets none.
func TestClose_DecidesAboutTheWill(t *testing.T) {
	reasons := make(chan byte, 1)
	hawser := make(chan bool, 1)
	f := newFake(t, func(p *peer) {
		p.welcome(<-hawser)
		if d, ok := p.expect(packets.DISCONNECT).Content.(*packets.Disconnect); ok {
			reasons <- d.ReasonCode
		}
	})
	for _, c := range []struct {
		name         string
		will, hawser bool
		reason       property.Reason
	}{
		{"with a will", true, false, property.DisconnectWithWill},
		{"without", false, false, property.Success},
		{"with a will, at a Hawser broker", true, true, property.Success},
	} {
		o := options(f)
		if c.will {
			o.Will = func() (codec.Event, bool) { return newStatus(1), true }
		}
		hawser <- c.hawser
		conn := dial(t, newDialer(t, o))
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if r := property.Reason(await(t, reasons, "DISCONNECT")); r != c.reason {
			t.Errorf("%s: it leaves with %s, want %s", c.name, r, c.reason)
		}
	}
}

func TestDial_Refused(t *testing.T) {
	answers := make(chan func(*packets.Connack), 1)
	f := newFake(t, func(p *peer) { p.welcome(false, <-answers); p.stay() })
	d := newDialer(t, options(f))
	for _, c := range []struct {
		name   string
		answer func(*packets.Connack)
		code   transport.Code
		texts  []string
	}{
		{"password", func(c *packets.Connack) { c.ReasonCode = 0x86 }, transport.CodeUnauthenticated, []string{"client-1", "read again"}},
		{"not authorized", func(c *packets.Connack) { c.ReasonCode = 0x87; c.Properties.ReasonString = "unknown" }, transport.CodeDenied, []string{"unknown"}},
		{"old", func(c *packets.Connack) { c.ReasonCode = 1 }, transport.CodeInvalid, []string{"MQTT 5"}},
		{"busy", func(c *packets.Connack) { c.ReasonCode = 0x89 }, transport.CodeOverloaded, nil},
		{"of ours", func(c *packets.Connack) {
			r := property.RefusalOf(&transport.Error{Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: 3 * time.Second, Message: "full"}, 0)
			c.ReasonCode, c.Properties.ReasonString, c.Properties.User = byte(r.Reason), r.Text, users(r.Properties)
		}, transport.CodeOverloaded, []string{"full"}},
		{"QoS 0", func(c *packets.Connack) { c.Properties.MaximumQOS = pointer(byte(0)) }, transport.CodeInvalid, []string{"QoS 0"}},
		{"no room at all", func(c *packets.Connack) { c.Properties.ReceiveMaximum = pointer(uint16(0)) }, transport.CodeUnavailable, nil},
	} {
		answers <- c.answer
		conn, err := d.Dial(t.Context())
		if conn != nil {
			t.Fatalf("%s: connected", c.name)
		}
		wantCode(t, err, c.code, c.texts...)
	}
}

// TestDial_NoBroker: servers other than an MQTT broker.
func TestDial_NoBroker(t *testing.T) {
	f := newFake(t, func(p *peer) { _, _ = p.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); p.stay() })
	_, err := newDialer(t, options(f)).Dial(t.Context())
	wantCode(t, err, transport.CodeUnavailable, "does not speak MQTT 5")

	muted := newFake(t, func(p *peer) { p.stay() })
	o := options(muted)
	o.DialTimeout = 50 * time.Millisecond
	_, err = newDialer(t, o).Dial(t.Context())
	wantCode(t, err, transport.CodeDeadline, "within 50ms")
}

// TestUpgrade_Refused: the server refuses the certificate after the handshake and closes before the request. The
// error still has the reason.
func TestUpgrade_Refused(t *testing.T) {
	ca := newAuthority(t)
	server := issue(t, ca, pki.Broker, "broker", "127.0.0.1")
	pair, err := tls.X509KeyPair(server.CertPEM, server.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	f := newFake(t, func(p *peer) {
		defer close(gone)
		if err := tls.Server(p.Conn, &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}).Handshake(); err == nil {
			t.Error("the server wants no certificate")
		}
		if err := p.Conn.(*net.TCPConn).SetLinger(0); err != nil { // the connection ends with a reset
			t.Error(err)
		}
		_ = p.Close()
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.CertificatePEM())
	o := options(f)
	o.Broker, o.Insecure, o.TLS = "wss://"+f.Addr().String(), false, func() *tls.Config { return &tls.Config{RootCAs: roots} }
	d := newDialer(t, o)
	conn, err := tls.Dial("tcp", f.Addr().String(), o.TLS())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	await(t, gone, "the end of the connection")
	_, err = d.upgrade(conn, d.brokers[0])
	wantCode(t, explain(dialing.Attempt{}, err), transport.CodeUnauthenticated, "check the client certificate")
}

// TestAccepted: the data that a client gets from an OCM broker and from a Hawser broker. Only the latter gets
// user properties on a SUBSCRIBE.
func TestAccepted(t *testing.T) {
	for _, hawser := range []bool{false, true} {
		got := make(chan *packets.Subscribe, 1)
		want := transport.Accepted{SubscriptionID: "s", Protocol: transport.Protocol, Resync: "list", StoreID: "e", MaxEventBytes: 7}
		f := newFake(t, func(p *peer) {
			p.welcome(hawser, func(c *packets.Connack) { c.Properties.MaximumPacketSize = pointer(uint32(100_000)) })
			s := p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe)
			got <- s
			p.grant(s, property.Accepted(want)...)
			p.stay()
		})
		request := agentSubscription()
		request.Hello = transport.Hello{Protocol: transport.Protocol, Cursor: "e/t/1", ClusterUID: "u"}
		s := subscribe(t, dial(t, newDialer(t, options(f))), request, acceptAll)
		accepted := await(t, s.ready, "ready")
		packet := await(t, got, "SUBSCRIBE")
		filter := specTopic
		if hawser {
			filter = "sources/+/clusters/cluster1/sourceevents"
		} else {
			want = transport.Accepted{Stateless: true, MaxEventBytes: 100_000 - envelopeBytes}
		}
		want.Transport, want.Broker = transport.MQTT, f.Addr().String()
		if d := cmp.Diff(want, accepted); d != "" {
			t.Errorf("hawser %v (-want +got):\n%s", hawser, d)
		}
		if o := packet.Subscriptions[0]; o.Topic != filter || o.QoS != 1 || o.RetainHandling != 2 || o.NoLocal || o.RetainAsPublished {
			t.Errorf("hawser %v: %+v", hawser, o)
		}
		if h, _ := property.HelloOf(userProperties(packet.Properties.User)); (h == request.Hello) != hawser || !hawser && len(packet.Properties.User) > 0 {
			t.Errorf("hawser %v: %+v", hawser, packet.Properties.User)
		}
	}
}

func TestSubscribe_Refused(t *testing.T) {
	f := newFake(t, func(p *peer) {
		p.welcome(false)
		s := p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe)
		ack := packets.NewControlPacket(packets.SUBACK)
		ack.Content.(*packets.Suback).PacketID = s.PacketID
		ack.Content.(*packets.Suback).Reasons = []byte{0x87}
		p.write(ack)
		p.stay()
	})
	c := dial(t, newDialer(t, options(f)))
	s := subscribe(t, c, agentSubscription(), acceptAll)
	wantCode(t, await(t, s.ended, "end"), transport.CodeDenied, specTopic)

	err := c.Subscribe(t.Context(), transport.Subscription{Filter: transport.Filter{Source: "source2", DataType: codec.ManifestBundles}}, nil, acceptAll)
	wantCode(t, err, transport.CodeInvalid, "source2")
}

// TestPublish_SizeLimits: an event that exceeds a limit of the broker or of MQTT is not sent; the error names
// it.
func TestPublish_SizeLimits(t *testing.T) {
	var limit atomic.Uint32
	f := newFake(t, func(p *peer) {
		p.welcome(false, func(c *packets.Connack) { c.Properties.MaximumPacketSize = pointer(limit.Load()) })
		for {
			cp := p.read()
			if cp == nil || cp.Type == packets.DISCONNECT {
				return
			}
			p.puback(cp.PacketID(), property.Success, "", nil)
		}
	})
	big := newEvent(1)
	big.SetDataContentType("application/json")
	big.DataEncoded = make([]byte, 5000)
	p, err := newDialer(t, options(f)).topics.publish(big, "", false)
	if err != nil {
		t.Fatal(err)
	}
	limit.Store(uint32(publishSize(p.Packet())))
	if _, err := dial(t, newDialer(t, options(f))).Publish(t.Context(), big, ""); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	limit.Add(^uint32(0))
	c := dial(t, newDialer(t, options(f)))
	_, err = c.Publish(t.Context(), big, "")
	wantCode(t, err, transport.CodeTooLarge, fmt.Sprintf("at most %d", limit.Load()))
	if transport.Retryable(err) {
		t.Error("it is tried again")
	}
	if _, err := c.Publish(t.Context(), newEvent(2), ""); err != nil {
		t.Errorf("the next event: %v", err)
	}

	// A metadata attribute exceeds the limit of MQTT texts; paho would truncate it.
	long := newEvent(3)
	long.SetExtension(codec.ExtMetadata, strings.Repeat("m", codec.MaxTextBytes+1))
	_, err = c.Publish(t.Context(), long, "")
	if e := wantCode(t, err, transport.CodeTooLarge); e.Attribute != codec.ExtMetadata || transport.Retryable(err) || !strings.Contains(e.Message, "65535") {
		t.Errorf("%+v", e)
	}
	zero := newEvent(4)
	zero.SetExtension("x", "a\x00b")
	_, err = c.Publish(t.Context(), zero, "")
	wantCode(t, err, transport.CodeInvalid, "U+0000")
	noSubscriber := newEvent(5)
	noSubscriber.SetExtension(codec.ExtClusterName, "")
	_, err = c.Publish(t.Context(), noSubscriber, "")
	wantCode(t, err, transport.CodeInvalid, "must name a cluster")
}

// TestPublish_TooLargeForABrokerWithoutAnnouncedLimit: the event at fault gets the error, so that it is not
// published again on each later connection. The connection itself may be opened again.
func TestPublish_TooLargeForABrokerWithoutAnnouncedLimit(t *testing.T) {
	f := newFake(t, func(p *peer) {
		p.welcome(false)
		p.expect(packets.SUBSCRIBE)
		p.expect(packets.PUBLISH)
		p.expect(packets.PUBLISH)
		p.goodbye(property.PacketTooLarge, "", nil)
		p.stay()
	})
	c := dial(t, newDialer(t, options(f)))
	s := subscribe(t, c, agentSubscription(), acceptAll)
	waitFor(t, "SUBSCRIBE on its way", func() bool { return len(c.lock) == 1 })
	waitFor(t, "the request", func() bool { c.state.mu.Lock(); defer c.state.mu.Unlock(); return len(c.state.requests) == 1 })
	big := newEvent(1)
	big.DataEncoded = make([]byte, 5000)
	one, two := publishAsync(t, c, big), publishAsync(t, c, newEvent(2))
	wantCode(t, await(t, one, "the large one"), transport.CodeTooLarge)
	wantCode(t, await(t, two, "the small one"), transport.CodeUnavailable)
	if e := wantCode(t, await(t, s.ended, "the subscription"), transport.CodeUnavailable); e.Next != transport.NextBackOff {
		t.Errorf("%+v", e)
	}
}

// waitFor waits until a condition holds that other goroutines cause.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// TestPublish_Answers: the meaning of PUBACKs of OCM brokers.
func TestPublish_Answers(t *testing.T) {
	answers := make(chan property.Reason, 1)
	f := newFake(t, func(p *peer) {
		p.welcome(false)
		for {
			cp := p.read()
			if cp == nil || cp.Type == packets.DISCONNECT {
				return
			}
			p.puback(cp.PacketID(), <-answers, "", nil)
		}
	})
	c := dial(t, newDialer(t, options(f)))
	for reason, want := range map[property.Reason]transport.Code{0x80: transport.CodeInternal, 0x87: transport.CodeDenied, 0x97: transport.CodeOverloaded, 0x99: transport.CodeInvalid, 0x90: transport.CodeInvalid} {
		answers <- reason
		_, err := c.Publish(t.Context(), newEvent(1), "s")
		wantCode(t, err, want)
	}
	for reason, want := range map[property.Reason]transport.Receipt{property.Success: {}, property.NoMatchingSubscribers: {NoSubscribers: true}} {
		answers <- reason
		if r, err := c.Publish(t.Context(), newEvent(1), "s"); err != nil || r != want {
			t.Errorf("%v: %+v, %v", reason, r, err)
		}
	}
}

// TestPublish_InFlight: as many publishes are in flight as the broker allows, for OCM brokers also limited in
// bytes. A waiting publish gives up with its context.
func TestPublish_InFlight(t *testing.T) {
	for _, c := range []struct {
		name         string
		hawser       bool
		allowed      uint16 // Receive Maximum; 0: not announced
		size, number int
	}{
		{"OCM broker without a limit", false, 0, 10, 20},
		{"OCM broker with a lower limit", false, 3, 10, 3},
		{"OCM broker, in bytes", false, 0, 30_000, 2},
		{"one larger than all", false, 0, 100_000, 1},
		{"Hawser broker", true, 100, 30_000, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan uint16, 1000)
			answer := make(chan uint16)
			f := newFake(t, func(p *peer) {
				p.welcome(c.hawser, func(ca *packets.Connack) {
					if c.allowed > 0 {
						ca.Properties.ReceiveMaximum = &c.allowed
					}
				})
				stop := make(chan struct{})
				defer close(stop)
				go func() { // ends with the connection
					for {
						select {
						case id := <-answer:
							p.puback(id, property.Success, "", nil)
						case <-stop:
							return
						}
					}
				}()
				for cp := p.read(); cp != nil; cp = p.read() {
					if cp.Type == packets.PUBLISH {
						got <- cp.PacketID()
					}
				}
			})
			conn := dial(t, newDialer(t, options(f)))
			e := newEvent(1)
			e.DataEncoded = make([]byte, c.size)
			var results []<-chan error
			for range c.number + 2 {
				results = append(results, publishAsync(t, conn, e))
			}
			var ids []uint16
			for range c.number {
				ids = append(ids, await(t, got, "a publish"))
			}
			waitFor(t, "two that wait", func() bool {
				conn.state.window.mu.Lock()
				defer conn.state.window.mu.Unlock()
				return len(conn.state.window.waiting) == 2
			})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err := conn.Publish(ctx, e, "")
			wantCode(t, err, transport.CodeDeadline)
			select {
			case id := <-got:
				t.Fatalf("more than allowed: %d", id)
			default:
			}
			for range 2 {
				answer <- ids[0]
				ids = append(ids[1:], await(t, got, "one that waited"))
			}
			for _, id := range ids {
				answer <- id
			}
			for _, r := range results {
				if err := await(t, r, "publish"); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestPublish_NothingIsAcknowledged: only a new connection frees the space of lost publishes.
func TestPublish_NothingIsAcknowledged(t *testing.T) {
	f := newFake(t, func(p *peer) {
		p.welcome(false, func(c *packets.Connack) { c.Properties.ReceiveMaximum = pointer(uint16(1)) })
		p.stay()
	})
	o := options(f)
	o.PublishTimeout = 30 * time.Millisecond
	c := dial(t, newDialer(t, o))
	_, err := c.Publish(t.Context(), newEvent(1), "")
	wantCode(t, err, transport.CodeDeadline)
	waitFor(t, "the end", func() bool {
		_, err = c.Publish(t.Context(), newEvent(2), "")
		return transport.CodeOf(err) == transport.CodeUnavailable
	})
	wantCode(t, err, transport.CodeUnavailable, "has acknowledged nothing")
}

// TestPublish_UnansweredRequests: a broker acknowledges a publish that was not sent, or with the wrong packet.
func TestPublish_UnansweredRequests(t *testing.T) {
	f := newFake(t, func(p *peer) {
		p.welcome(false)
		p.puback(77, property.Success, "", nil)
		first := p.expect(packets.PUBLISH)
		p.puback(first.PacketID(), property.Success, "", nil)
		second := p.expect(packets.PUBLISH)
		p.grant(&packets.Subscribe{PacketID: second.PacketID()})
		p.stay()
	})
	c := dial(t, newDialer(t, options(f)))
	if _, err := c.Publish(t.Context(), newEvent(1), ""); err != nil {
		t.Error(err)
	}
	_, err := c.Publish(t.Context(), newEvent(2), "")
	wantCode(t, err, transport.CodeUnavailable, "does not keep to MQTT 5")
}
