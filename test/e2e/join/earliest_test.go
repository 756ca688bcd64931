package join

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// soon is the longest time in which a revoked certificate may still be accepted.
const soon = time.Second

// thief has a copy of an agent's earlier certificate.
type thief struct {
	*stay
	transport.Dialer
}

// steal copies the certificate and the key in the agent's Secret.
func (s *stay) steal() *thief {
	s.Helper()
	o, err := s.planes["cluster1"].kube.CoreV1().Secrets("hawser").Get(s.Context(), "hawser-agent-hub", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	dir := s.TempDir()
	files := identity.Files{CA: s.file("ca.crt"), Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	if err := errors.Join(os.WriteFile(files.Cert, o.Data["tls.crt"], 0o600), os.WriteFile(files.Key, o.Data["tls.key"], 0o600)); err != nil {
		s.Fatal(err)
	}
	creds, err := files.Client("", func(err error) { s.Error(err) })
	if err != nil {
		s.Fatal(err)
	}
	d, err := transportgrpc.NewDialer(transportgrpc.Options{Target: s.at, Credentials: creds, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.Fatal(err)
	}
	return &thief{s, d}
}

// subscribes subscribes to a data type of the cluster, until ctx ends. It returns the types of the received
// events, and the error. up is closed when the broker has accepted the subscription.
func (h *thief) subscribes(ctx context.Context, d codec.DataType, up chan<- struct{}) (came []string, err error) {
	conn, err := h.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // it may have ended already
	err = conn.Subscribe(ctx, transport.Subscription{Filter: transport.Filter{Cluster: "cluster1", DataType: d}}, func(transport.Accepted) {
		if up != nil {
			close(up)
		}
	}, func(_ context.Context, e codec.Event) error {
		if e.Type() != codec.TypeHeartbeat {
			came = append(came, e.Type())
		}
		return nil
	})
	return came, err
}

// stays opens a subscription, and returns a channel that gets its error.
func (h *thief) stays(d codec.DataType) (ended <-chan error) {
	h.Helper()
	up, over := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := h.subscribes(h.Context(), d, up)
		over <- err
	}()
	select {
	case <-up:
	case err := <-over:
		h.Fatal(err)
	case <-time.After(30 * time.Second):
		h.Fatal("the broker does not take a certificate that is good")
	}
	return over
}

// ends checks that the connection with a revoked certificate is closed.
func (h *thief) ends(open <-chan error) {
	h.Helper()
	began := time.Now()
	select {
	case err := <-open:
		h.Logf("the connection ended after %v: %v", time.Since(began), err)
	case <-time.After(soon):
		h.Errorf("the connection of a former certificate is open after %v", soon)
	}
}

// out checks that the broker rejects the certificate for works and for all data types of a renewal. The error
// gives the next step.
func (h *thief) out() {
	h.Helper()
	until := time.Now().Add(soon)
	for _, d := range []codec.DataType{codec.ManifestBundles, codec.SigningRequests, codec.ManagedClusters} {
		for {
			ctx, cancel := context.WithTimeout(h.Context(), 3*time.Second)
			came, err := h.subscribes(ctx, d, nil)
			cancel()
			if d == codec.ManifestBundles && len(came) > 0 {
				h.Errorf("a former certificate is sent %v", came)
			}
			if transport.CodeOf(err) == transport.CodeUnauthenticated && strings.Contains(fmt.Sprint(err), "have the cluster join again") {
				break
			}
			if time.Now().After(until) {
				h.Errorf("with a former certificate %s shows %v, and ends with %v", d.Resource, came, err)
				break
			}
		}
	}
}

// acceptRequest approves the request by which the agent joins again. The operator must name the request.
func (s *stay) acceptRequest() {
	s.Helper()
	s.wantWaits(approval)
	s.hawser("accept", "cluster1", "--context", "hub", "--csr", s.request("hub"))
}

// request returns the name of the undecided request on a hub, "" if there is none.
func (w *world) request(hub string) (name string) {
	w.Helper()
	out := w.run(w.kubectl, "--context", hub, "get", "csr", "-l", "open-cluster-management.io/cluster-name=cluster1",
		"-o", `jsonpath={range .items[*]}{.metadata.name} {.status.conditions}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 1 {
			name = f[0]
		}
	}
	return name
}

// TestEarliest_Detach: a cluster leaves, and another one joins under its name. The former certificate is
// rejected, receives nothing of the new cluster, and is not renewed.
func TestEarliest_Detach(t *testing.T) {
	s := requester(t)
	s.hawser("accept", "cluster1", "--context", "hub")
	s.apply("of-the-first")
	s.arrives("of-the-first")
	former := s.steal()
	open := former.stays(codec.SigningRequests)
	s.hawser("detach", "cluster1", "--context", "hub")
	former.ends(open)
	former.out()

	s.join()
	s.agent() // a kubelet updates the files of a pod; here a restart does
	s.agent = s.start("cluster1", "hawser-agent")
	s.acceptRequest()
	s.apply("of-the-second")
	s.arrives("of-the-second")
	former.out()
}

// TestEarliest rejects a stolen certificate after a rotation.
//
// Scenario:
//
//	t1: a certificate is stolen.
//	t2: the cluster rotates its certificate, twice in a row, or is denied and accepted again.
//	t3: the thief connects.
//
// Result: the former certificate is rejected, also by a broker without its store and with a hub that lost its
// data. Works arrive all the time.
func TestEarliest(t *testing.T) {
	s := requester(t)
	s.hawser("accept", "cluster1", "--context", "hub", "--wait")
	s.apply("begin")
	s.arrives("begin")
	former, serial := s.steal(), s.serial()
	open := former.stays(codec.SigningRequests)

	rotated := make(chan time.Duration, 1)
	began := time.Now()
	go func() {
		s.hawser("rotate", "cluster", "cluster1", "--context", "hub", "--wait")
		rotated <- time.Since(began)
	}()
	longest, n := time.Duration(0), 0
	for over := false; !over; n++ {
		select {
		case took := <-rotated:
			t.Logf("the rotation took %v", took)
			former.ends(open)
			over = true
		default:
		}
		name, at := fmt.Sprintf("rotate-%d", n), time.Now()
		s.apply(name)
		s.arrives(name)
		longest = max(longest, time.Since(at))
	}
	if t.Logf("%d works arrived meanwhile, each within %v", n, longest); longest > 15*time.Second {
		t.Errorf("a work took %v to arrive", longest)
	}
	former.out()
	if s.serial() == serial {
		t.Error("the agent has its former certificate")
	}
	serial = s.serial() // most likely issued in the present second
	s.hawser("rotate", "cluster", "cluster1", "--context", "hub", "--wait")
	if s.serial() == serial {
		t.Error("the agent has its former certificate, which was new when the second rotation began")
	}

	s.broker()
	if err := os.RemoveAll(filepath.Join(s.dir, "hub-hawser-broker", "data")); err != nil {
		t.Fatal(err)
	}
	s.broker = s.start("hub", "hawser-broker")
	s.apply("store-lost")
	s.arrives("store-lost")
	former.out()

	s.source()
	s.run(s.kubectl, "--context", "hub", "-n", "open-cluster-management-hub", "delete", "configmap", "hawser-earliest-issue")
	s.source = s.start("hub", "hawser-hub-source", "hawser-broker.hawser.svc:8090", s.at)
	s.apply("hub-lost")
	s.arrives("hub-lost")
	former.out()

	second, serial := s.steal(), s.serial()
	open = second.stays(codec.SigningRequests)
	s.hawser("reject", "cluster", "cluster1", "--context", "hub")
	second.ends(open)
	second.out()
	s.acceptRequest()
	s.apply("let-in")
	s.arrives("let-in")
	second.out()
	if s.serial() == serial {
		t.Error("the agent has the certificate that was denied")
	}
	was := s.certificate()
	s.run(s.kubectl, "--context", "hub", "patch", "managedcluster", "cluster1", "--type=merge", "-p", `{"spec":{"hubAcceptsClient":false}}`)
	s.wantWaits("the hub has not accepted the cluster")
	s.run(s.kubectl, "--context", "hub", "patch", "managedcluster", "cluster1", "--type=merge", "-p", `{"spec":{"hubAcceptsClient":true}}`)
	s.apply("by-kubectl")
	s.arrives("by-kubectl")
	if !s.certificate().Equal(was) {
		t.Error("what kubectl takes back and gives ends the certificate")
	}
}
