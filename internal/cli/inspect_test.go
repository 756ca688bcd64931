package cli_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/internal/testkit/fakekube"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

var (
	operator = identity.Identity{Role: identity.Operator, Name: "olga"}
	viewer   = identity.Identity{Role: identity.Viewer, Name: "vera"}
	dora     = identity.Identity{Role: identity.Viewer, Name: "dora"} // this identity is denied while other scripts run
	hub1     = identity.Identity{Role: identity.Source, Name: "hub1"}
	agent1   = identity.Identity{Role: identity.Agent, Name: "cluster1"}
)

// TestBrokerScripts: each script in testdata/broker is a terminal session with a broker that holds some works.
// The agent of cluster1 lists one work that the broker does not know, and one AppliedManifestWork without an
// owner. hub1 withholds one deletion.
func TestBrokerScripts(t *testing.T) {
	b := testkit.StartBroker(t, testkit.Options{Port: true, Known: []identity.Identity{operator, viewer, dora, hub1}})
	fill(t, b)
	dir := t.TempDir()
	ca, operatorCert, operatorKey := b.CA.Write(dir, operator)
	_, viewerCert, viewerKey := b.CA.Write(dir, viewer)
	_, doraCert, doraKey := b.CA.Write(dir, dora)
	_, agentCert, agentKey := b.CA.Write(dir, agent1)
	_, oldCert, oldKey := b.CA.WriteValid(t.TempDir(), operator, pki.Starting(time.Now().Add(-2*time.Hour), time.Hour))
	otherCA, otherCert, otherKey := testkit.NewCA(t).Write(t.TempDir(), operator)
	hub := fakekube.Start(t, []string{"manifestworks"}, "list manifestworks")
	bare := fakekube.Start(t, nil)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/broker", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"cmpmasked": compareMasked},
		Setup: func(e *testscript.Env) error {
			for name, value := range map[string]string{
				"HAWSER_BROKER": b.Addr, "HAWSER_CA": ca, "HAWSER_CERT": operatorCert, "HAWSER_KEY": operatorKey,
				"VIEWER_CERT": viewerCert, "VIEWER_KEY": viewerKey, "AGENT_CERT": agentCert, "AGENT_KEY": agentKey,
				"DORA_CERT": doraCert, "DORA_KEY": doraKey,
				"OLD_CERT": oldCert, "OLD_KEY": oldKey, "OTHER_CA": otherCA, "OTHER_CERT": otherCert, "OTHER_KEY": otherKey,
				"HUB_KUBECONFIG": hub.Kubeconfig(dir, "hub.kubeconfig", "full"), "FEW_KUBECONFIG": hub.Kubeconfig(dir, "few.kubeconfig", "few"),
				"BARE_KUBECONFIG": bare.Kubeconfig(dir, "bare.kubeconfig", "full"),
				"PORT":            b.Addr[strings.LastIndex(b.Addr, ":")+1:],
			} {
				e.Setenv(name, value)
			}
			e.Setenv("HOME", e.WorkDir)
			return writeContexts(e.WorkDir, b.Addr, map[string]string{ca: "ca.crt", viewerCert: "vera.crt", viewerKey: "vera.key"})
		},
	})
}

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func kind(s codec.Subresource, a codec.Action) string {
	return codec.EventType{DataType: codec.ManifestBundles, Subresource: s, Action: a}.String()
}

// work is a spec event.
func work(cluster, id, name string, version int) codec.Builder {
	return codec.Builder{
		Cluster: cluster, Type: kind(codec.Spec, codec.CreateRequest), Data: []byte(`{"manifests":[]}`),
		Extensions: map[string]any{
			codec.ExtResourceID: id, codec.ExtResourceVersion: version,
			codec.ExtMetadata: fmt.Sprintf(`{"name":%q,"namespace":%q}`, name, cluster),
		},
	}
}

// publish builds an event and publishes it as id.
func publish(t *testing.T, b *testkit.Broker, id identity.Identity, e codec.Builder) {
	t.Helper()
	e.ID, e.Time, e.ContentType = "1", at, codec.ContentTypeJSON
	if id.Role == identity.Source {
		e.Source = id.Name
	}
	built, err := e.Event()
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := codec.Marshal(built)
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Publish(t.Context(), transport.Peer{Role: string(id.Role), Name: id.Name}, bytes, "")
	if err != nil || r.Outcome != codec.OutcomeAccepted {
		t.Fatalf("publish as %s: %q, %v", id, r.Outcome, err)
	}
}

