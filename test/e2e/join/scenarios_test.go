package join

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
)

// TestJoin_Scenarios: events in the life cycle of a hub and a cluster, from the first request to the last. Each
// scenario begins in the state that the previous one left.
func TestJoin_Scenarios(t *testing.T) {
	s := requester(t)
	for _, c := range []struct {
		name string
		run  func(*stay)
	}{
		{"denied before it was accepted", (*stay).deniedFirst},
		{"the broker's store is lost", (*stay).replaceStore},
		{"the broker is away for longer than five periods", (*stay).brokerAway},
		{"the hub is restored without the requests", (*stay).hubRestored},
		{"the hub is another one", (*stay).hubAnother},
	} {
		if !t.Run(c.name, func(t *testing.T) { s.within(t, c.run) }) {
			return
		}
	}
}

// within runs a scenario as a subtest. Programs that it starts run until the whole test ends.
func (s *stay) within(t *testing.T, run func(*stay)) {
	t.Helper()
	w := *s.world
	w.T = t
	inner := *s
	inner.world = &w
	inner.whole = s.world
	run(&inner)
	s.broker, s.source, s.agent = inner.broker, inner.source, inner.agent
}

// deniedFirst checks that an agent reports its denial with the reason, and that one command accepts the cluster
// after that.
func (s *stay) deniedFirst() {
	s.Helper()
	s.hawser("reject", "cluster", "cluster1", "--context", "hub", "--reason", "unknown cluster")
	s.wantWaits("is Denied: hawser rejected this cluster: unknown cluster")
	s.hawser("accept", "cluster1", "--context", "hub", "--wait")
	s.apply("let-in")
	s.arrives("let-in")
}

// replaceStore: a broker without its store requests everything from the hub. Nothing is deleted, and nothing
// changes on the hub.
func (s *stay) replaceStore() {
	s.Helper()
	s.available()
	was, since := s.uid("let-in"), s.available()
	s.broker()
	if err := os.RemoveAll(filepath.Join(s.dir, "hub-hawser-broker", "data")); err != nil {
		s.Fatal(err)
	}
	s.broker = s.whole.start("hub", "hawser-broker")
	s.apply("store-lost")
	s.arrives("store-lost")
	s.same("let-in", was)
	if now := s.available(); !now.Equal(&since) {
		s.Errorf("the condition Available of the cluster changed at %v", now)
	}
}

// brokerAway checks a cluster while the broker is down. The hub shows an unknown availability without a taint,
// so that no Placement moves workloads. When the broker is back, the cluster is available again.
func (s *stay) brokerAway() {
	s.Helper()
	periods := func(seconds string) {
		s.run(s.kubectl, "--context", "hub", "patch", "managedcluster", "cluster1", "--type=merge", "-p", `{"spec":{"leaseDurationSeconds":`+seconds+`}}`)
	}
	s.available()
	periods("2")
	since := time.Now()
	s.eventuallyTrue("the agent renews its Lease in these periods", func() (bool, string) {
		text := s.run(s.kubectl, "--context", "hub", "-n", "cluster1", "get", "lease", "managed-cluster-lease", "-o", "jsonpath={.spec.renewTime}")
		at, err := time.Parse(time.RFC3339Nano, text)
		return err == nil && at.After(since.Add(time.Second)), text
	})
	s.available()
	s.broker()
	s.eventuallyTrue("Available is Unknown", func() (bool, string) {
		c, text := s.managedCluster()
		return meta.IsStatusConditionPresentAndEqual(c.Status.Conditions, clusterv1.ManagedClusterConditionAvailable, metav1.ConditionUnknown), text
	})
	c, _ := s.managedCluster()
	if is := meta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionAvailable); is.Reason != "BrokerUnreachable" || len(c.Spec.Taints) > 0 {
		s.Errorf("without a broker the cluster has the taints %+v, and Available is %+v", c.Spec.Taints, is)
	}
	s.broker = s.whole.start("hub", "hawser-broker")
	s.available()
	periods("60")
	s.apply("broker-back")
	s.arrives("broker-back")
}

// hubRestored checks a hub that has the cluster accepted under another uid, and has no requests. The agent
// continues with its certificate.
func (s *stay) hubRestored() {
	s.Helper()
	was, serial := s.uid("let-in"), s.serial()
	s.delete(`{"apiVersion":"cluster.open-cluster-management.io/v1","kind":"ManagedCluster","metadata":{"name":"cluster1"},"spec":{"hubAcceptsClient":true}}`)
	s.apply("restored")
	s.arrives("restored")
	s.available()
	s.same("let-in", was)
	if s.serial() != serial {
		s.Error("the agent has another certificate")
	}
}

// hubAnother checks a hub that has neither the cluster nor its requests. The agent reports that, and requests to
// join with the next token. The objects of the works on the cluster stay.
func (s *stay) hubAnother() {
	s.Helper()
	was, serial := s.uid("let-in"), s.serial()
	s.delete("")
	s.wantWaits("the hub has no ManagedCluster cluster1: if the cluster is to join again, give the agent a new bootstrap file")
	s.join()
	s.agent() // a kubelet renews the files of a pod, a test does not
	s.agent = s.whole.start("cluster1", "hawser-agent")
	s.wantWaits(approval)
	s.hawser("accept", "cluster1", "--context", "hub", "--wait")
	s.apply("another")
	s.arrives("another")
	s.same("let-in", was)
	if s.serial() == serial {
		s.Error("the agent has its former certificate")
	}
}

