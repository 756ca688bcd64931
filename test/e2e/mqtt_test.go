package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/hawser-io/hawser/internal/fleet"
	"github.com/hawser-io/hawser/internal/pki"
)

// TestSessionTakenOver: in the middle of updates somebody with the certificate of
// a party connects with its client id, as a second process of it would, and goes
// away again, three times each. What the party is sent meanwhile is lost to it.
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

// takeOver connects as a party and leaves.
func (f *Fleet) takeOver(t *testing.T, role pki.Role, name, clientID string) {
	t.Helper()
	keys := f.PKI()
	pair, err := tls.LoadX509KeyPair(keys.Cert(role, name), keys.Key(role, name))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(keys.CACert())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}, NextProtos: []string{"mqtt"}}}
	conn, err := d.DialContext(t.Context(), "tcp", f.MQTTAddr())
	if err != nil {
		t.Fatal(err)
	}
	c := paho.NewClient(paho.ClientConfig{Conn: packets.NewThreadSafeConn(conn)})
	if _, err := c.Connect(t.Context(), &paho.Connect{ClientID: clientID, KeepAlive: 60, CleanStart: true}); err != nil {
		t.Fatalf("connect as %s: %v", clientID, err)
	}
	_ = c.Disconnect(&paho.Disconnect{}) // the party may have taken it over already
	<-c.Done()
}
