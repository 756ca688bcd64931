package registration

import (
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/pkg/transport"
)

// rotate makes the hub require a certificate that was issued after at.
func (h *fakeHub) rotate(at time.Time) {
	h.cluster.Annotations = map[string]string{earliest.RotateAnnotation: earliest.Entry{At: at}.String()}
	h.showCluster()
}

// TestCore_Rotation: if the hub requires a certificate issued after a given time, an agent renews at once. It
// moves its connections at once, and renews its Lease on the first new one. It does so once.
func TestCore_Rotation(t *testing.T) {
	r := joined(t)
	r.pass(10 * time.Minute)
	before := r.used
	r.hub.rotate(r.now)
	r.moves = nil
	if r.pass(2 * time.Second); r.used == before || len(r.moves) != 1 {
		t.Fatalf("two seconds later it has the certificate from %v, wanted is one from %v; moved at %v", r.used.Issued, r.now, r.moves)
	}
	was := r.hub.renewals
	r.disconnect(Leases, nil)
	if r.pass(time.Second); r.hub.renewals != was+1 {
		t.Errorf("%d renewals of the Lease on the connection with the new certificate", r.hub.renewals-was)
	}
	after := r.used
	if r.pass(10 * time.Minute); r.used != after {
		t.Error("it renews again")
	}
	if err := r.core.Trouble(); err != nil {
		t.Error(err)
	}
}

// TestCore_RotationByDifferentClocks: the agent reports the difference, and does not flood the hub.
//
// Scenario:
//
//	t1: the hub requires a certificate issued after a given time.
//	t2: its signer's clock is behind that time.
//	t3: the new certificate is older than required.
func TestCore_RotationByDifferentClocks(t *testing.T) {
	r := joined(t)
	r.hub.behind = 10 * time.Second
	r.hub.rotate(r.now)
	before := len(r.hub.csrs)
	if r.pass(5 * time.Second); r.core.Trouble() == nil || !strings.Contains(r.core.Trouble().Error(), "check the clocks of the hub") {
		t.Errorf("its trouble is %v", r.core.Trouble())
	}
	if r.pass(10 * time.Minute); r.core.Trouble() != nil || len(r.hub.csrs) != before+2 {
		t.Errorf("%d requests, trouble %v", len(r.hub.csrs)-before, r.core.Trouble())
	}
	r.hub.rotate(r.now.Add(48 * time.Hour)) // a wrong clock set this time
	before = len(r.hub.csrs)
	if r.pass(10 * time.Hour); len(r.hub.csrs)-before > 24 {
		t.Errorf("%d requests in ten hours", len(r.hub.csrs)-before)
	}
}

// TestCore_Outdated: an agent whose certificate is rejected as too old, although it has not expired, joins
// again with its bootstrap file. If that fails too, it reports the next step.
func TestCore_Outdated(t *testing.T) {
	outdated := &transport.Error{
		Code: transport.CodeUnauthenticated, Attribute: transport.AttributeCertificate, Message: "issued too early", Hint: "have the cluster join again",
	}
	refuse := func(r *rig) {
		r.keepOut(Registered, true)
		for k := range numKinds {
			r.core.Disconnected(k, outdated)
		}
		r.settle()
	}
	r := joined(t)
	r.hub.approving = false
	refuse(r)
	if r.pass(3 * time.Second); r.as != Bootstrapping || len(r.hub.waiting()) != 1 {
		t.Fatalf("as %s, %d requests wait", r.as, len(r.hub.waiting()))
	}
	r.wantWaits("the hub has to approve the CertificateSigningRequest " + r.hub.waiting()[0])
	before := r.used
	r.keepOut(Registered, false)
	r.hub.approve(r.hub.waiting()[0])
	if r.pass(3 * time.Second); r.as != Registered || r.used == before {
		t.Errorf("as %s, with the former certificate %v", r.as, r.used == before)
	}

	r = joined(t) // the cluster is also detached: it joins again only with another bootstrap file
	r.hub.approving = false
	r.hub.removeCluster()
	r.settle()
	refuse(r)
	if r.pass(3 * time.Second); r.as != Registered || len(r.hub.waiting()) > 0 {
		t.Errorf("detached: as %s, %d requests wait", r.as, len(r.hub.waiting()))
	}

	r = joined(t)
	r.keepOut(Bootstrapping, true) // its token has expired
	refuse(r)
	r.core.Disconnected(Clusters, outdated)
	r.wantWaits("have the cluster join again")
}
