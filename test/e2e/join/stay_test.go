package join

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1 "open-cluster-management.io/api/work/v1"
)

// lifetime is the validity of the certificates in this test.
const lifetime = time.Minute

// TestJoinedCluster_SurvivesOutages: with certificates of a minute, a cluster stays in the fleet under a load
// of works. It comes back after its certificate has expired. It is denied and accepted again.
func TestJoinedCluster_SurvivesOutages(t *testing.T) {
	s := requester(t, "  signer:\n", "  signer:\n    duration: "+lifetime.String()+"\n")
	s.hawser("accept", "cluster1", "--context", "hub")
	s.apply("begin")
	s.arrives("begin")

	s.renewedUnderLoad()
	s.expiredWhileAway()
	s.withdrawnAndGiven()
}

// hawser runs hawser as an operator.
func (w *world) hawser(args ...string) string {
	w.Helper()
	return w.run(filepath.Join(w.bin, "hawser"), args...)
}

// token creates a bootstrap token of a hub, and drops the messages on standard error.
func (w *world) token(hub string) string {
	w.Helper()
	return strings.TrimSpace(w.run("bash", "-c", `"$0" token create --context "$1" 2>/dev/null`, filepath.Join(w.bin, "hawser"), hub))
}

// stay is a cluster that has joined or requests to join, with its hub.
type stay struct {
	*world
	hub                   workclient.Interface
	at                    string // the broker's address
	broker, source, agent func() // stop the programs
	whole                 *world // starts programs that run longer than a subtest
}

// requester returns a cluster whose agent waits for the approval of its first request. replace are pairs of
// texts in the files of hub-source.
func requester(t *testing.T, replace ...string) *stay {
	t.Helper()
	return newWorld(t, "hub", "cluster1").newRequester(replace...)
}

// newRequester is requester in a world with the control planes hub and cluster1.
func (w *world) newRequester(replace ...string) *stay {
	w.Helper()
	s := &stay{world: w, whole: w, hub: w.workClient("hub"), at: w.address("hub/hawser-broker") + ":8090"}
	s.hawser(append([]string{"install", "hub", "--context", "hub", "--registration", "--confine", "--address", s.at}, images...)...)
	s.run(s.kubectl, "--context", "hub", "delete", "validatingwebhookconfiguration", "hawser-hub-source") // no pod serves the webhook
	s.broker = s.start("hub", "hawser-broker")
	s.source = s.start("hub", "hawser-hub-source", append([]string{"hawser-broker.hawser.svc:8090", s.at}, replace...)...)
	s.join()
	s.agent = s.start("cluster1", "hawser-agent")
	s.wantWaits(approval)
	return s
}

// approval is the state of an agent whose certificate request is undecided.
const approval = "the hub has to approve the CertificateSigningRequest cluster1-"

// images are the flags for the location of the images.
var images = []string{"--image-registry", "registry.example.com/hawser", "--image-version", "dev"}

// join gives the cluster a new bootstrap token.
func (s *stay) join() { s.joinAt("hub", "hawser-access/ca.crt") }

// joinAt gives the cluster a new token of this hub. ca is the file with the CA of the broker's certificate.
func (s *stay) joinAt(hub, ca string) {
	s.Helper()
	file := filepath.Join(s.dir, "token")
	if err := os.WriteFile(file, []byte(s.token(hub)), 0o600); err != nil {
		s.Fatal(err)
	}
	s.hawser(append([]string{"join", "cluster1", "--context", "cluster1", "--token-file", file, "--broker", s.at, "--broker-ca", ca}, images...)...)
}

func (w *world) workClient(where string) workclient.Interface {
	w.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", w.planes[where].KubeconfigPath)
	if err != nil {
		w.Fatal(err)
	}
	return workclient.NewForConfigOrDie(cfg)
}

// renewedUnderLoad applies works in a loop while certificates are renewed. The hub gets a status of each. A work
// must arrive before the next renewal, which would hide a lost event.
func (s *stay) renewedUnderLoad() {
	s.Helper()
	since := s.available()
	serials := map[string]bool{}
	n, longest := 0, time.Duration(0)
	for end := time.Now().Add(2 * lifetime); time.Now().Before(end); n++ {
		serials[s.serial()] = true
		name := fmt.Sprintf("load-%d", n)
		began := time.Now()
		s.apply(name)
		s.arrives(name)
		longest = max(longest, time.Since(began))
	}
	if longest > lifetime/2 {
		s.Errorf("a work took %v to arrive, at most %v is allowed", longest, lifetime/2)
	}
	s.eventuallyTrue("the hub has the status of every work", func() (bool, string) {
		all, err := s.hub.WorkV1().ManifestWorks("cluster1").List(s.Context(), metav1.ListOptions{})
		if err != nil {
			s.Fatal(err)
		}
		for _, w := range all.Items {
			if !meta.IsStatusConditionTrue(w.Status.Conditions, workv1.WorkApplied) {
				return false, w.Name
			}
		}
		return len(all.Items) > n, fmt.Sprint(len(all.Items))
	})
	if now := s.available(); !now.Equal(&since) {
		s.Errorf("the condition Available of the cluster changed at %v", now)
	}
	if len(serials) < 3 {
		s.Errorf("%d certificates in %v", len(serials), 2*lifetime)
	}
	s.Logf("%d works arrived under %d certificates, each within %v", n, len(serials), longest)
}