// fill publishes works to the broker, and brings agent and source into the state that the scripts show.
func fill(t *testing.T, b *testkit.Broker) {
	t.Helper()
	ctx := t.Context()
	if err := storetest.Bind(ctx, b.Store, codec.ManifestBundles, "cluster1", "uid-1"); err != nil {
		t.Fatal(err)
	}
	ci := identity.Identity{Role: identity.Source, Name: "ci"}
	publish(t, b, hub1, work("cluster1", "id-web", "web", 4))
	publish(t, b, agent1, codec.Builder{
		Source: "agent", Cluster: "cluster1", Type: kind(codec.Status, codec.UpdateRequest), Data: []byte(`{"conditions":[{"type":"Applied","status":"True"},{"type":"Available","status":"True"}]}`),
		Extensions: map[string]any{
			codec.ExtResourceID: "id-web", codec.ExtResourceVersion: 4, codec.ExtSequenceID: strconv.Itoa(7<<22 | 1<<12), codec.ExtStatusHash: "h",
		},
	})
	old := work("cluster1", "id-old", "old", 3)
	publish(t, b, hub1, old)
	old.Type, old.Extensions[codec.ExtDeletionTimestamp] = kind(codec.Spec, codec.DeleteRequest), at
	publish(t, b, hub1, old)
	publish(t, b, ci, work("cluster1", "id-job", "job", 1))
	publish(t, b, hub1, work("cluster2", "id-db", "db", 2))
	publish(t, b, hub1, work("cluster2", "id-stays", "stays", 1)) // concurrent scripts find the cluster
	publish(t, b, hub1, work("cluster2", "id-left", "left", 1))
	list, err := codec.NewSpecResyncRequest(
		codec.ResyncParams{ID: "1", Time: at, Source: "cluster1-work-agent", Cluster: "cluster1", DataType: codec.ManifestBundles},
		[]codec.ResourceVersion{{ResourceID: "id-web", ResourceVersion: 4}, {ResourceID: "id-ghost", ResourceVersion: 1}})
	lost, err2 := codec.NewOrphanReport(
		codec.SyncParams{ID: "2", Time: at, Source: "cluster1-work-agent", Cluster: "cluster1"},
		codec.OrphanReport{Records: []codec.OrphanRecord{{UID: "uid-lost", Name: "hash-lost", Objects: 2, Created: at}}})
	printf(t, b, agent1, transport.Filter{Cluster: "cluster1", DataType: codec.ManifestBundles}, errors.Join(err, err2), list, lost)
	for _, name := range []string{"hub2", "hub3"} { // both are connected; scripts transfer works to hub2, and hub3 has none
		printf(t, b, identity.Identity{Role: identity.Source, Name: name}, transport.Filter{Source: name, DataType: codec.ManifestBundles}, nil)
	}
	left := b.Store.Head().Revision
	compared, err := codec.NewSyncReport(codec.SyncParams{ID: "1", Time: at, Source: "hub1", Owner: "hub1"}, codec.SyncReport{
		Clusters: []codec.ClusterSyncReport{{
			Cluster: "cluster2", Reason: "the hub went back in time",
			Withheld: []codec.WithheldDeletion{{ResourceID: "id-left", Name: "left", Revision: left}},
		}},
	})
	printf(t, b, hub1, transport.Filter{Source: "hub1", DataType: codec.ManifestBundles}, err, compared)
	publish(t, b, agent1, codec.Builder{
		Source: "agent", Cluster: "cluster1", Type: kind(codec.Status, codec.UpdateRequest),
		Data: []byte(`{"conditions":[{"type":"Applied","status":"True"},{"type":"Deleting","status":"True","message":"waits for finalizers: ConfigMap default/a: ` + strings.Repeat("example.com/hold, ", 20) + `last"}]}`),
		Extensions: map[string]any{
			codec.ExtResourceID: "id-old", codec.ExtResourceVersion: 3, codec.ExtSequenceID: strconv.Itoa(7<<22 | 1<<12), codec.ExtStatusHash: "h",
		},
	})
	away(t, b, identity.Identity{Role: identity.Source, Name: "batch"})
	settled := func() bool {
		listed, pending := false, true
		err := errors.Join(
			b.ListDiscrepancies(&hawserv1.ListDiscrepanciesRequest{Cluster: "cluster1"}, admincall.To(ctx, func(o *hawserv1.ListDiscrepanciesResponse) error {
				listed = listed || o.GetResourceId() == "id-ghost"
				return nil
			})),
			b.ListClusters(&hawserv1.ListClustersRequest{Cluster: "cluster1"}, admincall.To(ctx, func(c *hawserv1.ListClustersResponse) error {
				pending = c.GetPending() > 0
				return nil
			})))
		return err == nil && listed && !pending
	}
	for !settled() {
		select {
		case <-ctx.Done():
			t.Fatal("the agent's list was not answered")
		case <-time.After(time.Millisecond):
		}
	}
}

