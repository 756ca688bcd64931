package manifestwork

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// doorTo starts a relay to addr, and returns its address. The broker's certificate is valid for that address
// too.
func doorTo(t *testing.T, addr string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	stop, cut := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cut()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		conns.Wait()
	})
	conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { forward(stop, in, addr) })
		}
	})
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return "localhost:" + port
}

// forward copies data in both directions until one side ends.
func forward(ctx context.Context, in net.Conn, addr string) {
	out, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		_ = in.Close()
		return
	}
	end := sync.OnceFunc(func() { _, _ = in.Close(), out.Close() })
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			defer end()
			_, _ = io.Copy(way[0], way[1])
		})
	}
	both.Wait()
}

// agentAt returns additional arguments for the agent of name, with a broker at addr.
func agentAt(t *testing.T, name, addr string) []string {
	t.Helper()
	keys := shared.PKI()
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf("url: %s\ncaFile: %s\nclientCertFile: %s\nclientKeyFile: %s\n", addr, keys.CACert(), keys.Cert(pki.Agent, name), keys.Key(pki.Agent, name))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--workload-source-config=" + file}
}

// hawser runs the program hawser.
func hawser(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := childproc.Run(t.Context(), filepath.Join(shared.Root, "bin", "hawser"), args...)
	return string(out), err
}

// move runs hawser hub-identity transfer as the owner of the cluster.
func move(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return hawser(t, append([]string{"hub-identity", "transfer", "--kubeconfig", shared.Clusters[cluster].KubeconfigPath, "--namespace", "hawser"}, args...)...)
}

// TestIdentity_StaysWhenTheBrokerHasAnotherAddress: an agent without a configured identity keeps its identity
// when the same broker gets another address. No object changes, and a deleted work is removed.
func TestIdentity_StaysWhenTheBrokerHasAnotherAddress(t *testing.T) {
	t.Parallel()
	const name = "identity-moved"
	f := shared
	ns := f.NamespaceOn(t, cluster)
	f.JoinAs(t, name)
	first, second := doorTo(t, f.BrokerAddr()), doorTo(t, f.BrokerAddr())
	stop := f.RunAgent(t, cluster, name, append(agentAt(t, name, first), "--hub-identity=")...)
	w := f.Deliver(t, harness.NewWork(t, name, "identity", harness.ConfigMapYAML(ns, "one", "x")))
	rec := recordOf(first, w.Name)
	if err := ownedBy(t.Context(), ns, "one", rec); err != nil {
		t.Fatal(err)
	}
	uid := configMap(t, ns, "one").UID
	stop()
	f.RunAgent(t, cluster, name, append(agentAt(t, name, second), "--hub-identity=", "--state-dir=")...)
	more := f.Deliver(t, harness.NewWork(t, name, "identity-more", harness.ConfigMapYAML(ns, "two", "x")))
	if err := errors.Join(ownedBy(t.Context(), ns, "one", rec), ownedBy(t.Context(), ns, "two", recordOf(first, more.Name)), sameObject(t.Context(), ns, "one", uid)); err != nil {
		t.Error(err)
	}
	if out, err := move(t); err != nil || !strings.Contains(out, second) {
		t.Errorf("the new address is not written down: %v\n%s", err, out)
	}
	f.DeleteWork(t, name, w.Name)
	f.NoConfigMap(t, cluster, ns, "one")
	recordGone(t, rec)
}

// TestIdentity_IsNotForAnotherBroker: another broker may not use an existing hub identity, and is shown, until
// the owner of the cluster transfers the identity.
func TestIdentity_IsNotForAnotherBroker(t *testing.T) {
	t.Parallel()
	const name = "identity-refused"
	f := shared
	ns := f.NamespaceOn(t, cluster)
	f.JoinAs(t, name)
	stop := f.RunAgent(t, cluster, name, "--hub-identity="+name)
	w := f.Deliver(t, harness.NewWork(t, name, "identity", harness.ConfigMapYAML(ns, "one", "x")))
	rec := recordOf(name, w.Name)
	uid := configMap(t, ns, "one").UID
	stop()

	other := secondBroker(t)
	admin := testkit.FreeAddr(t)
	f.RunAgent(t, cluster, name, append(agentAt(t, name, other), "--hub-identity="+name, "--admin-listen="+admin, "--appliedmanifestwork-eviction-grace-period=1s")...)
	harness.Eventually(t, func(ctx context.Context) error {
		out, err := answer(ctx, admin, "/readyz")
		if err == nil && !strings.Contains(out, "belongs to broker "+f.BrokerAddr()) {
			err = errors.New("/readyz reports\n" + out)
		}
		return err
	})
	if out, err := answer(t.Context(), admin, "/metrics"); err != nil || !strings.Contains(out, "hawser_agent_identity_rejected 1") {
		t.Errorf("the metric: %v", err)
	}
	out, err := move(t)
	if err != nil || !listedAs(out, "rejected", name, other) || !listedAs(out, "claimed", name, f.BrokerAddr()) {
		t.Errorf("it is not listed: %v\n%s", err, out)
	}
	harness.Consistently(t, func(ctx context.Context) error {
		return errors.Join(ownedBy(ctx, ns, "one", rec), sameObject(ctx, ns, "one", uid))
	})

	if out, err := move(t, name, name); err != nil || !strings.Contains(out, other) {
		t.Fatalf("%v\n%s", err, out)
	}
	harness.Eventually(t, func(ctx context.Context) error {
		out, err := answer(ctx, admin, "/metrics")
		if err == nil && !strings.Contains(out, "hawser_agent_in_sync 1") {
			err = errors.New("it is not in sync with the second broker")
		}
		return err
	})
	if err := errors.Join(ownedBy(t.Context(), ns, "one", rec), sameObject(t.Context(), ns, "one", uid)); err != nil {
		t.Error(err)
	}
	if out, err := move(t, name, name); err == nil || !strings.Contains(err.Error()+out, "nothing to move") {
		t.Errorf("a second time: %v\n%s", err, out)
	}
}

