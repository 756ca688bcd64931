package grpc_test

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// TestEnds_IssuedTooEarly checks the earliest issue time of a cluster. When the call that sets it returns,
// older connections have ended; on reconnect they get the next step. A fresh certificate is accepted, although
// its notBefore is five minutes before its issue. Other clusters are not affected.
func TestEnds_IssuedTooEarly(t *testing.T) {
	store := mem.Open(mem.Options{NewID: testkit.NewIDs("store")})
	defer store.Close()
	d := testkit.Denylist(t, store)
	ours, hubs := authority(t, "ours"), authority(t, "the hub's")
	s := open(t, d, ours)
	s.setAuthorities(hubs)
	s.comes(ours, hubs, agentOf("cluster3"))
	now := time.Now()
	at := func(a *pki.Authority, cluster string, begins, issued time.Duration) *subscription {
		p := pki.Period{NotBefore: now.Add(begins), NotAfter: now.Add(100 * time.Hour)}
		if issued != 0 {
			p.Issued = now.Add(issued)
		}
		pair, err := a.Issue(pki.Request{Role: pki.Agent, Name: cluster, Valid: p})
		if err != nil {
			t.Fatal(err)
		}
		return s.subscribe(showing(t, ours, pair))
	}
	ends := map[string]*subscription{
		"issued two seconds before":                 at(ours, "cluster1", -5*time.Minute, -2*time.Second),
		"notBefore is earlier, no other issue time": at(ours, "cluster1", -4*time.Minute, 0),
		"of the hub's signer, issued a second ago":  at(hubs, "cluster1", -5*time.Minute-time.Second, 0),
	}
	stays := map[string]*subscription{
		"issued a second after":                at(ours, "cluster1", -5*time.Minute, time.Second),
		"of the hub's signer, issued now":      at(hubs, "cluster1", -5*time.Minute+2*time.Second, 0),
		"of another cluster, from long before": at(ours, "cluster2", -50*time.Minute, -45*time.Minute),
	}
	if err := d.Raise(t.Context(), map[string]time.Time{"cluster1": now}); err != nil {
		t.Fatal(err)
	}
	for name, sub := range ends {
		sub.events <- struct{}{}
		sub.ended(name)
		var refused *transport.Error
		s.until(name+": it gets the reason", func() bool {
			refused = transportgrpc.FromStatus(sub.again())
			return refused != nil && refused.Code == transport.CodeUnauthenticated
		})
		if refused.Attribute != transport.AttributeCertificate || refused.Hint != "have the cluster join again with a new token: hawser token create prints how" {
			t.Errorf("%s: got %+v", name, refused)
		}
	}
	for name, sub := range stays {
		if err := sub.alive(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
