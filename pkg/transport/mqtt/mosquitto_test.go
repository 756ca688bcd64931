package mqtt

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/local/thirdparty"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// mosquittoProgram is a Mosquitto that runs until the test ends.
type mosquittoProgram struct {
	t      *testing.T
	config thirdparty.Config
	p      *childproc.Process
}

func startMosquitto(t *testing.T, text string) *mosquittoProgram {
	t.Helper()
	program, err := thirdparty.FetchMosquitto(t.Context(), "../../..", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &mosquittoProgram{t: t, config: thirdparty.Config{Program: program, Dir: t.TempDir(), Text: text}}
	s.start()
	t.Cleanup(func() { s.p.Kill() })
	return s
}

func (s *mosquittoProgram) start() {
	s.t.Helper()
	var err error
	if s.p, s.config.Addr, err = thirdparty.Start(context.WithoutCancel(s.t.Context()), s.config); err != nil {
		s.t.Fatal(err)
	}
}

func (s *mosquittoProgram) options(client string) Options {
	return Options{Broker: s.config.Addr, Insecure: true, ClientID: client, Topics: testTopics, Log: quiet}
}

func sourceSubscription() transport.Subscription {
	return transport.Subscription{Filter: transport.Filter{Source: "source1", DataType: codec.ManifestBundles}}
}

func newStatus(n int) codec.Event {
	e := newEvent(n)
	e.SetType(codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}.String())
	e.SetSource("agent1")
	e.SetExtension(codec.ExtOriginalSource, "source1")
	return e
}

// collect returns a handler that sends the ids of events to a channel.
func collect(n int) (chan string, transport.Handler) {
	ids := make(chan string, n)
	return ids, func(_ context.Context, e codec.Event) error { ids <- e.ID(); return nil }
}

// TestMosquitto_BothWays: a source and an agent exchange events, an agent that was disconnected receives the
// missed ones, and the broker reports missing subscribers.
func TestMosquitto_BothWays(t *testing.T) {
	s := startMosquitto(t, "allow_anonymous true\n")
	source, agent := dial(t, newDialer(t, s.options("source"))), dial(t, newDialer(t, s.options("agent")))

	r, err := source.Publish(t.Context(), newEvent(0), "")
	if err != nil || r != (transport.Receipt{NoSubscribers: true}) {
		t.Errorf("without a subscriber: %+v, %v", r, err)
	}
	specs, takeSpec := collect(100)
	sub := subscribe(t, agent, agentSubscription(), takeSpec)
	if a := await(t, sub.ready, "agent"); !a.Stateless || a.Protocol != 0 || a.SubscriptionID != "" {
		t.Errorf("%+v", a)
	}
	statuses, takeStatus := collect(100)
	await(t, subscribe(t, source, sourceSubscription(), takeStatus).ready, "source")

	if r, err := source.Publish(t.Context(), newEvent(1), "s"); err != nil || r != (transport.Receipt{}) {
		t.Errorf("to the agent: %+v, %v", r, err)
	}
	if id := await(t, specs, "the spec"); id != "event-1" {
		t.Errorf("got %s", id)
	}
	if _, err := agent.Publish(t.Context(), newStatus(2), ""); err != nil {
		t.Error(err)
	}
	if id := await(t, statuses, "the status"); id != "event-2" {
		t.Errorf("got %s", id)
	}

	if err := agent.Close(); err != nil {
		t.Error(err)
	}
	wantCode(t, await(t, sub.ended, "end"), transport.CodeUnavailable)
	if r, err := source.Publish(t.Context(), newEvent(3), ""); err != nil || r.NoSubscribers {
		t.Errorf("to an agent that is away: %+v, %v", r, err)
	}
	specs, takeSpec = collect(100)
	await(t, subscribe(t, dial(t, newDialer(t, s.options("agent"))), agentSubscription(), takeSpec).ready, "agent again")
	// Scenario:
	//   t1: the agent accepts event 1.
	//   t2: it closes before the acknowledgement is sent.
	//   t3: the broker sends event 1 again.
	id := await(t, specs, "what it missed")
	if id == "event-1" {
		id = await(t, specs, "what it missed")
	}
	if id != "event-3" {
		t.Errorf("got %s", id)
	}
}

