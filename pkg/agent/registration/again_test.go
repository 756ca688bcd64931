package registration

import (
	"crypto/tls"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/transport"
)

// TestCore_BeginsAgainOnlyWithAnotherFile: a cluster that the hub deleted does not return until an operator
// provides a new file. The same holds for one that the broker refuses.
func TestCore_BeginsAgainOnlyWithAnotherFile(t *testing.T) {
	t.Run("deleted", func(t *testing.T) {
		r := joined(t)
		r.hub.removeCluster()
		r.seen = nil
		r.pass(10 * time.Minute)
		r.wantWaits("the hub has no ManagedCluster cluster1: if the cluster is to join again")
		if len(r.seen) > 0 || r.hub.cluster != nil {
			t.Fatalf("it requested %v", r.seen)
		}
		r.file = "file2"
		r.core.Bootstrap(r.file)
		r.pass(10 * time.Second)
		if r.wantWaits(""); r.hub.cluster == nil || r.core.state.Bootstrap != "file2" {
			t.Errorf("cluster %v, registered by %q", r.hub.cluster, r.core.state.Bootstrap)
		}
	})
	t.Run("refused", func(t *testing.T) {
		r := joined(t)
		r.down = [numKinds]bool{true, true, true}
		for k := range numKinds {
			r.disconnect(k, &transport.Error{Code: transport.CodeUnauthenticated, Message: "unknown authority"})
		}
		r.pass(10 * time.Minute)
		if r.as != Registered {
			t.Fatalf("as %s", r.as)
		}
		r.core.Bootstrap("file2")
		r.settle()
		if r.as != Bootstrapping || r.used == nil {
			t.Fatalf("as %s, uses %v: the old certificate stays until there is another", r.as, r.used)
		}
		r.down = [numKinds]bool{}
		r.pass(10 * time.Second)
		if r.wantWaits(""); r.as != Registered {
			t.Errorf("as %s", r.as)
		}
	})
	t.Run("refused with it too", func(t *testing.T) {
		r := joined(t)
		r.core.Bootstrap("file2")
		r.down = [numKinds]bool{true, true, true}
		for range 3 { // connects with the certificate, with the file, and with the certificate again
			for k := range numKinds {
				r.core.Disconnected(k, &transport.Error{Code: transport.CodeUnauthenticated, Message: "kept out"})
			}
			r.pass(time.Minute)
		}
		if !slices.Contains(r.seen, "connect "+string(Bootstrapping)) {
			t.Errorf("the file was not tried: %v", r.seen)
		}
		if r.as != Registered {
			t.Fatalf("as %s: the file does not help either", r.as)
		}
		r.down = [numKinds]bool{}
		r.pass(10 * time.Second)
		if r.wantWaits(""); r.as != Registered {
			t.Errorf("as %s", r.as)
		}
	})
	t.Run("refused for a moment", func(t *testing.T) {
		for _, token := range []bool{true, false} { // false: the token has expired
			r := joined(t)
			r.core.Bootstrap("file2")
			r.hub.approving = false
			r.keepOut(Registered, true)
			r.keepOut(Bootstrapping, token)
			r.pass(10 * time.Second)
			if want := "the bootstrap file does not help: unauthenticated: kept out"; token {
				r.wantWaits(want)
			}
			r.keepOut(Registered, false)
			r.pass(firstTrial)
			if r.wantWaits(""); r.as != Registered || slices.Contains(r.seen, "use") {
				t.Errorf("token %t: as %s, saw %v", token, r.as, r.seen)
			}
		}
	})
	t.Run("refused while a person thinks", func(t *testing.T) {
		r := joined(t)
		r.core.Bootstrap("file2")
		r.hub.approving = false
		r.keepOut(Registered, true)
		r.pass(30 * time.Minute) // the certificate is retried at intervals
		names := r.hub.waiting()
		if len(names) != 1 || r.as != Bootstrapping {
			t.Fatalf("as %s, %v wait", r.as, names)
		}
		r.keepOut(Registered, false)
		r.hub.approve(names[0])
		if r.pass(time.Minute); r.as != Registered || len(r.hub.csrs) != 2 || !slices.Contains(r.seen, "use") {
			t.Errorf("as %s, %d requests, saw %v", r.as, len(r.hub.csrs), r.seen)
		}
	})
	t.Run("tried again", func(t *testing.T) {
		r := joined(t)
		r.hub.approving = true
		r.core.Bootstrap("file2")
		r.keepOut(Registered, true)
		r.keepOut(Bootstrapping, true) // the broker does not know the token yet
		r.pass(time.Minute)
		r.keepOut(Bootstrapping, false)
		r.pass(2 * firstTrial)
		if !slices.Contains(r.seen, "use") {
			t.Errorf("saw %v", r.seen)
		}
	})
	t.Run("the state of the hub is unknown", func(t *testing.T) {
		r := joined(t)
		r.file = "file2"
		r.core.Bootstrap(r.file)
		r.away = true
		r.start()
		r.seen = nil
		r.pass(10 * time.Minute)
		r.wantWaits("the hub has not shown the ManagedCluster cluster1 yet")
		r.back()
		r.pass(10 * time.Second)
		if r.wantWaits(""); slices.Contains(r.seen, "connect "+string(Bootstrapping)) {
			t.Errorf("saw %v", r.seen)
		}
	})
	t.Run("a file that cannot be read", func(t *testing.T) {
		r := joined(t)
		r.hub.removeCluster()
		r.core.Bootstrap("")
		r.seen = nil
		r.pass(10 * time.Minute)
		r.file = ""
		r.start()
		r.pass(10 * time.Minute)
		if r.hub.cluster != nil || slices.Contains(r.seen, "connect "+string(Bootstrapping)) {
			t.Errorf("saw %v", r.seen)
		}
	})
	t.Run("the broker is refused", func(t *testing.T) {
		r := joined(t)
		r.core.Bootstrap("file2")
		r.down = [numKinds]bool{true, true, true}
		for k := range numKinds {
			r.disconnect(k, &transport.Error{Code: transport.CodeUnauthenticated, Message: "wrong CA", Err: &tls.CertificateVerificationError{Err: errors.New("unknown authority")}})
		}
		if r.pass(time.Minute); r.as != Registered {
			t.Errorf("as %s: another certificate of its own would not help", r.as)
		}
	})
	t.Run("another file alone", func(t *testing.T) {
		r := joined(t)
		r.core.Bootstrap("file2")
		r.pass(10 * time.Minute)
		if r.as != Registered || slices.Contains(r.seen, "use") {
			t.Errorf("as %s, saw %v", r.as, r.seen)
		}
	})
}