// expiredWhileAway: an agent whose certificate expired requests a new one, and an operator approves it.
func (s *stay) expiredWhileAway() {
	s.Helper()
	s.agent()
	s.apply("while-away")
	end := s.ends()
	s.eventuallyTrue("the certificate has ended", func() (bool, string) { return time.Now().After(end), time.Until(end).String() })
	s.agent = s.start("cluster1", "hawser-agent")
	s.wantWaits(approval)
	s.acceptNamed()
	s.arrives("while-away")
}

// acceptNamed approves the request of the agent by its name, with the command that hawser accept prints. It
// first compares the key in that output with the key that the agent reports.
func (s *stay) acceptNamed() {
	s.Helper()
	out := s.hawser("accept", "cluster1", "--context", "hub")
	lines := commands(out)
	if len(lines) != 1 {
		s.Fatalf("hawser accept of a cluster that had an agent prints the commands %q:\n%s", lines, out)
	}
	key := regexp.MustCompile("sha256:[0-9a-f]{64}").FindString(out)
	s.wantWaits("its key is " + key)
	s.runs(lines[0])
}

// withdrawnAndGiven withdraws the acceptance. No work arrives, also after the certificate has expired, until the
// cluster is accepted again.
func (s *stay) withdrawnAndGiven() {
	s.Helper()
	was, end := s.uid("begin"), s.ends()
	s.hawser("reject", "cluster", "cluster1", "--context", "hub")
	s.wantWaits("not registered")
	s.apply("not-accepted")
	s.eventuallyTrue("the certificate has ended", func() (bool, string) { return time.Now().After(end), time.Until(end).String() })
	s.wantWaits("not registered")
	if _, err := s.planes["cluster1"].kube.CoreV1().ConfigMaps("default").Get(s.Context(), "not-accepted", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		s.Errorf("a work of a cluster that is not accepted is there: %v", err)
	}
	s.same("begin", was)
	s.wantWaits(approval)
	s.acceptRequest()
	s.arrives("not-accepted")
	s.same("begin", was)
}

// certificate returns the certificate in the agent's Secret.
func (s *stay) certificate() *x509.Certificate {
	s.Helper()
	o, err := s.planes["cluster1"].kube.CoreV1().Secrets("hawser").Get(s.Context(), "hawser-agent-hub", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	block, _ := pem.Decode(o.Data["tls.crt"])
	if block == nil {
		s.Fatal("the Secret has no certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func (s *stay) serial() string  { return s.certificate().SerialNumber.String() }
func (s *stay) ends() time.Time { return s.certificate().NotAfter }

// apply creates a work on the hub, with one ConfigMap of the same name.
func (s *stay) apply(name string) {
	s.Helper()
	s.applyOn(s.hub, name)
}

// applyOn is apply on any hub.
func (s *stay) applyOn(hub workclient.Interface, name string) {
	s.Helper()
	s.applyIn(hub, "cluster1", name)
}

// applyIn is apply in any namespace. It waits for the namespace: a cluster gets its namespace a moment after the
// acceptance.
func (s *stay) applyIn(hub workclient.Interface, namespace, name string) {
	s.Helper()
	o := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	s.eventuallyTrue("the hub takes "+name, func() (bool, string) {
		_, err := hub.WorkV1().ManifestWorks(namespace).Create(s.Context(), &workv1.ManifestWork{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{Manifests: []workv1.Manifest{{RawExtension: runtime.RawExtension{Object: o}}}}},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			s.Fatal(err)
		}
		return err == nil, fmt.Sprint(err)
	})
}

// arrives waits until the object of a work is on the cluster.
func (s *stay) arrives(name string) {
	s.Helper()
	s.eventuallyTrue(name+" is on the cluster", func() (bool, string) {
		_, err := s.planes["cluster1"].kube.CoreV1().ConfigMaps("default").Get(s.Context(), name, metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	})
}

// wantWaits waits until /readyz of the agent contains a text.
func (s *stay) wantWaits(text string) {
	s.Helper()
	s.eventuallyTrue("the agent waits: "+text, func() (bool, string) {
		r, err := http.NewRequestWithContext(s.Context(), http.MethodGet, "http://"+s.address("cluster1/hawser-agent")+":8081/readyz?verbose", nil)
		if err != nil {
			s.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return false, err.Error()
		}
		var body bytes.Buffer
		_, err = body.ReadFrom(answer.Body)
		if closed := answer.Body.Close(); err != nil || closed != nil {
			return false, fmt.Sprint(err, closed)
		}
		return bytes.Contains(body.Bytes(), []byte(text)), body.String()
	})
}

// eventuallyTrue waits up to two minutes for a condition; machines are slow.
func (s *stay) eventuallyTrue(what string, is func() (bool, string)) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 2*time.Minute)
	defer cancel()
	for {
		ok, seen := is()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			s.Fatalf("not within two minutes: %s; seen last: %s", what, seen)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
