package interop

import (
	"context"
	"log/slog"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// hub is the hub identity of the Hawser agents.
const hub = "interop-hub"

// ourAgent is a running Hawser agent of cluster1, on a cluster in memory.
type ourAgent struct {
	*agent.Agent
	t       testing.TB
	cluster *clustertest.Fake
	stop    context.CancelFunc
	done    chan struct{}
}

// startOurAgent runs an agent until the test ends or end is called. It starts without a reachable broker too.
func startOurAgent(t testing.TB, addr string, cluster *clustertest.Fake, edit ...func(*agent.Config)) *ourAgent {
	t.Helper()
	cert, key := certify(t, pki.Agent, cluster1)
	creds, err := identity.Files{CA: certs.CACert(), Cert: cert, Key: key}.Client("", func(err error) { t.Errorf("certificates: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	d, err := transportgrpc.NewDialer(transportgrpc.Options{Target: addr, Credentials: creds, Log: logOf(t)})
	if err != nil {
		t.Fatal(err)
	}
	return runOurAgent(t, d, cluster, edit...)
}

// logOf returns a log that is printed if the test fails.
func logOf(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func runOurAgent(t testing.TB, d transport.Dialer, cluster *clustertest.Fake, edit ...func(*agent.Config)) *ourAgent {
	t.Helper()
	a := &ourAgent{t: t, cluster: cluster, done: make(chan struct{})}
	c := agent.Config{Cluster: cluster1, HubIdentity: hub, Dialer: d, Client: cluster, Metadata: cluster.Metadata, Log: logOf(t)}
	for _, f := range edit {
		f(&c)
	}
	var err error
	a.Agent, err = agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	go func() { // end waits for it
		defer close(a.done)
		if err := a.Run(ctx); err != nil {
			t.Errorf("agent: %v", err)
		}
	}()
	t.Cleanup(a.end)
	return a
}

// end stops the agent and waits for it. It may be called repeatedly.
func (a *ourAgent) end() {
	a.stop()
	<-a.done
}

// value returns the value of a ConfigMap of newWork, "" if it does not exist.
func (a *ourAgent) value(name string) string {
	o := a.cluster.Look(a.cluster.Ref("v1", "ConfigMap", "default", name))
	if o == nil {
		return ""
	}
	v, _, err := unstructured.NestedString(o.Object, "data", "value")
	if err != nil {
		a.t.Errorf("ConfigMap %s: %v", name, err)
	}
	return v
}

// awaitValue waits until a ConfigMap has a value. "" waits until it does not exist.
func (a *ourAgent) awaitValue(name, value string) {
	a.t.Helper()
	eventually(a.t, "ConfigMap "+name+" with value "+value, func() bool { return a.value(name) == value })
}

// record returns the AppliedManifestWork of a work, nil if there is none.
func (a *ourAgent) record(work string) *workv1.AppliedManifestWork {
	a.t.Helper()
	o := a.cluster.Look(appliedwork.Ref(appliedwork.Name(appliedwork.HubHash(hub), work)))
	if o == nil {
		return nil
	}
	r := &workv1.AppliedManifestWork{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, r); err != nil {
		a.t.Fatal(err)
	}
	return r
}
