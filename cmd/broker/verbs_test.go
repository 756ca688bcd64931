package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// subscribeAs says what becomes of an agent that says it runs on the cluster
// with this uid.
func (p *process) subscribeAs(uid string) error {
	p.t.Helper()
	dialer, err := transportgrpc.NewDialer(transportgrpc.Options{Target: p.grpc, Insecure: true})
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := dialer.Dial(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	accepted := false
	s := transport.Subscription{
		Filter: transport.Filter{Cluster: "c1", DataType: codec.ManifestBundles},
		Hello:  transport.Hello{Protocol: 1, ClusterUID: uid},
	}
	err = c.Subscribe(ctx, s, func(transport.Accepted) { accepted = true; cancel() }, func(context.Context, codec.Event) error { return nil })
	if closed := c.Close(); closed != nil {
		p.t.Error(closed)
	}
	if accepted {
		return nil
	}
	return err
}

func forget(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := command(&out, io.Discard)
	c.SetArgs(append([]string{"forget-cluster"}, args...))
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

// TestForgetCluster: a cluster that was replaced is let in under the old name
// once an operator says so, and not before.
func TestForgetCluster(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	args := []string{"--insecure", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", dir}
	p := launch(t, args...)
	if err := p.subscribeAs("old"); err != nil {
		t.Fatal(err)
	}
	err := p.subscribeAs("new")
	if transport.CodeOf(err) != transport.CodeDenied || !strings.Contains(err.Error(), "hawser-broker forget-cluster c1") {
		t.Fatalf("another cluster under the name: %v", err)
	}
	if _, err := forget(t, append(args, "c1")...); err == nil || !strings.Contains(err.Error(), "store") {
		t.Errorf("while the broker runs: %v", err)
	}
	p.end()

	out, err := forget(t, append(args, "c1")...)
	if err != nil || !strings.Contains(out, "c1") {
		t.Fatalf("%q, %v", out, err)
	}
	p = launch(t, args...)
	if err := p.subscribeAs("new"); err != nil {
		t.Errorf("after it was forgotten: %v", err)
	}
	p.end()
}

func TestForgetCluster_Refuses(t *testing.T) {
	if _, err := forget(t, "--insecure", "--listen=127.0.0.1:0", "--data-dir="+filepath.Join(t.TempDir(), "none"), "c1"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a store that is not there: %v", err)
	}
	if _, err := forget(t); err == nil {
		t.Error("no name must be refused")
	}
}
