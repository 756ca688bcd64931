package registration

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/transport"
)

// rig drives a core with a hub, a Secret and a clock of its own.
type rig struct {
	t      testing.TB
	now    time.Time
	hub    *fakeHub
	core   *Core
	secret map[string][]byte
	file   string // the bootstrap file
	names  int

	as       CredentialKind
	down     [numKinds]bool          // streams that cannot connect
	out      map[CredentialKind]bool // credentials that the broker rejects
	away     bool                    // the broker has no hub cache
	saveErr  error
	used     *Credential
	notified int
	moves    []time.Time
	seen     []string // effects
	random   func() float64
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), file: "file1", out: map[CredentialKind]bool{}, random: func() float64 { return 0.5 }}
	r.hub = newFakeHub(t, func() time.Time { return r.now })
	r.hub.changed = r.show
	r.start()
	return r
}

// start starts a process.
func (r *rig) start() {
	saved, _ := ReadSavedState(r.secret, cluster1, "hub1")
	r.core = NewCore(CoreConfig{
		Cluster: cluster1, Hub: "hub1", Config: []byte("url: broker:8090\n"), Random: r.random,
		Name: func() string { r.names++; return fmt.Sprintf("n%04d", r.names) }, NewKey: NewKey,
	}, saved, r.file)
	r.as, r.used = "", nil
	r.core.Learned(r.now, Facts{Healthy: true, Version: "v1.36.0", Capacity: clusterv1.ResourceList{clusterv1.ResourceCPU: resource.MustParse("4")}})
}

// show sends an object or a deletion on a stream of the hub, if the stream is connected.
func (r *rig) show(k Kind, o runtime.Object, gone types.UID) {
	switch {
	case r.core == nil || !r.core.connected(k) || r.away:
	case o != nil:
		r.core.StoreObject(o)
	default:
		r.core.RemoveObject(r.now, k, gone)
	}
}

// connect connects all streams that can connect.
func (r *rig) connect() {
	for k := range numKinds {
		if r.out[r.as] && r.core.streams[k].err == nil {
			r.core.Disconnected(k, &transport.Error{Code: transport.CodeUnauthenticated, Message: "kept out"})
		}
		if r.out[r.as] || r.down[k] || k == Leases && r.as == Bootstrapping || r.core.connected(k) {
			continue
		}
		held := r.core.ObjectUIDs(k)
		r.core.Connected(r.now, k)
		if r.away {
			continue
		}
		objects := r.hub.all(k)
		for _, o := range objects {
			r.core.StoreObject(o)
		}
		for _, uid := range held {
			if !slices.ContainsFunc(objects, func(o runtime.Object) bool { return o.(interface{ GetUID() types.UID }).GetUID() == uid }) {
				r.core.RemoveObject(r.now, k, uid)
			}
		}
	}
}

// keepOut makes the broker reject credentials of this kind, or accept them again.
func (r *rig) keepOut(as CredentialKind, yes bool) {
	if r.out[as] = yes; yes && r.as == as {
		r.core.streams = [numKinds]stream{}
	}
}

// back gives the broker its hub cache again.
func (r *rig) back() {
	r.away = false
	for k := range numKinds {
		r.disconnect(k, errors.New("cut"))
	}
}

func (r *rig) disconnect(k Kind, err error) {
	if r.core.connected(k) {
		r.core.Disconnected(k, err)
	}
}

// settle steps until nothing more is due now.
func (r *rig) settle() {
	r.t.Helper()
	for range 50 {
		if r.as != "" {
			r.connect()
		}
		effects := r.core.Step(r.now)
		if len(effects) == 0 {
			return
		}
		for _, e := range effects {
			r.perform(e)
		}
	}
	r.t.Fatalf("it never stops: %s", strings.Join(r.seen[max(0, len(r.seen)-20):], ", "))
}

