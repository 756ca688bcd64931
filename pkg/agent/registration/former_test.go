package registration

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// The Secrets that the agent of commit 0647681f saved, as the API server returns them. The first request is
// pending, the certificate is valid, or the certificate is being renewed. TestFormer_Write of that commit wrote
// them. Their keys were made for these files and give access to no system.
const (
	formerPending  = "testdata/former/pending.json"
	formerJoined   = "testdata/former/joined.json"
	formerRenewing = "testdata/former/renewing.json"
)

// formerSecret returns a Secret from a file, on a fake cluster.
func formerSecret(t *testing.T, file string) *Secret {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o := &corev1.Secret{}
	if err := json.Unmarshal(b, o); err != nil {
		t.Fatal(err)
	}
	return &Secret{Client: fake.NewClientset(o).CoreV1().Secrets("hawser"), Name: "hawser-agent-hub"}
}

// loadFormer returns the data and the state in the Secret of a file.
func loadFormer(t *testing.T, file string) (map[string][]byte, SavedState) {
	t.Helper()
	data, err := formerSecret(t, file).Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k, why := ReadSavedState(data, cluster1, "hub1")
	if why != nil {
		t.Fatalf("%s: %v", file, why)
	}
	return data, k
}

// TestFormer_ReadsSavedState checks that the Secret of a former agent is read by value. It contains its
// identity, its certificate, and the request that the hub has to answer.
func TestFormer_ReadsSavedState(t *testing.T) {
	for file, want := range map[string]struct {
		bootstrap  string
		credential bool
		pending    Pending
	}{
		formerPending:  {"", false, Pending{Name: "cluster1-n0002", As: Bootstrapping, Bootstrap: "file1"}},
		formerJoined:   {"file1", true, Pending{}},
		formerRenewing: {"file1", true, Pending{Name: "cluster1-n0003", As: Registered, Bootstrap: "file1"}},
	} {
		data, k := loadFormer(t, file)
		if k.Cluster != cluster1 || k.Agent != "n0001" || k.Hub != "hub1" || k.Bootstrap != want.bootstrap || string(k.Config) != "url: broker:8090\n" {
			t.Errorf("%s: %+v", file, k)
		}
		if c := k.Credential; (c != nil) != want.credential || c != nil && !bytes.Equal(c.Cert, data[keyCert]) {
			t.Errorf("%s: credential %v", file, c)
		}
		p := k.Pending
		if p == nil {
			p = &Pending{}
		}
		if p.Name != want.pending.Name || p.As != want.pending.As || p.Bootstrap != want.pending.Bootstrap || (len(p.Request) > 0) != (p.Name != "") {
			t.Errorf("%s: pending %+v", file, p)
		}
		if HubOf(data) != "hub1" {
			t.Errorf("%s: it is of hub %q", file, HubOf(data))
		}
		if _, why := ReadSavedState(data, cluster1, "hub2"); want.credential && why == nil {
			t.Errorf("%s: it is taken for the Secret of another hub", file)
		}
	}
}

// TestFormer_RequestIsAnswered checks that after an upgrade the hub answers the request of a former agent. The
// agent makes no other request, and continues with the kept key.
func TestFormer_RequestIsAnswered(t *testing.T) {
	data, k := loadFormer(t, formerPending)
	r := newRig(t)
	r.hub.cluster = &clusterv1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{Name: cluster1}}
	r.hub.showCluster()
	r.hub.accept(true)
	err := r.hub.createRequest(&certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: k.Pending.Name, Labels: map[string]string{clusterv1.ClusterNameLabelKey: cluster1}},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: k.Pending.Request},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.secret = data
	r.start()
	r.pass(5 * time.Second)
	r.wantWaits("has to approve")
	r.hub.approve(k.Pending.Name)
	r.pass(5 * time.Second)
	if r.wantWaits(""); r.as != Registered || len(r.hub.csrs) != 1 || !bytes.Equal(r.secret[keyKey], k.Pending.Key) || r.secret[keyPendingName] != nil {
		t.Errorf("as %s, %d requests, pending %q", r.as, len(r.hub.csrs), r.secret[keyPendingName])
	}
}

// TestFormer_SecretIsWrittenOver checks that the Secret of a former agent is updated, and keeps its label.
func TestFormer_SecretIsWrittenOver(t *testing.T) {
	s := formerSecret(t, formerJoined)
	data, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k, why := ReadSavedState(data, cluster1, "hub1")
	if why != nil {
		t.Fatal(why)
	}
	if again := k.Data(); !sameData(again, data) {
		t.Errorf("nothing has changed, and %d keys became %d", len(data), len(again))
	}
	k.Bootstrap = "file2"
	if err := s.Save(t.Context(), k.Data()); err != nil {
		t.Fatal(err)
	}
	o, err := s.Client.Get(t.Context(), s.Name, metav1.GetOptions{})
	if err != nil || o.UID != "uid-of-secret" || o.Labels[secretLabel] != "true" || string(o.Data[keyBootstrap]) != "file2" || len(o.Data[keyCert]) == 0 {
		t.Errorf("%+v, %v", o, err)
	}
}
