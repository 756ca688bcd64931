//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/listener"
	listengrpc "github.com/hawser-io/hawser/internal/broker/listener/grpc"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/memlimit"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/testkit"
)

// TestSpecFlood: a flood of publishes for one cluster delays only itself. Publishes for other clusters, with
// the same certificate of the source, do not wait for it. The disk is slow, so that both share its queue.
// Absolute times mean nothing then. They are compared with the waiting time of the flood, which needs no quiet
// machine.
func TestSpecFlood(t *testing.T) {
	s := prepareStage(t)
	s.brokerAt = childproc.Spec{
		Name: "slow broker", Path: "taskset", Args: []string{"-c", "0", os.Args[0]}, LogFile: filepath.Join(s.dir, "broker.log"),
		Env: []string{part + "=slow-broker", "HAWSER_HOSTILE_ADDR=" + s.addr, "HAWSER_HOSTILE_ADMIN=" + s.admin,
			"HAWSER_HOSTILE_PKI=" + string(s.pki), "HAWSER_HOSTILE_DATA=" + filepath.Join(s.dir, "data")},
		Ready: s.ready,
	}
	s.start(false)
	if !measures() {
		s.survive("specflood")
	} else if late, _ := s.attack("specflood", window(t), 1); late != "" {
		t.Error(late)
	}
	s.verify()
}

const (
	// commitTakes is the duration of a commit on the slow disk.
	commitTakes = 100 * time.Millisecond
	// maxShare is the largest ratio of a delivery to the answer to a publish of the flood. In one common queue
	// both would wait equally long.
	maxShare = 0.5
)

// share returns a message if the publishes of the fleet wait for the flood.
func share(s *stage, attacker *actor, from, to time.Time) string {
	s.t.Helper()
	flooded, delivered := attacker.took("flooded", from, to), s.fleet.took("delivery", from, to)
	if len(flooded) < 20 || len(delivered) < 20 {
		s.t.Fatalf("%d publishes of the flood and %d of the fleet were answered", len(flooded), len(delivered))
	}
	own, others := median(flooded), median(delivered)
	s.t.Logf("half of the flood waits %v, half of the others %v", own, others)
	if float64(others) > maxShare*float64(own) {
		return fmt.Sprintf("half of the deliveries take %v, and half of the flood that they are not to wait for %v", others, own)
	}
	return ""
}

// runSlowBroker runs a broker with a slow disk. It combines the same parts as hawser-broker.
func runSlowBroker(ctx context.Context) (err error) {
	files, log := pki.Dir(os.Getenv("HAWSER_HOSTILE_PKI")), slog.New(slog.NewTextHandler(os.Stderr, nil))
	creds, err := identity.Files{CA: files.CACert(), Cert: files.Cert(pki.Broker, "broker"), Key: files.Key(pki.Broker, "broker")}.Server(func(error) {})
	if err != nil {
		return err
	}
	disk, err := pebble.Open(pebble.Options{Dir: os.Getenv("HAWSER_HOSTILE_DATA"), Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	b, err := broker.New(broker.Config{Store: slowDisk{disk}, Log: log})
	if err != nil {
		return err
	}
	front, err := listengrpc.New(listengrpc.Config{
		Config: listener.Config{
			Addr: os.Getenv("HAWSER_HOSTILE_ADDR"), Credentials: creds, Denials: b.Denials(), Log: log,
			Mapping: testkit.Mapping(identity.Identity{Role: identity.Source, Name: source}),
		},
		Server: b, Admin: b,
	})
	if err != nil {
		return err
	}
	health := &telemetry.Health{}
	health.Add("grpc", front.Ready)
	admin := telemetry.Admin{Addr: os.Getenv("HAWSER_HOSTILE_ADMIN"), Registry: prometheus.NewRegistry(), Health: health, Log: log}
	return taskgroup.Group(ctx,
		taskgroup.Task{Name: "broker", Run: b.Run}, taskgroup.Task{Name: "grpc", Run: front.Run}, taskgroup.Task{Name: "admin", Run: admin.Run}, memlimit.CollectAtRest())
}

// slowDisk is a store with slow commits.
type slowDisk struct{ store.Store }

func (d slowDisk) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	wait, stop := context.WithTimeout(ctx, commitTakes)
	<-wait.Done()
	stop()
	return d.Store.Commit(ctx, ops)
}
