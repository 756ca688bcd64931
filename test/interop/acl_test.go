package interop

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/hawser-io/hawser/internal/cli"
	"github.com/hawser-io/hawser/internal/pki"
)

// writtenRules returns the rules of hawser mqtt acl, and a rule for an operator that may read everything.
func writtenRules(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	args = append([]string{"mqtt", "acl", "--for=mosquitto"}, args...)
	if status := cli.Main(t.Context(), cli.Env{Stdout: &out, Stderr: &errs, Now: time.Now}, args); status != 0 {
		t.Fatalf("hawser %s: %s", strings.Join(args, " "), errs.String())
	}
	user, _ := pki.Subject(pki.Operator, onlooker)
	return out.String() + "\nuser " + user + "\ntopic readwrite #\n"
}

// principal is a client of the rules, with the topics that only this client may use.
type principal struct {
	role             pki.Role
	name             string
	reads, publishes []string
}

func (w principal) user() string {
	user, _ := pki.Subject(w.role, w.name)
	return user
}

func agentOf(cluster string) principal {
	return principal{
		role: pki.Agent, name: cluster, reads: []string{"sources/src1/clusters/" + cluster + "/sourceevents"},
		publishes: []string{"sources/src1/clusters/" + cluster + "/agentevents", "clusters/" + cluster + "/agentbroadcast"},
	}
}

// TestMosquitto_Rules_KeepClientsApart: each client tries the topics of all others. Mosquitto grants every
// subscription, so the test checks which messages arrive.
func TestMosquitto_Rules_KeepClientsApart(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, writtenRules(t, "--source", src1, cluster1, cluster2))
	source := principal{role: pki.Source, name: src1, publishes: []string{"sources/src1/sourcebroadcast"}}
	clients := []principal{source, agentOf(cluster1), agentOf(cluster2)}
	for _, a := range clients[1:] { // the source reads the topics of agents, and publishes on the topics that agents read
		clients[0].reads, clients[0].publishes = append(clients[0].reads, a.publishes...), append(clients[0].publishes, a.reads...)
	}
	var topics []string
	for _, p := range clients {
		topics = append(topics, p.publishes...)
	}
	topics = append(topics, "sources/src2/clusters/cluster1/sourceevents", "consumers/cluster1/agentbroadcast", "anything", "$SYS/x")
	all := connectMQTT(t, b.addr, pki.Operator, onlooker, "x").subscribe("#", "$SYS/x")
	for _, p := range clients {
		t.Run(p.name, func(t *testing.T) { tryTopics(t, b, all, p, topics) })
	}
}

// tryTopics lets a client subscribe to everything and publish everywhere. The client may receive the last
// message, and Mosquitto keeps the order.
func tryTopics(t *testing.T, b *mosquittoBroker, all *mqttClient, p principal, topics []string) {
	c := connectMQTT(t, b.addr, p.role, p.name, "x").subscribe(slices.Concat([]string{"#", "$SYS/#", "+/+/+/+/+", "$share/g/#"}, topics)...)
	broadcast := "sources/src1/sourcebroadcast"
	allowed := p.reads
	if p.role == pki.Agent {
		allowed = append(slices.Clone(allowed), broadcast)
	}
	for _, topic := range slices.Concat(topics, allowed) {
		all.publish(topic, "to "+p.name+" on "+topic)
	}
	last := allowed[0]
	all.publish(last, "last")
	c.got.await(t, 0, "the last message", func(m message) bool { return m.payload == "last" })
	for _, m := range c.got.since(0, func(m message) bool { return !slices.Contains(allowed, m.topic) }) {
		t.Errorf("got %q on %s", m.payload, m.topic)
	}
	for _, topic := range allowed {
		if len(c.got.since(0, func(m message) bool { return m.topic == topic })) == 0 {
			t.Errorf("got nothing on %s", topic)
		}
	}

	from := all.got.position()
	for _, topic := range topics {
		if code, may := c.publish(topic, "from "+p.name), slices.Contains(p.publishes, topic); may == (code == 0x87) {
			t.Errorf("publish on %s: 0x%02x, allowed is %t", topic, code, may)
		}
	}
	c.publish(p.publishes[0], "last of "+p.name)
	all.got.await(t, from, "the last message", func(m message) bool { return m.payload == "last of "+p.name })
	for _, m := range all.got.since(from, func(m message) bool { return m.payload == "from "+p.name && !slices.Contains(p.publishes, m.topic) }) {
		t.Errorf("its message on %s was delivered", m.topic)
	}
}