// away creates clusters without a connected agent at the broker. One has a failing work; the agent of the other
// shows the certificate of another cluster.
func away(t *testing.T, b *testkit.Broker, source identity.Identity) {
	t.Helper()
	for _, cluster := range []string{"cluster3", "cluster4"} {
		if err := storetest.Bind(t.Context(), b.Store, codec.ManifestBundles, cluster, ""); err != nil {
			t.Fatal(err)
		}
		publish(t, b, source, work(cluster, "id-bad-"+cluster, "bad", 2))
	}
	publish(t, b, identity.Identity{Role: identity.Agent, Name: "cluster3"}, codec.Builder{
		Source: "agent", Cluster: "cluster3", Type: kind(codec.Status, codec.UpdateRequest),
		Data: []byte(`{"conditions":[{"type":"Applied","status":"False","message":"manifest 0 (v1 ConfigMap default/a): quota exceeded: configmaps \"a\" is forbidden: it goes on and on and on"}]}`),
		Extensions: map[string]any{
			codec.ExtResourceID: "id-bad-cluster3", codec.ExtResourceVersion: 2, codec.ExtSequenceID: strconv.Itoa(7<<22 | 1<<12), codec.ExtStatusHash: "h",
		},
	})
	conn, err := b.Dialer(agent1).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := transport.Subscription{Filter: transport.Filter{Cluster: "cluster4", DataType: codec.ManifestBundles}}
	err = conn.Subscribe(t.Context(), s, func(transport.Accepted) {}, func(context.Context, codec.Event) error { return nil })
	if transport.CodeOf(err) != transport.CodeDenied {
		t.Errorf("an agent of another cluster: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// printf subscribes as id until the test ends, and publishes events on the subscription,
// which were made without an error.
func printf(t *testing.T, b *testkit.Broker, id identity.Identity, f transport.Filter, err error, events ...codec.Event) (end func()) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := b.Dialer(id).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	accepted, ended := make(chan transport.Accepted, 1), make(chan error, 1)
	go func() {
		hello := transport.Hello{Protocol: transport.Protocol, Version: "v1.2.3", ClusterUID: map[bool]string{true: "uid-1"}[f.Cluster != ""]}
		ended <- conn.Subscribe(ctx, transport.Subscription{Filter: f, Hello: hello},
			func(a transport.Accepted) { accepted <- a }, func(context.Context, codec.Event) error { return nil })
	}()
	end = sync.OnceFunc(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) && transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("subscription of %s: %v", id, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	select {
	case a := <-accepted:
		for _, e := range events {
			if _, err := conn.Publish(t.Context(), e, a.SubscriptionID); err != nil {
				t.Fatal(err)
			}
		}
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	return end
}

// writeContexts writes the file of contexts to its default path below a home directory, with copies of the
// named files.
func writeContexts(home, broker string, copies map[string]string) error {
	dir := filepath.Join(home, ".config", "hawser")
	err := os.MkdirAll(dir, 0o700)
	for from, to := range copies {
		b, failed := os.ReadFile(from)
		err = errors.Join(err, failed, os.WriteFile(filepath.Join(dir, to), b, 0o600))
	}
	text := fmt.Sprintf(`currentContext: demo
contexts:
  demo: {broker: %q, ca: ca.crt, cert: vera.crt, key: vera.key}
  far: {broker: "127.0.0.1:1", serverName: broker.example, ca: ca.crt, cert: vera.crt, key: vera.key}
`, broker)
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o600))
}