func (r *rig) perform(e Effect) {
	r.t.Helper()
	switch e := e.(type) {
	case Connect:
		r.as = e.Credential
		r.seen = append(r.seen, "connect "+string(e.Credential))
	case ActivateCertificate:
		r.used = e.Credential
		if e.Credential != nil {
			if _, err := ReadCredential(e.Credential.Cert, e.Credential.Key, r.core.subject()); err != nil {
				r.t.Fatalf("a certificate is used that does not fit: %v", err)
			}
			r.seen = append(r.seen, "use")
		}
	case Save:
		if r.saveErr == nil {
			r.secret = e.State.Data()
		}
		r.core.Saved(r.now, e.State, r.saveErr)
	case NotifyAccepted:
		r.notified++
	case MigrateConnections:
		r.moves = append(r.moves, r.now)
	case Publish:
		r.seen = append(r.seen, e.Request.String())
		r.publish(e)
	}
}

// publish checks the conditions that hold for every request to the hub, and executes the request.
func (r *rig) publish(p Publish) {
	r.t.Helper()
	if k := subscriptions[p.Request].kind; !r.core.connected(k) {
		r.t.Fatalf("%s without a connection", p.Request)
	}
	switch p.Request {
	case CreateRequest:
		if pending := r.core.state.Pending; string(r.secret[keyPendingName]) != pending.Name || !bytes.Equal(r.secret[keyPendingKey], pending.Key) {
			r.t.Fatalf("%s is published, and its key is not in the Secret", pending.Name)
		}
	case CreateCluster:
		if r.as != Bootstrapping {
			r.t.Fatal("a registered agent creates its cluster")
		}
	case ReportStatus, RenewLease:
		if !r.core.isAccepted() {
			r.t.Fatalf("%s by a cluster that is not accepted", p.Request)
		}
	}
	r.core.Published(r.now, p, r.hub.do(p.Request, p.Object))
}

// pass advances the time by d.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	end := r.now.Add(d)
	for {
		r.settle()
		next := r.core.Next()
		if next.IsZero() || !next.Before(end) {
			break
		}
		r.now = next
	}
	r.now = end
	r.settle()
}

func (r *rig) wantWaits(text string) {
	r.t.Helper()
	if err := r.core.WaitReason(); text == "" && err != nil || !strings.Contains(fmt.Sprint(err), text) {
		r.t.Errorf("it waits for %v, want %q", err, text)
	}
}

// TestCore_Join is the main path: each wait is reported, and the key is stored before the request is sent.
func TestCore_Join(t *testing.T) {
	r := newRig(t)
	r.pass(5 * time.Second)
	if r.hub.cluster == nil || len(r.hub.waiting()) != 1 {
		t.Fatalf("cluster %v, requests %v", r.hub.cluster, r.hub.waiting())
	}
	name := r.hub.waiting()[0]
	r.wantWaits("has to approve the CertificateSigningRequest " + name + ", as with hawser accept cluster1")
	r.hub.approve(name)
	r.settle()
	if r.used == nil || r.as != Registered || !bytes.Equal(r.secret[keyCert], r.used.Cert) || r.secret[keyPendingName] != nil {
		t.Fatalf("as %s, uses %v, keeps %v", r.as, r.used, r.secret)
	}
	r.wantWaits("the hub has not accepted the cluster: run hawser accept cluster1")
	if r.notified != 0 || r.hub.renewals != 0 {
		t.Errorf("notified %d times, %d renewals before the acceptance", r.notified, r.hub.renewals)
	}
	r.hub.accept(true)
	r.pass(time.Second)
	r.wantWaits("")
	if r.notified != 1 || !r.hub.available() || r.hub.renewals != 1 || r.hub.cluster.Status.Version.Kubernetes != "v1.36.0" {
		t.Errorf("notified %d times, %d renewals, status %+v", r.notified, r.hub.renewals, r.hub.cluster.Status)
	}
	r.pass(10 * time.Minute)
	if r.hub.reports != 1 || r.hub.renewals < 8 || r.hub.renewals > 11 {
		t.Errorf("%d reports of nothing new, %d renewals in ten minutes", r.hub.reports, r.hub.renewals)
	}
}