// TestCore_AnotherFileWhileItWaits: with a new token of the same account the agent keeps the request that waits
// for approval. An agent with another account cannot see this request and creates a new one.
func TestCore_AnotherFileWhileItWaits(t *testing.T) {
	for _, shown := range []bool{true, false} {
		r := newRig(t)
		r.pass(5 * time.Second)
		first := r.hub.waiting()[0]
		for k := range numKinds {
			r.disconnect(k, &transport.Error{Code: transport.CodeUnauthenticated, Message: "the token has ended"})
		}
		r.core.Bootstrap("file2")
		if !shown {
			hidden := r.hub.csrs[first]
			delete(r.hub.csrs, first)
			r.pass(5 * time.Minute)
			if names := r.hub.waiting(); len(names) != 1 || names[0] == first {
				t.Errorf("%v wait, after %s", names, hidden.Name)
			}
			continue
		}
		r.pass(5 * time.Minute)
		if names := r.hub.waiting(); len(names) != 1 || names[0] != first {
			t.Errorf("%v wait, after %s", names, first)
		}
		r.hub.approve(first)
		r.settle()
		if r.as != Registered || r.core.state.Bootstrap != "file2" {
			t.Errorf("as %s by %s", r.as, r.core.state.Bootstrap)
		}
	}
}
