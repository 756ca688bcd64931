package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestSessionTakenOver: during updates, a connection with the certificate and the client id of a client takes
// over its session. A second process of that client would do the same. It happens three times for each client.
// The client loses the events that it is sent during that time.
func TestSessionTakenOver(t *testing.T) {
	f := &shared
	for _, victim := range []struct {
		role           pki.Role
		name, clientID string
	}{{pki.Agent, cluster1, "hawser-agent-" + cluster1}, {pki.Source, fleet.SourceID, "hawser-source-" + fleet.SourceID}} {
		t.Run(string(victim.role), func(t *testing.T) {
			l := f.outage(t)
			l.duringUpdates(t, 3, func() {
				for range 3 {
					f.takeOver(t, victim.role, victim.name, victim.clientID)
				}
			})
			l.settled(t)
		})
	}
}

// takeOver connects with the identity of a client and disconnects.
func (f *Fleet) takeOver(t *testing.T, role pki.Role, name, clientID string) {
	t.Helper()
	d := tls.Dialer{Config: f.tlsOf(t, role, name)}
	conn, err := d.DialContext(t.Context(), "tcp", f.MQTTAddr())
	if err != nil {
		t.Fatal(err)
	}
	c := paho.NewClient(paho.ClientConfig{Conn: packets.NewThreadSafeConn(conn)})
	if _, err := c.Connect(t.Context(), &paho.Connect{ClientID: clientID, KeepAlive: 60, CleanStart: true}); err != nil {
		t.Fatalf("connect as %s: %v", clientID, err)
	}
	_ = c.Disconnect(&paho.Disconnect{}) // the client may have taken over the session already
	<-c.Done()
}

// TestMessagesTwice: during updates, messages from and for all clients arrive more than once, and all
// connections break.
func TestMessagesTwice(t *testing.T) {
	f := &shared
	l := f.outage(t)
	before := keys("twice-1", "twice-2")
	l.each(t, before, l.Create)
	r := f.relayed(t)
	l.settled(t)
	roles := []pki.Role{pki.Agent, pki.Source}
	for _, role := range roles {
		r.set(role, odds{twice: 0.3}, odds{twice: 0.3})
	}
	l.duringUpdates(t, 2, r.cut)
	l.each(t, before, l.Delete)
	l.each(t, keys("twice-3"), l.Create)
	l.settled(t)
	for _, role := range roles {
		has := r.has(role)
		t.Logf("%s: repeated %d messages to the broker, %d from it", role, has[toBroker].twice, has[toClient].twice)
		if has[toBroker].twice == 0 || has[toClient].twice == 0 {
			t.Error("nothing was repeated")
		}
	}
}

// TestDroppedSpecs: the broker acknowledges every second message for agents and loses it, while works are
// created, changed and deleted. The connections stay, so no agent requests a list. hub-source publishes again
// what no agent has answered for a minute.
//
// The Hawser broker never loses such a message: acknowledged messages are on its disk.
func TestDroppedSpecs(t *testing.T) {
	f := &shared
	l := f.outage(t)
	before := keys("lost-specs-1", "lost-specs-2", "lost-specs-3", "lost-specs-4")
	l.each(t, before, l.Create)
	r := f.relayed(t)
	l.settled(t)
	r.set(pki.Agent, odds{}, odds{dropped: 0.5})
	l.each(t, before[:4], l.Delete)
	l.each(t, before[4:], l.Update)
	l.each(t, l.steady[:10], l.Update)
	l.each(t, keys("lost-specs-5", "lost-specs-6", "lost-specs-7", "lost-specs-8"), l.Create)
	f.losing(t, l, r, toClient)
	l.settled(t)
}

// TestDroppedStatuses: the broker loses statuses of agents. No component notices a lost status. hub-source
// requests all statuses every 30 minutes and when it subscribes. Here it subscribes again because Mosquitto is
// killed.
func TestDroppedStatuses(t *testing.T) {
	f := &shared
	l := f.outage(t)
	deleted := keys("lost-statuses-1", "lost-statuses-2")
	l.each(t, deleted, l.Create)
	r := f.relayed(t)
	l.settled(t)
	r.set(pki.Agent, odds{dropped: 0.5}, odds{dropped: 0.1})
	l.each(t, deleted, l.Delete)
	l.each(t, keys("lost-statuses-3", "lost-statuses-4"), l.Create)
	l.each(t, l.steady, l.Update)
	f.losing(t, l, r, toBroker)
	f.broker().Kill()
	f.start(t, fleet.Broker)
	l.settled(t)
}

// losing waits until messages in direction d were lost and make a difference. Then it ends the losses.
func (f *Fleet) losing(t *testing.T, l *load, r *relay, d int) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		if lost := r.has(pki.Agent)[d].dropped; lost < 3 {
			return fmt.Errorf("%d messages were lost", lost)
		}
		if l.Converged(ctx) == nil {
			return errors.New("the fleet converged without the lost messages")
		}
		return nil
	})
	r.set(pki.Agent, odds{}, odds{})
	has := r.has(pki.Agent)
	t.Logf("lost %d messages of agents, %d for them", has[toBroker].dropped, has[toClient].dropped)
}