// TestCore_RestartKeepsTheRequest: an agent that is killed while it waits makes no new request.
func TestCore_RestartKeepsTheRequest(t *testing.T) {
	r := newRig(t)
	r.pass(5 * time.Second)
	for range 5 {
		r.start()
		r.pass(5 * time.Second)
	}
	if len(r.hub.csrs) != 1 {
		t.Fatalf("%d requests after restarts", len(r.hub.csrs))
	}
	r.hub.approve(r.hub.waiting()[0])
	r.start()
	r.pass(5 * time.Second)
	if r.as != Registered || len(r.hub.csrs) != 1 {
		t.Errorf("as %s, %d requests", r.as, len(r.hub.csrs))
	}
}

// joined returns a rig of a cluster that is part of the fleet.
func joined(t testing.TB) *rig {
	r := newRig(t)
	r.hub.approving, r.hub.accepting = true, true
	r.pass(10 * time.Second)
	if r.wantWaits(""); r.as != Registered {
		t.Fatalf("as %s", r.as)
	}
	r.seen = nil
	return r
}

// TestCore_Renewal: the certificate is renewed after 75 to 80 % of its validity, over the hub connection,
// repeatedly.
func TestCore_Renewal(t *testing.T) {
	r := joined(t)
	r.hub.lifetime = time.Minute
	for range 30 {
		before, at := r.used, r.core.RenewAt()
		lifetime := before.NotAfter.Sub(r.core.obtained)
		if part := at.Sub(r.core.obtained); part < lifetime*75/100 || part > lifetime*80/100 {
			t.Fatalf("renewed after %v of %v", part, lifetime)
		}
		r.pass(at.Sub(r.now) + showFirst)
		if r.used == before {
			t.Fatalf("not renewed at %v: %v, %v", at, r.core.Trouble(), r.seen)
		}
		r.moves = nil
		r.pass(lifetime / 20)
		if len(r.moves) == 0 || !r.moves[0].Before(before.NotAfter.Add(-lifetime/10)) {
			t.Fatalf("connections move at %v from a certificate until %v", r.moves, before.NotAfter)
		}
	}
	if slices.ContainsFunc(r.seen, func(s string) bool { return strings.HasPrefix(s, "connect") || s == CreateCluster.String() }) {
		t.Errorf("the connection changed: %v", r.seen)
	}
}

// TestCore_RenewalOfALongLifetime: the renewal time of a very long validity does not overflow.
func TestCore_RenewalOfALongLifetime(t *testing.T) {
	for years := range 100 {
		r := newRig(t)
		r.hub.approving, r.hub.lifetime = true, time.Duration(years+1)*365*24*time.Hour
		r.pass(10 * time.Second)
		lifetime := r.used.NotAfter.Sub(r.core.obtained)
		if part := r.core.RenewAt().Sub(r.core.obtained); part.Hours() < 0.75*lifetime.Hours() || part.Hours() > 0.80*lifetime.Hours() {
			t.Fatalf("a certificate of %v is renewed after %v", lifetime, part)
		}
	}
}

// TestCore_Denied: another request follows after increasing waits.
func TestCore_Denied(t *testing.T) {
	r := newRig(t)
	for range 100 {
		r.pass(15 * time.Minute)
		for _, name := range r.hub.waiting() {
			r.hub.deny(name)
			r.settle()
			r.wantWaits("is Denied: not this one; the next request is made at")
		}
	}
	if n := len(r.hub.csrs); n < 20 || n > 40 { // in 25 hours, at last one per hour
		t.Errorf("%d requests in 25 hours", n)
	}
	r.core.Bootstrap("file2") // an operator provides a new file
	if r.pass(5 * time.Second); len(r.hub.waiting()) != 1 {
		t.Errorf("it waits for %v although there is a new token", r.core.WaitReason())
	}
}

// TestCore_WithdrawnAndGiven: the agent makes no request to a hub that does not accept the cluster, and
// continues when it accepts it again.
func TestCore_WithdrawnAndGiven(t *testing.T) {
	r := joined(t)
	r.hub.accept(false)
	r.seen = nil
	r.pass(50 * time.Minute) // beyond the renewal time
	r.wantWaits("the hub has not accepted the cluster")
	if len(r.seen) > 0 {
		t.Errorf("it requested %v", r.seen)
	}
	r.hub.accept(true)
	r.pass(2 * time.Second)
	if r.wantWaits(""); !slices.Contains(r.seen, "use") || r.notified != 2 {
		t.Errorf("saw %v, notified %d times", r.seen, r.notified)
	}
}

