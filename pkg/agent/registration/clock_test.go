package registration

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// TestCore_ClockAheadForAMoment: a machine resumes with a clock that is one year ahead, and the bootstrap token
// expired long ago. The agent keeps its certificate.
func TestCore_ClockAheadForAMoment(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, restart := range []bool{false, true} {
		r := joined(t)
		r.keepOut(Bootstrapping, true)
		cert := bytes.Clone(r.used.Cert)
		r.hub.approving = false
		r.seen = nil
		r.now = r.now.Add(year)
		if restart {
			r.start()
		}
		r.pass(2 * time.Second)
		if !bytes.Equal(r.secret[keyCert], cert) || len(r.secret[keyKey]) == 0 || r.used == nil || r.as != Registered {
			t.Fatalf("restart %t: as %s, it uses %v, saw %v", restart, r.as, r.used, r.seen)
		}
		if want := "by the clock of this cluster its certificate expired at "; r.core.Trouble() == nil || r.core.Trouble().Error()[:len(want)] != want {
			t.Errorf("trouble: %v", r.core.Trouble())
		}
		r.now = r.now.Add(-year)
		r.pass(time.Minute)
		if r.wantWaits(""); r.as != Registered || !bytes.Equal(r.used.Cert, cert) || slices.Contains(r.seen, "connect "+string(Bootstrapping)) {
			t.Errorf("restart %t: as %s, saw %v", restart, r.as, r.seen)
		}
	}
}

// TestCore_RenewedWhileTheClockIsAhead: by the wrong clock of the cluster, the new certificate has already
// expired. The agent uses it, requests no other, and renews it in time by the corrected clock.
func TestCore_RenewedWhileTheClockIsAhead(t *testing.T) {
	r := joined(t)
	r.hub.approving = true
	old, requests := r.used, len(r.hub.csrs)
	hub := r.now
	const year = 365 * 24 * time.Hour
	r.now = r.now.Add(year)
	r.hub.now = func() time.Time { return r.now.Add(-year) }
	r.pass(10 * time.Second)
	if r.used == old || len(r.hub.csrs) != requests+1 || r.as != Registered {
		t.Fatalf("as %s, %d requests, the same certificate %t", r.as, len(r.hub.csrs)-requests, r.used == old)
	}
	if r.pass(10 * time.Minute); len(r.hub.csrs) != requests+1 {
		t.Errorf("%d requests in ten minutes", len(r.hub.csrs)-requests)
	}
	r.hub.now = func() time.Time { return r.now }
	r.now = r.now.Add(-year)
	r.back() // the rig computes with times and does not notice that the clock was set back
	if r.settle(); !r.core.RenewAt().Before(hub.Add(2 * time.Hour)) {
		t.Errorf("renewed at %v", r.core.RenewAt())
	}
	if r.pass(2 * time.Hour); len(r.hub.csrs) < requests+2 || r.as != Registered {
		t.Errorf("as %s, %d requests", r.as, len(r.hub.csrs)-requests)
	}
}

// TestCore_ReplacesExpiredCertificate: the hub issued it long ago, while the agent was disconnected. The broker
// reports that, and the agent requests another one within minutes, whatever it had waited before.
func TestCore_ReplacesExpiredCertificate(t *testing.T) {
	r := newRig(t)
	r.pass(5 * time.Second)
	csr := r.hub.csrs[r.hub.waiting()[0]]
	csr.Status.Certificate = r.hub.sign(csr.Spec.Request, -time.Second)
	r.keepOut(Registered, true)
	r.core.certificateRetry.failed(r.now, 1, lastTrial, lastTrial, nil)
	r.hub.showRequest(csr)
	if r.pass(5 * time.Second); len(r.hub.csrs) != 1 {
		t.Fatalf("%d requests at once", len(r.hub.csrs)) // a signer that is always late would get one after the other
	}
	if r.pass(firstTrial); r.as != Bootstrapping || len(r.hub.csrs) != 2 {
		t.Fatalf("as %s, %d requests", r.as, len(r.hub.csrs))
	}
	r.hub.approve(r.core.state.Pending.Name)
	r.keepOut(Registered, false)
	if r.pass(time.Minute); r.as != Registered {
		t.Errorf("as %s: %v", r.as, r.core.WaitReason())
	}
}

// TestCore_ReplacesCertificateExpiringAgain: a successful registration does not delay a later one.
//
// Scenario:
//
//	t1: a certificate expires while the agent is disconnected, and an operator approves another one.
//	t2: that one expires soon after.
func TestCore_ReplacesCertificateExpiringAgain(t *testing.T) {
	r := newRig(t)
	r.pass(5 * time.Second)
	for range 5 {
		csr := r.hub.csrs[r.core.state.Pending.Name]
		csr.Status.Certificate = r.hub.sign(csr.Spec.Request, time.Minute)
		r.hub.approving = false
		r.keepOut(Registered, false)
		r.hub.showRequest(csr)
		if r.pass(10 * time.Second); r.as != Registered {
			t.Fatalf("as %s", r.as)
		}
		r.keepOut(Registered, true)
		if r.pass(time.Minute + 10*time.Second); r.as != Bootstrapping || r.core.state.Pending == nil {
			t.Fatalf("as %s, 20 s after its certificate has ended: %v", r.as, r.core.WaitReason())
		}
	}
}
