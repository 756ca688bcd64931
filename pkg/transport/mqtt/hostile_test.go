package mqtt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// intrude connects to a broker as an attacker and sends some packets. The broker has processed them when intrude
// returns.
func intrude(t *testing.T, s *mosquittoProgram, id string, config *tls.Config, first ...*packets.ControlPacket) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", s.config.Addr)
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		conn = tls.Client(conn, config)
	}
	p := &peer{Conn: conn, t: t}
	hello := packets.NewControlPacket(packets.CONNECT)
	hello.Content.(*packets.Connect).ClientID, hello.Content.(*packets.Connect).CleanStart = id, true
	p.write(hello)
	p.expect(packets.CONNACK)
	for _, cp := range first {
		p.write(cp)
		p.expect(packets.PUBACK)
	}
	acks := p.acks()
	over := make(chan struct{})
	go func() { // ends with the connection
		defer close(over)
		for range acks {
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close() // the broker may have closed it
		<-over
	})
	return p
}

// counted returns the options of a client whose metrics are checked.
func counted(t *testing.T, o Options) (*Dialer, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	var err error
	if o.Metrics, err = NewMetrics(reg); err != nil {
		t.Fatal(err)
	}
	return newDialer(t, o), reg
}

func wantDrops(t *testing.T, reg *prometheus.Registry, want map[string]float64) {
	t.Helper()
	for _, reason := range []string{dropUndecodable, dropTooLarge, dropRetained, dropDataType, dropTopic} {
		waitFor(t, reason, func() bool { return count(t, reg, "hawser_mqtt_dropped_total", reason) >= want[reason] })
		if n := count(t, reg, "hawser_mqtt_dropped_total", reason); n != want[reason] {
			t.Errorf("%s: %v were dropped, want %v", reason, n, want[reason])
		}
	}
}

// kept returns a PUBLISH with the retain flag.
func kept(name string, m codec.Message) *packets.ControlPacket {
	cp := publishPacket(1, name, m)
	cp.Content.(*packets.Publish).Retain = true
	return cp
}

// giant has more properties than a client accepts in one packet.
var giant = codec.Message{Properties: slices.Repeat([]codec.Property{{Key: "x", Value: strings.Repeat("x", codec.MaxTextBytes)}}, 20)}

// TestMosquitto_NoRules: at an OCM broker without rules each client may use any identity. A client cannot
// detect a consistent forgery. It drops and counts contradictory messages, and bounds its memory. It reconnects
// with growing delays, and continues when the attack ends.
func TestMosquitto_NoRules(t *testing.T) {
	s := startMosquitto(t, "allow_anonymous true\nmax_queued_messages 2000\n")
	evil := intrude(t, s, "evil", nil, kept(specTopic, messageOf(t, newEvent(99)))) // before the agent connects
	source := dial(t, newDialer(t, s.options("source")))
	d, reg := counted(t, s.options("agent"))
	agent := dial(t, d)
	stuck := make(chan struct{})
	got := make(chan string, 2000)
	sub := subscribe(t, agent, agentSubscription(), func(_ context.Context, e codec.Event) error {
		if e.ID() == "event-50" {
			<-stuck
		}
		got <- e.ID()
		return nil
	})
	await(t, sub.ready, "agent")

	of := func(n int, name string, v any) codec.Message {
		e := newEvent(n)
		if name == "" {
			e.SetSource("source2")
		} else {
			e.SetExtension(name, v)
		}
		return messageOf(t, e)
	}
	other := newEvent(3)
	other.SetType("g.v1.r.spec.create_request")
	for id, m := range []codec.Message{of(1, "", nil), of(2, codec.ExtClusterName, "cluster2"), messageOf(t, other), {Payload: []byte("x")}, giant} {
		evil.publish(uint16(id+2), specTopic, m)
	}
	evil.publish(8, specTopic, messageOf(t, newEvent(7))) // forged and consistent, so it cannot be detected
	if id := await(t, got, "the forgery"); id != "event-7" {
		t.Errorf("got %s", id)
	}
	wantDrops(t, reg, map[string]float64{dropTopic: 2, dropDataType: 1, dropUndecodable: 1, dropTooLarge: 1})

	// The attacker floods a busy client.
	const flood = 60
	large := newEvent(50)
	large.DataEncoded = make([]byte, 1<<20)
	m := messageOf(t, large)
	for n := range uint16(flood) {
		evil.publish(n+10, specTopic, m)
	}
	waitFor(t, "a full inbox", agent.state.inbox.full)
	agent.state.inbox.mu.Lock()
	held := agent.state.inbox.bytes
	agent.state.inbox.mu.Unlock()
	if held > maxQueued+2<<20 {
		t.Errorf("%d bytes are held", held)
	}
	close(stuck)
	if _, err := source.Publish(t.Context(), newEvent(8), ""); err != nil {
		t.Error(err)
	}
	for id := ""; id != "event-8"; {
		id = await(t, got, "the event behind the flood")
	}

	// The attacker uses the client id of the agent.
	for n := range 3 {
		thief := intrude(t, s, "agent", nil)
		e := wantCode(t, await(t, sub.ended, "the end"), transport.CodeUnavailable, "another client", `"agent"`)
		if want := time.Second << n; e.Delay != want {
			t.Errorf("the %d. time it waits %v, want %v", n+1, e.Delay, want)
		}
		_ = thief.Close() // the session takeover has happened
		sub = subscribe(t, dial(t, d), agentSubscription(), func(_ context.Context, e codec.Event) error { got <- e.ID(); return nil })
		await(t, sub.ready, "agent again")
	}
	if n := count(t, reg, "hawser_mqtt_takeovers_total", ""); n != 3 {
		t.Errorf("%v takeovers", n)
	}
	if _, err := source.Publish(t.Context(), newEvent(9), ""); err != nil {
		t.Error(err)
	}
	for id := ""; id != "event-9"; { // after the events that were unacknowledged at the takeover
		id = await(t, got, "the event after it")
	}
}