// TestCore_ConditionIsNotAcceptance: the hub's condition is late, or was written by another client, and shows
// the cluster as accepted. The spec decides.
func TestCore_ConditionIsNotAcceptance(t *testing.T) {
	r := joined(t)
	r.hub.cluster.Status.Conditions = append(r.hub.cluster.Status.Conditions, metav1.Condition{
		Type: clusterv1.ManagedClusterConditionHubAccepted, Status: metav1.ConditionTrue, Reason: "HubClusterAdminAccepted",
	})
	r.hub.accept(false)
	r.seen = nil
	reports, renewals := r.hub.reports, r.hub.renewals
	r.core.Learned(r.now, Facts{Healthy: true, Version: "v1.37.0"}) // the status has something to report
	r.pass(10 * time.Minute)
	r.wantWaits("the hub has not accepted the cluster")
	if len(r.seen) > 0 || r.hub.reports != reports || r.hub.renewals != renewals {
		t.Errorf("it requested %v: %d reports and %d renewals more", r.seen, r.hub.reports-reports, r.hub.renewals-renewals)
	}
}

// TestCore_ExpiredWhileAway: an expired certificate is kept until the broker refuses it, and then replaced with
// the bootstrap file.
func TestCore_ExpiredWhileAway(t *testing.T) {
	for _, restart := range []bool{true, false} {
		r := joined(t)
		r.down = [numKinds]bool{true, true, true}
		for k := range numKinds {
			r.disconnect(k, errors.New("cut"))
		}
		r.pass(2 * time.Hour)
		if restart {
			r.start()
			r.settle()
		}
		if r.as != Registered || r.used == nil {
			t.Fatalf("as %s, uses %v", r.as, r.used)
		}
		r.down = [numKinds]bool{}
		r.keepOut(Registered, true)
		old := r.used
		if r.settle(); r.as != Bootstrapping || r.used != old {
			t.Fatalf("as %s, uses %v", r.as, r.used)
		}
		r.keepOut(Registered, false)
		if r.pass(10 * time.Second); r.used == old {
			t.Error("it has no other certificate")
		}
		if r.wantWaits(""); r.as != Registered {
			t.Errorf("as %s", r.as)
		}
	}
}

// TestCore_PartOfTheFacts: facts that cannot be read for a moment, also right after a restart, are not removed
// from the hub.
func TestCore_PartOfTheFacts(t *testing.T) {
	r := joined(t)
	cpu := clusterv1.ResourceList{clusterv1.ResourceCPU: resource.MustParse("4")}
	whole := Facts{Healthy: true, Version: "v1.36.0", Capacity: cpu, Allocatable: cpu, Claims: []clusterv1.ManagedClusterClaim{{Name: "platform.open-cluster-management.io", Value: "metal"}}}
	r.core.Learned(r.now, whole)
	r.pass(2 * time.Minute)
	want := r.hub.cluster.Status.DeepCopy()
	if len(want.ClusterClaims) != 1 || len(want.Allocatable) != 1 {
		t.Fatalf("status %+v", want)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			r.start()
		}
		r.core.Learned(r.now, Facts{Healthy: true})
		r.pass(2 * time.Minute)
		if have := r.hub.cluster.Status; have.Version != want.Version || !equality.Semantic.DeepEqual(&have, want) {
			t.Errorf("restart %t: status %+v, want %+v", restart, have, want)
		}
	}
	r.core.Learned(r.now, whole)
	r.core.Learned(r.now, Facts{Healthy: true})
	r.hub.cluster.Status = clusterv1.ManagedClusterStatus{} // the ManagedCluster was created again
	r.hub.showCluster()
	r.pass(2 * time.Minute)
	if have := r.hub.cluster.Status; have.Version != want.Version || len(have.ClusterClaims) != 1 || len(have.Allocatable) != 1 {
		t.Errorf("facts that were read before are not reported: %+v", have)
	}
	whole.Claims = []clusterv1.ManagedClusterClaim{}
	r.core.Learned(r.now, whole)
	r.pass(2 * time.Minute)
	if have := r.hub.cluster.Status.ClusterClaims; len(have) > 0 {
		t.Errorf("claims %v, and the cluster has none any more", have)
	}
}