// TestMosquitto_Rules_BindClientIDs: each client connects with the client ids of the others. Their sessions are
// not affected: no client loses a connection or a pending message.
func TestMosquitto_Rules_BindClientIDs(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, writtenRules(t, "--source", src1, cluster1, cluster2))
	all := connectMQTT(t, b.addr, pki.Operator, onlooker, "x")
	agents := []principal{agentOf(cluster1), agentOf(cluster2)}
	for i, victim := range agents {
		thief := agents[1-i]
		topic := victim.reads[0]
		t.Run(thief.name, func(t *testing.T) {
			c := connectMQTT(t, b.addr, victim.role, victim.name, victim.user()).subscribe(topic)
			stolen := connectMQTT(t, b.addr, thief.role, thief.name, victim.user()).subscribe(topic, thief.reads[0])
			all.publish(topic, "for the victim")
			c.got.await(t, 0, "the message", func(m message) bool { return m.payload == "for the victim" })

			// The session outlives its connection, with one pending message.
			expiry := uint32(3600)
			away := &paho.Connect{ClientID: victim.user(), KeepAlive: 60, Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry}}
			kept, err := tryMQTT(t, b.addr, victim.role, victim.name, away)
			if err != nil {
				t.Fatal(err)
			}
			kept.subscribe(topic)
			if err := kept.Disconnect(&paho.Disconnect{}); err != nil {
				t.Fatal(err)
			}
			<-kept.Done()
			all.publish(topic, "while away")
			again, err := tryMQTT(t, b.addr, thief.role, thief.name, away)
			if err != nil {
				t.Fatal(err)
			}
			again.subscribe(topic, thief.reads[0])
			all.publish(thief.reads[0], "for the thief")
			again.got.await(t, 0, "its own message", func(m message) bool { return m.payload == "for the thief" })
			for _, thiefs := range []*mqttClient{stolen, again} {
				for _, m := range thiefs.got.since(0, func(m message) bool { return m.topic == topic }) {
					t.Errorf("got %q on %s", m.payload, m.topic)
				}
			}
			back, err := tryMQTT(t, b.addr, victim.role, victim.name, away)
			if err != nil {
				t.Fatal(err)
			}
			back.got.await(t, 0, "what waited", func(m message) bool { return m.payload == "while away" })
		})
	}
}

// TestMosquitto_Rules_HoldForWills: the rules also apply to the message of a last will.
func TestMosquitto_Rules_HoldForWills(t *testing.T) {
	t.Parallel()
	b := startMosquitto(t, writtenRules(t, "--source", src1, cluster1, cluster2))
	all := connectMQTT(t, b.addr, pki.Operator, onlooker, "x").subscribe("#")
	for i, topic := range []string{"sources/src1/clusters/cluster1/agentevents", "sources/src1/clusters/cluster2/agentevents"} {
		c, err := tryMQTT(t, b.addr, pki.Agent, cluster2, &paho.Connect{
			ClientID: "x", KeepAlive: 60, CleanStart: true,
			WillMessage: &paho.WillMessage{Topic: topic, QoS: 1, Payload: fmt.Appendf(nil, "will %d", i)}, WillProperties: &paho.WillProperties{},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.TerminateConnectionForTest()
		<-c.Done()
	}
	all.got.await(t, 0, "the will that is allowed", func(m message) bool { return m.payload == "will 1" })
	for _, m := range all.got.since(0, func(m message) bool { return m.payload == "will 0" }) {
		t.Errorf("the will arrived on %s", m.topic)
	}
}

// TestMosquitto_Rules_DenyAddsNoRule: the comment in the rules states that a final line "topic deny #" would
// deny the allowed topics. So the rules have no such line.
func TestMosquitto_Rules_DenyAddsNoRule(t *testing.T) {
	t.Parallel()
	user := agentOf(cluster1).user()
	b := startMosquitto(t, "user "+user+"\ntopic write a\ntopic deny #\n")
	if code := connectMQTT(t, b.addr, pki.Agent, cluster1, "x").publish("a", ""); code != 0x87 {
		t.Errorf("0x%02x, want 0x87: rules can end in a line that denies", code)
	}
}