// TestMosquitto_HostileCluster checks the rules of hawser mqtt acl. An attacker with the certificate of one
// cluster reaches only the source, and only as its own cluster.
func TestMosquitto_HostileCluster(t *testing.T) {
	ca := newAuthority(t)
	text, dir := secured(t, ca, true)
	layout := mqttacl.DefaultLayout("source1")
	var rules []mqttacl.Rules
	config := func(role pki.Role, name string) *tls.Config {
		pair := issue(t, ca, role, name)
		cert, err := pair.TLS()
		if err != nil {
			t.Fatal(err)
		}
		user, _ := pki.Subject(role, name)
		principal, of := mqttacl.Principal{Name: name, User: user, ClientID: user}, layout.OfAgent
		if role == pki.Source {
			of = layout.OfSource
		}
		r, err := of(principal)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.CertificatePEM())
		return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}
	}
	asSource, asAgent, asEvil := config(pki.Source, "source1"), config(pki.Agent, "cluster1"), config(pki.Agent, "cluster2")
	acl := filepath.Join(dir, "acl")
	writeFile(t, acl, mqttacl.Mosquitto(rules))
	s := startMosquitto(t, text+"allow_anonymous false\nuse_identity_as_username true\nuse_username_as_clientid true\nacl_file "+acl+"\n")
	options := func(id string, config *tls.Config) Options {
		return Options{Broker: s.config.Addr, TLS: func() *tls.Config { return config }, ClientID: id, Topics: testTopics, Log: quiet}
	}
	const own = "sources/source1/clusters/cluster2/agentevents"
	event := func(n int, cluster string) codec.Message {
		e := newStatus(n)
		e.SetExtension(codec.ExtClusterName, cluster)
		return messageOf(t, e)
	}
	intrude(t, s, "hawser-source-source1", asEvil, kept(own, event(99, "cluster2")))

	d, reg := counted(t, options("hawser-source-source1", asSource))
	source, agent := dial(t, d), dial(t, newDialer(t, options("hawser-agent-cluster1", asAgent)))
	statuses, takeStatus := collect(1000)
	specs, takeSpec := collect(1000)
	ofSource := subscribe(t, source, sourceSubscription(), takeStatus)
	await(t, ofSource.ready, "source")
	ofAgent := subscribe(t, agent, agentSubscription(), takeSpec)
	await(t, ofAgent.ready, "agent")

	// Brokers reject a client id of another identity, and the other client keeps its connection.
	intrude(t, s, "hawser-source-source1", asEvil)
	evil := intrude(t, s, "hawser-agent-cluster1", asEvil)
	evil.publish(1, statusTopic, event(1, "cluster1"))        // topic of another cluster
	evil.publish(2, specTopic, messageOf(t, newEvent(2)))     // topic of the source
	evil.publish(3, own, event(3, "cluster1"))                // names another cluster
	evil.publish(4, own, giant)                               // more properties than are read
	evil.publish(5, own, codec.Message{Payload: []byte("x")}) // no event
	for n := range uint16(200) {
		evil.publish(n+10, own, event(4, "cluster2"))
	}
	for range 200 {
		if id := await(t, statuses, "a status of its own"); id != "event-4" {
			t.Fatalf("got %s", id)
		}
	}
	wantDrops(t, reg, map[string]float64{dropTopic: 1, dropTooLarge: 1, dropUndecodable: 1})
	if _, err := agent.Publish(t.Context(), newStatus(5), ""); err != nil {
		t.Error(err)
	}
	if id := await(t, statuses, "the status of the other cluster"); id != "event-5" {
		t.Errorf("got %s", id)
	}
	if _, err := source.Publish(t.Context(), newEvent(6), ""); err != nil {
		t.Error(err)
	}
	if id := await(t, specs, "the work of the other cluster"); id != "event-6" {
		t.Errorf("got %s", id)
	}
	if n := count(t, reg, "hawser_mqtt_takeovers_total", ""); n != 0 {
		t.Errorf("%v takeovers of the source", n)
	}
}
