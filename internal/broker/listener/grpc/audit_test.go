package grpc_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/broker/audit"
	"github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestSeen checks that each rejection is reported with its reason and the client, in the audit stream and in
// the metrics.
func TestSeen(t *testing.T) {
	var out, log syncbuffer.Buffer
	registry := prometheus.NewRegistry()
	stream := audit.New(audit.All, &out, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
	denies := accepts
	denies.publish = func(context.Context, transport.Peer, []byte, string) (transport.Receipt, error) {
		return transport.Receipt{}, &transport.Error{Code: transport.CodeDenied, Next: transport.NextStop, Message: "not your cluster"}
	}
	b := testkit.StartBroker(t, testkit.Options{})
	f, ca := limited(t, denies, func(c *grpc.Config) { c.Audit, c.Registry, c.Admin = stream, registry, b.Broker })
	call := func(cert x509.Certificate, from *testkit.CA) {
		cert.Subject = pkix.Name{CommonName: "system:open-cluster-management:cluster1"}
		cc := dial(t, f.addr, ca.Showing(from.Sign(cert)))
		if _, err := grpc_health_v1.NewHealthClient(cc).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("%+v: %v", cert, err)
		}
	}
	call(x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute)}, ca)
	call(x509.Certificate{NotBefore: time.Now().Add(30 * time.Minute)}, ca)
	call(x509.Certificate{}, testkit.NewCA(t))
	agent := dial(t, f.addr, ca.Client(agent1))
	for _, err := range []error{
		checkHealth(t.Context(), dial(t, f.addr, ca.Anonymous()), "")[0].err,
		backup(t.Context(), hawserv1.NewAdminServiceClient(agent)),
		publishEverything(t.Context(), agent, "other")[0].err,
	} {
		if code := status.Code(err); code != codes.Unauthenticated && code != codes.PermissionDenied {
			t.Errorf("not refused: %v", err)
		}
	}
	ops := hawserv1.NewAdminServiceClient(dial(t, f.addr, ca.Client(operator)))
	if _, err := ops.Allow(t.Context(), &hawserv1.AllowRequest{Subject: "agent/x"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if err := backup(t.Context(), ops); status.Code(err) != codes.InvalidArgument {
		t.Errorf("of a store in memory: %v", err)
	}
	f.stop()
	if err := <-f.ended; err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	stream.Run(ended)

	got := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		var l struct {
			Event, Reason, Identity, Method, Addr string
			Repeated                              int
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if host, _, err := net.SplitHostPort(l.Addr); l.Repeated == 0 && (err != nil || host != "127.0.0.1") {
			t.Errorf("%s: address %q", line, l.Addr)
		}
		got[fmt.Sprintf("%s %s %s %s", l.Event, l.Reason, l.Identity, l.Method[strings.LastIndex(l.Method, "/")+1:])] = true
	}
	for _, want := range []string{
		"rejected expired  ", "rejected not_yet_valid  ", "rejected untrusted  ", "rejected no_certificate  Check", "connected  agent/cluster1 ",
		"rejected role agent/cluster1 Backup", "rejected scope agent/cluster1 Publish", "operated  operator/olga Allow", "operated  operator/olga Backup",
	} {
		if !got[want] {
			t.Errorf("no line %q in:\n%s", want, out.String())
		}
	}
	for _, want := range []string{
		`msg="a client has connected" addr=127.0.0.1:`, " peer=agent/cluster1 conn=", " certificate_not_after=", `msg="a client has disconnected" addr=127.0.0.1:`,
		" reason=expired error=", " reason=untrusted error=", " reason=no_certificate method=", " reason=scope method=",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no line with %q in the log:\n%s", want, log.String())
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				count[f.GetName()+" "+l.GetValue()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	for _, want := range []string{
		"rejected_handshakes_total expired", "rejected_handshakes_total not_yet_valid", "rejected_handshakes_total untrusted", "rejected_calls_total no_certificate",
		"rejected_calls_total role", "rejected_calls_total scope", "calls_total operator", "received_bytes_total agent", "sent_bytes_total none",
	} {
		if count["hawser_listener_"+want] == 0 {
			t.Errorf("nothing counted as %s in %v", want, count)
		}
	}
}

// backup requests a backup and returns the error.
func backup(ctx context.Context, c hawserv1.AdminServiceClient) error {
	s, err := c.Backup(ctx, &hawserv1.BackupRequest{})
	if err == nil {
		_, err = s.Recv()
	}
	return err
}
