package alerts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/alerts"
)

// TestAlerts_FireAndClear breaks the fleet in several ways, one after the other. Each time the matching alerts
// are silent before, fire, and clear after the repair.
func TestAlerts_FireAndClear(t *testing.T) {
	disk := startSmall(t)
	broker, hubSource, agent := shared.Program(fleet.Broker), shared.Program(fleet.HubSource), shared.Program(fleet.AgentOf(cluster))
	p := startPrometheus(t, map[string]string{
		"hawser-broker": broker.Admin, "hawser-hub-source": hubSource.Admin, "hawser-agent": agent.Admin, "small-broker": disk.admin,
	})
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, fault := range []struct {
		name        string
		alerts      []string
		begin, mend func(t *testing.T)
	}{
		{
			"dead broker", []string{"HawserBrokerDown", "HawserHubSourceDisconnected", "HawserAgentDisconnected"},
			func(*testing.T) { broker.Kill() },
			func(t *testing.T) { must(t, broker.Start(t.Context())) },
		},
		{
			"fleet offline", []string{"HawserFleetOffline", "HawserClustersOffline", "HawserAgentDown"},
			func(*testing.T) { agent.Kill() },
			func(t *testing.T) { must(t, agent.Start(t.Context())) },
		},
		{
			"certificate expires soon", []string{"HawserCertificateExpiresSoon", "HawserCertificateExpired", "HawserClientCertificateExpiresSoon"},
			func(t *testing.T) { certify(t, time.Hour) },
			func(t *testing.T) { certify(t, 20*24*time.Hour) },
		},
		{"filling disk", []string{"HawserBrokerDiskNearlyFull"}, disk.fill, disk.empty},
	} {
		t.Run(fault.name, func(t *testing.T) {
			p := &prometheus{t: t, addr: p.addr}
			p.clear(fault.alerts...)
			fault.begin(t)
			p.fire(fault.alerts...)
			fault.mend(t)
			p.clear(fault.alerts...)
		})
	}
}

// certify issues a certificate of one year that expires after valid, and restarts the agent with it.
func certify(t *testing.T, valid time.Duration) {
	t.Helper()
	end := time.Now().Add(valid)
	period := pki.Period{NotBefore: end.AddDate(-1, 0, 0), NotAfter: end}
	if _, err := shared.PKI().Issue(pki.Request{Role: pki.Agent, Name: cluster, Valid: period}, true); err != nil {
		t.Fatal(err)
	}
	agent := shared.Program(fleet.AgentOf(cluster))
	if err := agent.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// small is a broker on a file system of 256 MiB, in a mount namespace that ends with it.
type small struct{ dir, admin string }

func startSmall(t *testing.T) *small {
	t.Helper()
	s := &small{admin: addr(t, 201, "8081")}
	dir := t.TempDir()
	process, err := childproc.Start(t.Context(), childproc.Spec{
		Name: "small broker", Path: "/usr/bin/unshare", LogFile: filepath.Join(shared.LogDir(), "small-broker.log"),
		Args: []string{
			"--user", "--map-root-user", "--mount", "sh", "-c",
			`mount -t tmpfs -o size=256m,mode=700 none "$0" && exec "$1" --insecure --listen="$2" --admin-listen="$3" --data-dir="$0/store"`,
			dir, filepath.Join(shared.Root, "bin", "hawser-broker"), addr(t, 201, "8090"), s.admin,
		},
		Ready: func(ctx context.Context) error { return (&prometheus{addr: s.admin}).get(ctx, "/readyz", nil) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.dir = filepath.Join("/proc", fmt.Sprint(process.PID()), "root", dir)
	return s
}

// fill fills the file system up to 8 MiB of free space.
func (s *small) fill(t *testing.T) {
	t.Helper()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &fs); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(s.dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(fs.Bavail)*fs.Bsize-8<<20); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func (s *small) empty(t *testing.T) {
	t.Helper()
	if err := os.Remove(filepath.Join(s.dir, "filler")); err != nil {
		t.Fatal(err)
	}
}

// TestMonitoring_Renders: kustomize renders each folder as expected.
func TestMonitoring_Renders(t *testing.T) {
	for _, program := range alerts.Programs {
		out, err := exec.CommandContext(t.Context(), shared.Kubectl(), "kustomize", filepath.Join(shared.Root, "deploy", "monitoring", program)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, want := range []string{"kind: PodMonitor", "kind: PrometheusRule", "namespace: hawser\n", "app.kubernetes.io/part-of: hawser"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q in\n%s", program, want, out)
			}
		}
	}
}
