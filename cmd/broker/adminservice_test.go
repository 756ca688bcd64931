package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// subscribeAs returns the result of a subscription of an agent with this cluster uid.
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
		Hello:  transport.Hello{Protocol: transport.Protocol, ClusterUID: uid},
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

// TestUnbindCluster: a replaced cluster is accepted under its former name only after an operator has unbound
// the name.
func TestUnbindCluster(t *testing.T) {
	p := launch(t, "--insecure", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", filepath.Join(t.TempDir(), "store"))
	defer p.end()
	if err := p.subscribeAs("old"); err != nil {
		t.Fatal(err)
	}
	err := p.subscribeAs("new")
	if transport.CodeOf(err) != transport.CodeDenied || !strings.Contains(err.Error(), "hawser unbind cluster c1") {
		t.Fatalf("another cluster under the name: %v", err)
	}
	cc, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	_, err = hawserv1.NewAdminServiceClient(cc).UnbindCluster(t.Context(), &hawserv1.UnbindClusterRequest{Cluster: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := cc.Close(); err != nil {
		t.Error(err)
	}
	if err := p.subscribeAs("new"); err != nil {
		t.Errorf("after it was forgotten: %v", err)
	}
}

// TestBackup: the broker sends a store that can be opened, and leaves no copy in its directory.
func TestBackup(t *testing.T) {
	data, copied := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "copy")
	p := launch(t, "--insecure", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", data)
	defer p.end()
	if err := p.subscribeAs("uid-1"); err != nil {
		t.Fatal(err)
	}
	cc, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	s, err := hawserv1.NewAdminServiceClient(cc).Backup(t.Context(), &hawserv1.BackupRequest{})
	var file string
	for err == nil {
		var m *hawserv1.BackupResponse
		if m, err = s.Recv(); err == nil {
			if m.GetPath() != "" {
				file = filepath.Join(copied, filepath.FromSlash(m.GetPath()))
				err = os.MkdirAll(filepath.Dir(file), 0o700)
			}
			err = errors.Join(err, appendTo(file, m.GetData()))
		}
	}
	if err := cc.Close(); err != nil {
		t.Error(err)
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(data, "outgoing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v, %v", left, err)
	}
	opened, err := pebble.Open(pebble.Options{Dir: copied})
	if err != nil {
		t.Fatal(err)
	}
	if uid, ok := opened.Subscribed(codec.ManifestBundles, "c1"); uid != "uid-1" || !ok {
		t.Errorf("the copy knows %q, %v", uid, ok)
	}
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
}

func appendTo(file string, data []byte) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