// TestMosquitto_Burst: more messages than may be in flight, in both directions, with a slow handler. Mosquitto
// sends more than our Receive Maximum and queues the rest.
func TestMosquitto_Burst(t *testing.T) {
	const count = 500
	s := startMosquitto(t, "allow_anonymous true\nmax_queued_messages 5000\n")
	source, agent := dial(t, newDialer(t, s.options("source"))), dial(t, newDialer(t, s.options("agent")))
	release := make(chan struct{})
	seen := make(chan map[string]bool, 1)
	got := map[string]bool{}
	await(t, subscribe(t, agent, agentSubscription(), func(_ context.Context, e codec.Event) error {
		<-release
		if got[e.ID()] = true; len(got) == count {
			seen <- got
		}
		return nil
	}).ready, "agent")
	var results []<-chan error
	for n := range count {
		results = append(results, publishAsync(t, source, newEvent(n)))
	}
	for _, r := range results {
		if err := await(t, r, "publish"); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	await(t, seen, "all events")
}

// TestMosquitto_Takeover: this version does not report a session takeover to the first client.
func TestMosquitto_Takeover(t *testing.T) {
	s := startMosquitto(t, "allow_anonymous true\n")
	d := newDialer(t, s.options("same"))
	first := subscribe(t, dial(t, d), agentSubscription(), acceptAll)
	await(t, first.ready, "first")
	second := subscribe(t, dial(t, newDialer(t, s.options("same"))), agentSubscription(), acceptAll)
	await(t, second.ready, "second")
	if e := wantCode(t, await(t, first.ended, "end of the first"), transport.CodeUnavailable, "another client", `"same"`, s.config.Addr); e.Delay != time.Second {
		t.Errorf("%+v", e)
	}
}

// TestMosquitto_Will: the source receives the will of an agent that is gone, with or without a goodbye, but not
// if the agent reconnects in time. After a session takeover it receives nothing, so a will is a hint.
func TestMosquitto_Will(t *testing.T) {
	s := startMosquitto(t, "allow_anonymous true\n")
	ids, take := collect(10)
	source := dial(t, newDialer(t, s.options("source")))
	await(t, subscribe(t, source, sourceSubscription(), func(ctx context.Context, e codec.Event) error {
		if _, goodbye, err := codec.ParseKeepalive(e); err != nil || !goodbye {
			t.Errorf("%v, %v", e, err)
		}
		return take(ctx, e)
	}).ready, "source")

	var raw net.Conn
	wills := 0
	o := s.options("agent")
	o.DialContext = func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		raw, err = new(net.Dialer).DialContext(ctx, network, addr)
		return raw, err
	}
	o.Will = func() (codec.Event, bool) {
		wills++
		e, err := codec.NewGoodbye(codec.SyncParams{ID: fmt.Sprint("will-", wills), Time: time.Now(), Source: "agent1", Cluster: "cluster1", Owner: "source1"})
		return e, err == nil
	}
	d := newDialer(t, o)
	d.willDelay = time.Second
	cut := func() {
		if err := raw.Close(); err != nil {
			t.Error(err)
		}
	}
	reported := func(when, want string) {
		t.Helper()
		if id := await(t, ids, when); id != want {
			t.Errorf("%s: %s, want %s", when, id, want)
		}
	}
	dial(t, d)
	cut()
	reported("a connection that broke", "will-1")
	dial(t, d)
	cut()
	if err := dial(t, d).Close(); err != nil {
		t.Error(err)
	}
	reported("one that was replaced in time, and ended", "will-3")
	dial(t, d)
	if err := dial(t, d).Close(); err != nil {
		t.Error(err)
	}
	reported("one that was taken over, and ended", "will-5")
}

// TestMosquitto_TooLarge: the limit in the CONNACK is respected before anything is sent.
func TestMosquitto_TooLarge(t *testing.T) {
	s := startMosquitto(t, "allow_anonymous true\nmax_packet_size 20000\n")
	c := dial(t, newDialer(t, s.options("source")))
	big := newEvent(1)
	big.DataEncoded = make([]byte, 20_000)
	_, err := c.Publish(t.Context(), big, "")
	wantCode(t, err, transport.CodeTooLarge, "20000")
	big.DataEncoded = make([]byte, 19_000)
	if _, err := c.Publish(t.Context(), big, ""); err != nil {
		t.Errorf("within the limit: %v", err)
	}
}

// TestMosquitto_Restart: after a restart of the broker, the connection fails and a new one works.
func TestMosquitto_Restart(t *testing.T) {
	s := startMosquitto(t, "allow_anonymous true\n")
	d := newDialer(t, s.options("agent"))
	sub := subscribe(t, dial(t, d), agentSubscription(), acceptAll)
	await(t, sub.ready, "ready")
	s.p.Kill()
	wantCode(t, await(t, sub.ended, "end"), transport.CodeUnavailable)
	_, err := d.Dial(t.Context())
	wantCode(t, err, transport.CodeUnavailable, s.config.Addr)
	s.start()
	await(t, subscribe(t, dial(t, d), agentSubscription(), acceptAll).ready, "ready again")
}