// TestCore_ReplacedCluster: the agent waits for another ManagedCluster of the same name, and reports to it.
func TestCore_ReplacedCluster(t *testing.T) {
	r := joined(t)
	r.hub.removeCluster()
	r.hub.cluster = &clusterv1.ManagedCluster{}
	r.hub.cluster.Name = cluster1
	r.hub.showCluster()
	r.pass(time.Minute)
	r.wantWaits("has not accepted")
	r.hub.accept(true)
	r.pass(2 * time.Second)
	if r.wantWaits(""); !r.hub.available() {
		t.Error("the status of the new ManagedCluster is not reported")
	}
}

// TestCore_SecretCannotBeWritten: no request is made whose key could be lost.
func TestCore_SecretCannotBeWritten(t *testing.T) {
	r := newRig(t)
	r.saveErr = errors.New("forbidden")
	r.pass(10 * time.Minute)
	r.wantWaits("the Secret for key and certificate cannot be written: forbidden")
	if len(r.hub.csrs) > 0 {
		t.Errorf("%d requests", len(r.hub.csrs))
	}
	r.saveErr, r.hub.approving = nil, true
	r.pass(time.Minute)
	if r.as != Registered {
		t.Errorf("as %s: %v", r.as, r.core.WaitReason())
	}
}

// TestCore_ManyRequestsWait: a cluster with many pending requests creates no more.
func TestCore_ManyRequestsWait(t *testing.T) {
	r := newRig(t)
	for i := range MaxPending {
		p := r.otherRequest(fmt.Sprintf("cluster1-x%d", i))
		if err := r.hub.createRequest(p); err != nil {
			t.Fatal(err)
		}
	}
	r.pass(10 * time.Minute)
	r.wantWaits("5 CertificateSigningRequests of this cluster wait on the hub")
	if len(r.hub.csrs) != MaxPending {
		t.Errorf("%d requests", len(r.hub.csrs))
	}
	r.hub.deny("cluster1-x0")
	r.pass(2 * time.Hour)
	if len(r.hub.waiting()) != MaxPending {
		t.Errorf("%v", r.hub.waiting())
	}
}

// TestCore_UnusableCertificates: an unusable certificate is not used, and another one is requested.
func TestCore_UnusableCertificates(t *testing.T) {
	for name, sign := range map[string]func(r *rig, request []byte) []byte{
		"of another key": func(r *rig, _ []byte) []byte {
			_, request, err := NewKey(r.core.subject())
			if err != nil {
				t.Fatal(err)
			}
			return r.hub.sign(request, time.Hour)
		},
		"of another cluster": func(r *rig, _ []byte) []byte {
			request, err := signRequest(r.core.state.Pending.Key, ocm.Subject{Cluster: "cluster2", Agent: "a"})
			if err != nil {
				t.Fatal(err)
			}
			return r.hub.sign(request, time.Hour)
		},
		"garbage": func(*rig, []byte) []byte { return []byte("no PEM") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.pass(5 * time.Second)
			csr := r.hub.csrs[r.hub.waiting()[0]]
			csr.Status.Certificate = sign(r, csr.Spec.Request)
			r.hub.showRequest(csr)
			r.settle()
			if r.used != nil || r.as != Bootstrapping {
				t.Fatalf("as %s, uses %v", r.as, r.used)
			}
			r.wantWaits("the next request is made at")
			r.hub.approving = true
			r.pass(time.Minute)
			if r.as != Registered {
				t.Errorf("as %s: %v", r.as, r.core.WaitReason())
			}
		})
	}
}

// otherRequest is a request of the same cluster that this agent did not make.
func (r *rig) otherRequest(name string) *certificatesv1.CertificateSigningRequest {
	r.t.Helper()
	_, request, err := NewKey(ocm.Subject{Cluster: cluster1, Agent: "other"})
	if err != nil {
		r.t.Fatal(err)
	}
	o := &certificatesv1.CertificateSigningRequest{}
	o.Name, o.Labels, o.Spec.Request = name, map[string]string{clusterv1.ClusterNameLabelKey: cluster1}, request
	return o
}
