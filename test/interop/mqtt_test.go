package interop

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/thirdparty"
	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// mosquittoBroker is a Mosquitto with the configuration in deploy/mosquitto, and the rules of hawser mqtt acl
// for src1, src2 and both clusters.
type mosquittoBroker struct {
	t       testing.TB
	config  thirdparty.Config
	process *childproc.Process
	addr    string
}

// startMosquitto runs a Mosquitto until the test ends. rules are the lines of its acl_file, more is additional
// configuration.
func startMosquitto(t testing.TB, rules string, more ...string) *mosquittoBroker {
	t.Helper()
	program, err := thirdparty.FetchMosquitto(t.Context(), "../..", nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := thirdparty.Files{CA: certs.CACert(), ACL: filepath.Join(dir, "acl")}
	files.Cert, files.Key = certify(t, pki.Broker, "broker")
	text, err := thirdparty.Deployed("../..", dir, files)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.ACL, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &mosquittoBroker{t: t, config: thirdparty.Config{Program: program, Dir: dir, Text: text + strings.Join(more, "\n") + "\n"}}
	b.start()
	b.config.Addr = b.addr
	t.Cleanup(func() {
		b.kill()
		if t.Failed() {
			t.Log(b.process.LogTail())
		}
	})
	return b
}

// start starts Mosquitto, after kill at the same address.
func (b *mosquittoBroker) start() {
	b.t.Helper()
	var err error
	if b.process, b.addr, err = thirdparty.Start(context.WithoutCancel(b.t.Context()), b.config); err != nil {
		b.t.Fatal(err)
	}
}

// kill kills Mosquitto.
func (b *mosquittoBroker) kill() { b.process.Kill() }

// layouts are the usual topics of both sources.
var layouts = []mqttacl.Layout{mqttacl.DefaultLayout(src1), mqttacl.DefaultLayout(src2)}

// rulesOf returns the rules of hawser mqtt acl, of one source after the other. It adds a user with all rights,
// for tests that observe the traffic.
func rulesOf(t testing.TB, layouts ...mqttacl.Layout) string {
	t.Helper()
	onlooker, _ := pki.Subject(pki.Operator, onlooker)
	text := "user " + onlooker + "\ntopic readwrite #\n"
	for _, l := range layouts {
		source, err := l.OfSource(principalOf(pki.Source, l.Source))
		if err != nil {
			t.Fatal(err)
		}
		rules := []mqttacl.Rules{source}
		for _, c := range []string{cluster1, cluster2} {
			r, err := l.OfAgent(principalOf(pki.Agent, c))
			if err != nil {
				t.Fatal(err)
			}
			rules = append(rules, r)
		}
		text += mqttacl.Mosquitto(rules)
	}
	return text
}

// onlooker is the name of an operator that may read everything at a stateless broker.
const onlooker = "onlooker"

func principalOf(role pki.Role, name string) mqttacl.Principal {
	user, _ := pki.Subject(role, name)
	return mqttacl.Principal{Name: name, User: user, ClientID: user}
}

// mqttConfig writes an MQTT client configuration of OCM.
func mqttConfig(t testing.TB, role pki.Role, name, addr string, topics topic.Set) string {
	t.Helper()
	cert, key := certify(t, role, name)
	text := fmt.Sprintf("brokerHost: %s\ncaFile: %s\nclientCertFile: %s\nclientKeyFile: %s\ntopics:\n  sourceEvents: %s\n  agentEvents: %s\n",
		addr, certs.CACert(), cert, key, topics.SourceEvents, topics.AgentEvents)
	if topics.SourceBroadcast != "" {
		text += "  sourceBroadcast: " + topics.SourceBroadcast + "\n"
	}
	if topics.AgentBroadcast != "" {
		text += "  agentBroadcast: " + topics.AgentBroadcast + "\n"
	}
	file := filepath.Join(t.TempDir(), "mqtt.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// startMQTTAgent runs an OCM agent of the cluster over MQTT. It has the topics of the source, without the share
// group, which only the subscribers to agents may use.
func startMQTTAgent(t testing.TB, cluster, addr string, l mqttacl.Layout) *ocmAgent {
	t.Helper()
	config := mqttConfig(t, pki.Agent, cluster, addr, ofAgents(l).Topics)
	return &ocmAgent{cluster: cluster, program: start(t, "ocmagent", "-transport", "mqtt", "-config", config, "-cluster", cluster, "-agent-id", cluster+"-ocm")}
}

// ofAgents returns the layout of agents: without the share group, because no client can publish on it.
func ofAgents(l mqttacl.Layout) mqttacl.Layout {
	l.Topics.AgentEvents = strings.TrimPrefix(l.Topics.AgentEvents, shareGroup)
	return l
}

// startMQTTSource runs an OCM source over MQTT.
func startMQTTSource(t testing.TB, addr string, l mqttacl.Layout, args ...string) *ocmSource {
	t.Helper()
	config := mqttConfig(t, pki.Source, l.Source, addr, l.Topics)
	args = append([]string{"-transport", "mqtt", "-config", config, "-source-id", l.Source}, args...)
	return &ocmSource{program: start(t, "ocmsource", args...)}
}

// message is a message that an MQTT client of a test has received.
type message struct {
	topic      string
	properties map[string]string
	payload    string
}

// mqttClient is an MQTT client of a test.
type mqttClient struct {
	*paho.Client
	t   testing.TB
	got *journal[message]
}

// connectMQTT connects with the certificate of a client and with any client id.
func connectMQTT(t testing.TB, addr string, role pki.Role, name, clientID string) *mqttClient {
	t.Helper()
	c, err := tryMQTT(t, addr, role, name, &paho.Connect{ClientID: clientID, KeepAlive: 60, CleanStart: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryMQTT(t testing.TB, addr string, role pki.Role, name string, connect *paho.Connect) (*mqttClient, error) {
	t.Helper()
	conn, err := dialTLS(t, addr, role, name)
	if err != nil {
		return nil, err
	}
	c := &mqttClient{t: t, got: newJournal(name+" over MQTT", func(m message) string { return m.topic })}
	ended := func(err error) { c.got.end(err) }
	c.Client = paho.NewClient(paho.ClientConfig{
		ClientID: connect.ClientID, Conn: packets.NewThreadSafeConn(conn), OnClientError: ended,
		OnServerDisconnect: func(d *paho.Disconnect) { ended(fmt.Errorf("disconnected: 0x%02x", d.ReasonCode)) },
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			m := message{topic: p.Packet.Topic, payload: string(p.Packet.Payload), properties: map[string]string{}}
			for _, u := range p.Packet.Properties.User {
				m.properties[u.Key] = u.Value
			}
			c.got.add(m)
			return true, nil
		}},
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := c.Connect(ctx, connect); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	t.Cleanup(func() {
		_ = c.Disconnect(&paho.Disconnect{}) // fails if the broker has ended the connection
		<-c.Done()
	})
	return c, nil
}

func dialTLS(t testing.TB, addr string, role pki.Role, name string) (net.Conn, error) {
	t.Helper()
	cert, key := certify(t, role, name)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(certs.CACert())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}}}
	return d.DialContext(t.Context(), "tcp", addr)
}

// subscribe subscribes to filters, each of which the broker must grant.
func (c *mqttClient) subscribe(filters ...string) *mqttClient {
	c.t.Helper()
	s := &paho.Subscribe{}
	for _, f := range filters {
		s.Subscriptions = append(s.Subscriptions, paho.SubscribeOptions{Topic: f, QoS: 1})
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := c.Subscribe(ctx, s); err != nil {
		c.t.Fatal(err)
	}
	return c
}

// publish publishes with QoS 1 and returns the reason code of the answer.
func (c *mqttClient) publish(topic, payload string) byte {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := c.Publish(ctx, &paho.Publish{Topic: topic, QoS: 1, Payload: []byte(payload)})
	if r == nil {
		c.t.Fatal(err)
	}
	return r.ReasonCode
}
