package join

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/agent/registration"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// TestJoinedCluster_ClockAhead: a machine resumes, and for a moment its clock is a year ahead. The bootstrap token
// expired long ago. The agent keeps key and certificate, in memory and in its Secret, and stays in the fleet.
//
// The registration of the agent runs in this process, because a program cannot have a clock of its own.
func TestJoinedCluster_ClockAhead(t *testing.T) {
	s := requester(t)
	s.hawser("accept", "cluster1", "--context", "hub")
	s.apply("before")
	s.arrives("before")
	s.agent()

	secrets := s.planes["cluster1"].kube.CoreV1().Secrets("hawser")
	kept := func() map[string][]byte {
		o, err := secrets.Get(t.Context(), "hawser-agent-hub", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return o.Data
	}
	before := kept()
	var ahead atomic.Int64
	d := &shown{stay: s, dir: t.TempDir()}
	r, err := registration.New(registration.Config{
		Cluster: "cluster1", Hub: registration.HubOf(before), Broker: before["config.yaml"],
		Bootstrap: over{}, BootstrapID: func() (string, error) { return string(before["bootstrap"]), nil },
		Registered: d, ActivateCertificate: d.use, Retry: func() {}, Store: &registration.Secret{Client: secrets, Name: "hawser-agent-hub"}, Reader: disconnected{},
		Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	member := func() (bool, string) {
		state := r.Progress()
		return state.As == registration.Registered && state.WaitReason == nil, fmt.Sprintf("as %s, waits for %v, trouble %v, certificate %v", state.As, state.WaitReason, state.Trouble, state.Credential)
	}
	s.eventuallyTrue("the cluster is part of the fleet", member)

	ahead.Store(int64(365 * 24 * time.Hour))
	s.eventuallyTrue("the agent has noticed its clock", func() (bool, string) {
		state := r.Progress()
		return state.As != registration.Registered || state.Trouble != nil, fmt.Sprint(state.Trouble)
	})
	ahead.Store(0)
	s.eventuallyTrue("the cluster is part of the fleet again", member)
	if now := kept(); len(now["tls.key"]) == 0 || len(now["tls.crt"]) == 0 {
		t.Error("key and certificate were removed from the Secret")
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.agent = s.start("cluster1", "hawser-agent")
	s.apply("after")
	s.arrives("after")
}

// shown is a dialer that presents the certificate given to use.
type shown struct {
	*stay
	dir string
	own atomic.Pointer[registration.Credential]
}

func (d *shown) use(c *registration.Credential) { d.own.Store(c) }

// Dial implements transport.Dialer.
func (d *shown) Dial(ctx context.Context) (transport.Conn, error) {
	own := d.own.Load()
	if own == nil {
		return nil, &transport.Error{Code: transport.CodeUnavailable, Message: "there is no certificate"}
	}
	dir, err := os.MkdirTemp(d.dir, "")
	if err != nil {
		return nil, err
	}
	files := identity.Files{CA: d.file("ca.crt"), Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	if err := errors.Join(os.WriteFile(files.Cert, own.Cert, 0o600), os.WriteFile(files.Key, own.Key, 0o600)); err != nil {
		return nil, err
	}
	creds, err := files.Client("", func(error) {})
	if err != nil {
		return nil, err
	}
	dialer, err := transportgrpc.NewDialer(transportgrpc.Options{Target: d.at, Credentials: creds, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return dialer.Dial(ctx)
}

// over is the dialer of a client whose bootstrap token has expired.
type over struct{}

// Dial implements transport.Dialer.
func (over) Dial(context.Context) (transport.Conn, error) {
	return nil, &transport.Error{Code: transport.CodeUnauthenticated, Message: "the bootstrap token has ended"}
}

// disconnected is a cluster that reports no facts.
type disconnected struct{}

// Healthy implements registration.Reader.
func (disconnected) Healthy(context.Context) error { return nil }

// Facts implements registration.Reader.
func (disconnected) Facts(context.Context) (registration.Facts, error) {
	return registration.Facts{Healthy: true}, nil
}
