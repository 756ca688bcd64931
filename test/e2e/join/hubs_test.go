package join

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/childproc"
)

// TestJoin_TwoHubs: a cluster joins two hubs, each with an agent of its own. An object in works of both hubs
// stays with the first when the second releases the cluster. The first hub is not affected.
func TestJoin_TwoHubs(t *testing.T) {
	w := newWorld(t, "hub", "hub2", "cluster1")
	s := w.newRequester()
	s.hawser("accept", "cluster1", "--context", "hub", "--wait")
	for _, name := range []string{"of-the-first", "of-both"} {
		s.apply(name)
		s.arrives(name)
	}
	own, shared, since := s.uid("of-the-first"), s.uid("of-both"), s.available()

	second := s.secondHub()
	hub2 := w.workClient("hub2")
	for _, name := range []string{"of-the-second", "of-both"} {
		s.applyOn(hub2, name)
	}
	s.arrives("of-the-second")
	s.eventuallyTrue("both own what both want", func() (bool, string) { return s.owners("of-both") == 2, fmt.Sprint(s.owners("of-both")) })

	second.hawser("reject", "cluster", "cluster1", "--context", "hub2")
	s.apply("meanwhile")
	s.arrives("meanwhile")
	s.eventuallyTrue("the agent sends the second hub a new request", func() (bool, string) { return second.request("hub2") != "", "" })
	second.hawser("accept", "cluster1", "--context", "hub2", "--csr", second.request("hub2"), "--wait")
	second.hawser("detach", "cluster1", "--context", "hub2")
	s.eventuallyTrue("what the second hub wanted alone is gone", func() (bool, string) {
		_, err := w.planes["cluster1"].kube.CoreV1().ConfigMaps("default").Get(s.Context(), "of-the-second", metav1.GetOptions{})
		return err != nil, fmt.Sprint(err)
	})
	if n := s.owners("of-both"); n != 1 {
		s.Errorf("what both wanted has %d owners after the second hub let the cluster go, want 1", n)
	}
	s.same("of-the-first", own)
	s.same("of-both", shared)
	s.apply("after")
	s.arrives("after")
	if now := s.available(); !now.Equal(&since) {
		s.Errorf("the condition Available of the cluster changed on the first hub at %v", now)
	}
}

// TestJoin_HubReplaced: a hub is lost with its keys. Another hub, which does not know the cluster, gets its
// address. The agent reports the error, and joins with a new token and the new authority. The owner of the
// cluster transfers the hub identity. Objects of the former hub's works are not touched.
func TestJoin_HubReplaced(t *testing.T) {
	w := newWorld(t, "hub", "hub2", "cluster1")
	s := w.newRequester()
	s.hawser("accept", "cluster1", "--context", "hub", "--wait")
	for _, name := range []string{"of-the-former", "of-both"} {
		s.apply(name)
		s.arrives(name)
	}
	own, shared, serial := s.uid("of-the-former"), s.uid("of-both"), s.serial()
	s.source()
	s.broker()

	w.addresses["hub2/hawser-broker"] = w.addresses["hub/hawser-broker"]
	second := s.hub2(s.at)
	s.wantWaits("certificate signed by unknown authority")
	s.joinAt("hub2", "second/hawser-access/ca.crt")
	s.agent() // a kubelet updates the files of a pod; here a restart does
	s.agent = s.start("cluster1", "hawser-agent")
	s.wantWaits(approval)
	second.hawser("accept", "cluster1", "--context", "hub2", "--wait")
	if s.serial() == serial {
		s.Error("the agent has its former certificate")
	}
	// The owner of the cluster decides which hub owns the works on it.
	s.wantWaits("hawser hub-identity transfer " + s.at + " " + s.at)
	s.hawser("hub-identity", "transfer", "--kubeconfig", w.planes["cluster1"].KubeconfigPath, s.at, s.at)
	hub2 := w.workClient("hub2")
	for _, name := range []string{"of-the-next", "of-both"} {
		s.applyOn(hub2, name)
		w.run(w.kubectl, "--context", "hub2", "-n", "cluster1", "wait", "manifestwork", name, "--for=condition=Applied", "--timeout=60s")
	}
	s.arrives("of-the-next")
	s.same("of-the-former", own)
	s.same("of-both", shared)
}

// owners returns the number of owners of a ConfigMap on the cluster.
func (s *stay) owners(name string) int {
	s.Helper()
	o, err := s.planes["cluster1"].kube.CoreV1().ConfigMaps("default").Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return len(o.OwnerReferences)
}

// hub2 runs a second hub with a broker at this address. The returned world has the directory of that hub's
// files.
func (s *stay) hub2(at string) *world {
	s.Helper()
	w := *s.world
	w.dir = filepath.Join(s.dir, "second")
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		s.Fatal(err)
	}
	w.hawser(append([]string{"install", "hub", "--context", "hub2", "--registration", "--address", at}, images...)...)
	w.run(w.kubectl, "--context", "hub2", "delete", "validatingwebhookconfiguration", "hawser-hub-source") // no pod serves the webhook
	w.start("hub2", "hawser-broker")
	w.start("hub2", "hawser-hub-source", "hawser-broker.hawser.svc:8090", at)
	return &w
}

// secondHub lets the cluster join a second hub, with a second agent in another namespace.
func (s *stay) secondHub() *world {
	s.Helper()
	at := s.address("hub2/hawser-broker") + ":8090"
	w := s.hub2(at)
	ca, err := os.ReadFile(filepath.Join(w.dir, "hawser-access", "ca.crt"))
	if err != nil {
		s.Fatal(err)
	}
	bootstrap := filepath.Join(w.dir, "config.yaml")
	token := w.token("hub2")
	text := fmt.Sprintf("url: %s\ncaData: %s\ntoken: %s\n", at, base64.StdEncoding.EncodeToString(ca), token)
	if err := os.WriteFile(bootstrap, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	w.run(w.kubectl, "--context", "cluster1", "create", "namespace", "hawser-hub2")
	p, err := childproc.Start(w.Context(), childproc.Spec{Name: "second agent", Path: filepath.Join(w.bin, "hawser-agent"), LogFile: filepath.Join(w.dir, "agent.log"), Args: []string{
		"--spoke-cluster-name=cluster1", "--spoke-kubeconfig=" + w.planes["cluster1"].KubeconfigPath, "--namespace=hawser-hub2", "--admin-listen=",
		"--grpc-bootstrap-config=" + bootstrap, "--hub-kubeconfig-secret=hawser-agent-hub", "--state-dir=" + filepath.Join(w.dir, "agent"), "--hub-identity=hub2",
	}})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := p.Stop(); err != nil {
			s.Error(err)
		}
		if s.Failed() {
			s.Logf("second agent:\n%s", p.LogTail())
		}
	})
	s.eventuallyTrue("the second hub has a request", func() (bool, string) {
		out := w.run(w.kubectl, "--context", "hub2", "get", "csr", "-o", "name")
		return strings.Contains(out, "cluster1-"), out
	})
	w.hawser("accept", "cluster1", "--context", "hub2", "--wait")
	return w
}