// delete deletes the cluster and its requests on the hub while no program watches. If recreated is not empty,
// it creates that object instead.
func (s *stay) delete(recreated string) {
	s.Helper()
	hub := []string{"--context", "hub"}
	s.source()
	s.run(s.kubectl, append(hub, "delete", "csr", "--all")...)
	s.run(s.kubectl, append(hub, "patch", "managedcluster", "cluster1", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)...)
	s.run(s.kubectl, append(hub, "delete", "managedcluster", "cluster1")...)
	if recreated != "" {
		file := filepath.Join(s.dir, "recreated.json")
		if err := os.WriteFile(file, []byte(recreated), 0o600); err != nil {
			s.Fatal(err)
		}
		s.run(s.kubectl, append(hub, "create", "-f", file)...)
	}
	s.source = s.whole.start("hub", "hawser-hub-source", "hawser-broker.hawser.svc:8090", s.at)
}

// managedCluster returns the ManagedCluster, and its JSON.
func (s *stay) managedCluster() (c clusterv1.ManagedCluster, text string) {
	s.Helper()
	text = s.run(s.kubectl, "--context", "hub", "get", "managedcluster", "cluster1", "-o", "json")
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		s.Fatal(err)
	}
	return c, text
}

// available waits until the hub shows the cluster as available, and returns the time of that change.
func (s *stay) available() (since metav1.Time) {
	s.Helper()
	s.eventuallyTrue("the cluster is available", func() (bool, string) {
		c, text := s.managedCluster()
		is := meta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionAvailable)
		if is == nil || is.Status != metav1.ConditionTrue {
			return false, text
		}
		since = is.LastTransitionTime
		return true, ""
	})
	return since
}

// uid returns the uid of a work's object on the cluster.
func (s *stay) uid(name string) types.UID {
	s.Helper()
	o, err := s.planes["cluster1"].kube.CoreV1().ConfigMaps("default").Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return o.UID
}

// same checks that the object of a work has the same uid, and is not being deleted.
func (s *stay) same(name string, was types.UID) {
	s.Helper()
	o, err := s.planes["cluster1"].kube.CoreV1().ConfigMaps("default").Get(s.Context(), name, metav1.GetOptions{})
	if err != nil || o.UID != was || o.DeletionTimestamp != nil {
		s.Errorf("%s was created again, or is being deleted: %v, %v", name, o.ObjectMeta, err)
	}
}

// TestJoin_QuarantinesSecondClusterOfAName: a cluster that joined long ago is denied. A second cluster with a
// bootstrap token requests its name. The agent, whose certificate expired, requests it too. hawser accept
// approves nothing. It prints both requests with their keys, and the commands that approve them. Each request
// is approved only by its name.
func TestJoin_QuarantinesSecondClusterOfAName(t *testing.T) {
	s := requester(t)
	s.hawser("accept", "cluster1", "--context", "hub", "--wait")
	s.apply("before")
	s.arrives("before")
	s.hawser("reject", "cluster", "cluster1", "--context", "hub", "--reason", "under repair")
	s.wantWaits(approval)
	key := s.quarantined("cluster1-second")
	out := s.hawser("accept", "cluster1", "--context", "hub")
	if !strings.Contains(out, "key sha256:"+key+" (not known to the hub)\n") || !strings.Contains(out, "\n    hawser accept cluster1 --csr cluster1-second --context hub\n") {
		t.Errorf("the output does not show the requests to choose from:\n%s", out)
	}
	s.wantWaits(approval)
	lines := commands(out)
	if len(lines) != 2 {
		t.Fatalf("of two requests hawser accept prints the lines %q", lines)
	}
	s.runs(lines[slices.IndexFunc(lines, func(l string) bool { return !strings.Contains(l, "cluster1-second") })])
	s.apply("after")
	s.arrives("after")
	s.hawser("accept", "cluster1", "--context", "hub", "--wait")
	csr, err := s.planes["hub"].kube.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "cluster1-second", metav1.GetOptions{})
	if err != nil || len(csr.Status.Conditions) > 0 || len(csr.Status.Certificate) > 0 {
		t.Errorf("the request of the second cluster: %v, %+v, certificate of %d bytes", err, csr.Status.Conditions, len(csr.Status.Certificate))
	}
}

// quarantined creates a request with hub-source's account, as hub-source does for each holder of a bootstrap
// token.
func (s *stay) quarantined(name string) (key string) {
	s.Helper()
	group := "system:open-cluster-management:cluster1"
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: group + ":second", Organization: []string{group}}}, k)
	if err != nil {
		s.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		s.Fatal(err)
	}
	file := filepath.Join(s.dir, name+".json")
	csr := &certificatesv1.CertificateSigningRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{clusterv1.ClusterNameLabelKey: "cluster1"},
			Annotations: map[string]string{ocm.RequesterAnnotation: "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"},
		},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: ocm.Signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	text, err := json.Marshal(csr)
	if err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		s.Fatal(err)
	}
	s.run(s.kubectl, "--context", "hub", "create", "-f", file, "--as", ocm.Registrar, "--validate=false")
	return fmt.Sprintf("%x", sha256.Sum256(public))
}