// secured is the configuration of a port with TLS, and a directory with the files of a client.
func secured(t *testing.T, ca *pki.Authority, require bool) (text, dir string) {
	t.Helper()
	dir = t.TempDir()
	server := issue(t, ca, pki.Broker, "broker", "127.0.0.1")
	client := issue(t, ca, pki.Agent, "cluster1")
	for name, content := range map[string][]byte{
		"ca.pem": ca.CertificatePEM(), "tls.pem": server.CertPEM, "tls.key": server.KeyPEM, "client.pem": client.CertPEM, "client.key": client.KeyPEM,
	} {
		writeFile(t, filepath.Join(dir, name), string(content))
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	return fmt.Sprintf("cafile %s\ncertfile %s\nkeyfile %s\nrequire_certificate %v\n", at("ca.pem"), at("tls.pem"), at("tls.key"), require), dir
}

// TestMosquitto_Configured: a file of Open Cluster Management with only a CA, which means TLS, and with a
// password that is wrong at first.
func TestMosquitto_Configured(t *testing.T) {
	text, dir := secured(t, newAuthority(t), false)
	passwords := filepath.Join(dir, "passwords")
	salt := []byte("twelve bytes")
	key, err := pbkdf2.Key(sha512.New, "right", salt, 101, 64)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, passwords, "u:$7$101$"+base64.StdEncoding.EncodeToString(salt)+"$"+base64.StdEncoding.EncodeToString(key)+"\n")
	s := startMosquitto(t, text+"allow_anonymous false\npassword_file "+passwords+"\n")
	path := filepath.Join(dir, "config.yaml")
	configure := func(secret string) {
		writeFile(t, path, "brokerHost: "+s.config.Addr+"\nusername: u\npassword: "+secret+"\ncaFile: "+filepath.Join(dir, "ca.pem")+fileTopics)
	}
	configure("wrong")
	o, _, err := Load(path, asAgent, false, quiet)
	if err != nil {
		t.Fatal(err)
	}
	d := newDialer(t, o)
	_, err = d.Dial(t.Context())
	wantCode(t, err, transport.CodeUnauthenticated, "rejects the client hawser-agent-cluster1", "username and password")
	configure("right")
	sub := subscribe(t, dial(t, d), agentSubscription(), acceptAll)
	if a := await(t, sub.ready, "with a password"); len(a.Roots) != 1 {
		t.Errorf("%+v", a)
	}
}

// TestMosquitto_ClientCertificate: TLS and WebSockets with a client certificate, with one of another CA, and
// without one.
func TestMosquitto_ClientCertificate(t *testing.T) {
	for name, c := range map[string]struct{ prefix, path string }{"TLS": {"", ""}, "mqtts": {"mqtts://", ""}, "WebSocket": {"wss://", "/any/path"}} {
		t.Run(name, func(t *testing.T) {
			text, dir := secured(t, newAuthority(t), true)
			at := func(name string) string { return filepath.Join(dir, name) }
			text += "use_identity_as_username true\nallow_anonymous true\n"
			if c.prefix == "wss://" {
				// Mosquitto opens no port if all of them are for WebSockets.
				text = "protocol websockets\n" + text + "listener 0 " + at("socket") + "\n"
			}
			s := startMosquitto(t, text)
			files := identity.Files{CA: at("ca.pem"), Cert: at("client.pem"), Key: at("client.key")}
			dialWith := func(f identity.Files) (transport.Conn, error) {
				config, err := f.TLS(func(err error) { t.Error(err) })
				if err != nil {
					t.Fatal(err)
				}
				return newDialer(t, Options{Broker: c.prefix + s.config.Addr + c.path, TLS: config, ClientID: "x", Topics: testTopics, Log: quiet}).Dial(t.Context())
			}
			conn, err := dialWith(files)
			if err != nil {
				t.Fatal(err)
			}
			big := newEvent(1)
			big.DataEncoded = make([]byte, 20_000) // over wss this Mosquitto reads 40 KB in a second
			got, take := collect(10)
			await(t, subscribe(t, conn, agentSubscription(), take).ready, "ready")
			if _, err := conn.Publish(t.Context(), big, ""); err != nil {
				t.Error(err)
			}
			await(t, got, "the event")
			if err := conn.Close(); err != nil {
				t.Error(err)
			}

			_, err = dialWith(identity.Files{CA: at("ca.pem")})
			wantCode(t, err, transport.CodeUnauthenticated, "check the client certificate")
			other := filepath.Join(t.TempDir(), "other.pem")
			writeFile(t, other, string(newAuthority(t).CertificatePEM()))
			_, err = dialWith(identity.Files{CA: other, Cert: files.Cert, Key: files.Key})
			wantCode(t, err, transport.CodeUnauthenticated, "check the CA file")
		})
	}
}