// TestIdentity_MoveRepairsAFormerOne: objects of a former hub identity are repaired. They go to the present
// identity, and are deleted with their work.
func TestIdentity_MoveRepairsAFormerOne(t *testing.T) {
	t.Parallel()
	const name = "identity-former"
	f := shared
	ns := f.NamespaceOn(t, cluster)
	f.JoinAs(t, name)
	stop := f.RunAgent(t, cluster, name, "--hub-identity="+name+"-old")
	w := f.Deliver(t, harness.NewWork(t, name, "identity", harness.ConfigMapYAML(ns, "one", "x")))
	stop()
	uid := configMap(t, ns, "one").UID
	// Without the claim the agent behaves as one of an earlier version: both identities become owners.
	forget(t, name+"-old")
	stop = f.RunAgent(t, cluster, name, "--hub-identity="+name+"-new", "--state-dir=")
	harness.Eventually(t, func(ctx context.Context) error {
		return ownedBy(ctx, ns, "one", recordOf(name+"-old", w.Name), recordOf(name+"-new", w.Name))
	})
	defer stop()
	if out, err := move(t); err != nil || !strings.Contains(out, "not claimed") || !strings.Contains(out, "1 with ") {
		t.Errorf("it is not listed: %v\n%s", err, out)
	}
	if out, err := move(t, name+"-old", name+"-new"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	recordGone(t, recordOf(name+"-old", w.Name))
	if err := errors.Join(ownedBy(t.Context(), ns, "one", recordOf(name+"-new", w.Name)), sameObject(t.Context(), ns, "one", uid)); err != nil {
		t.Fatal(err)
	}
	f.DeleteWork(t, name, w.Name)
	f.NoConfigMap(t, cluster, ns, "one")
}

// listedAs reports whether a line contains all of these words.
func listedAs(out string, words ...string) bool {
	for line := range strings.Lines(out) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			return true
		}
	}
	return false
}

// forget removes the claim of an identity.
func forget(t *testing.T, identity string) {
	t.Helper()
	maps := shared.API[cluster].Kube.CoreV1().ConfigMaps("hawser")
	harness.Eventually(t, func(ctx context.Context) error {
		m, err := maps.Get(ctx, hubidentity.ClaimsName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for key, value := range m.Data {
			if strings.Contains(value, fmt.Sprintf("%q", identity)) {
				delete(m.Data, key)
			}
		}
		_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return err
		}
		return err
	})
}

// secondBroker runs another broker with a store of its own, and returns its address.
func secondBroker(t *testing.T) string {
	t.Helper()
	f := shared
	addr, admin := testkit.FreeAddr(t), testkit.FreeAddr(t)
	args := append([]string{}, f.Program(fleet.Broker).Args()...)
	args = append(args, "--listen="+addr, "--admin-listen="+admin, "--data-dir="+filepath.Join(t.TempDir(), "data"))
	p, err := childproc.Start(t.Context(), childproc.Spec{
		Name: "second broker", Path: filepath.Join(f.Root, "bin", "hawser-broker"), Args: args, LogFile: filepath.Join(f.LogDir(), "second-broker.log"),
		Ready: func(ctx context.Context) error { _, err := answer(ctx, admin, "/readyz"); return err },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("second broker: %v", err)
		}
	})
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return "localhost:" + port
}

// answer returns the body of an answer of an admin port, with any status code.
func answer(ctx context.Context, addr, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}
