package cli_test

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/cli"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// fullStore is a store with an error of its disk that the test sets.
type fullStore struct {
	store.Store
	err atomic.Pointer[error]
}

func (s *fullStore) Err() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return s.Store.Err()
}

// TestWarnings_OfThirdPartyBroker: if hub-source is disconnected, or the disk of the broker is full, each list
// shows a warning and the doctor fails. A source that is no hub-source may disconnect without a warning.
func TestWarnings_OfThirdPartyBroker(t *testing.T) {
	disk := &fullStore{Store: mem.Open(mem.Options{NewID: testkit.NewIDs("store")})}
	t.Cleanup(func() { _ = disk.Close() })
	b := testkit.StartBroker(t, testkit.Options{Port: true, Known: []identity.Identity{operator, hub1}, Broker: broker.Config{Store: disk}})
	ca, cert, key := b.CA.Write(t.TempDir(), operator)
	hawser := func(args ...string) (status int, stderr string) {
		var out bytes.Buffer
		status = cli.Main(t.Context(), cli.Env{Stdout: t.Output(), Stderr: &out, Now: time.Now}, append(args, "--broker", b.Addr, "--ca", ca, "--cert", cert, "--key", key))
		return status, out.String()
	}
	lists := []string{"clusters", "works", "quotas", "discrepancies", "denials"}
	reports := func(want string) {
		t.Helper()
		for _, list := range lists {
			if status, stderr := hawser("get", list); status != 0 || want == "" && stderr != "" || !strings.Contains(stderr, want) {
				t.Errorf("get %s: status %d, %q, want %q", list, status, stderr, want)
			}
		}
		wantStatus := 0
		if want != "" {
			wantStatus = 1
		}
		if status, stderr := hawser("doctor"); status != wantStatus || !strings.Contains(stderr, strings.TrimPrefix(want, "Warning: ")) {
			t.Errorf("doctor: status %d, %q, want %q", status, stderr, want)
		}
	}
	publish(t, b, hub1, work("cluster1", "id-web", "web", 4))
	reports("") // a source without a hub may disconnect

	compared, err := codec.NewSyncReport(codec.SyncParams{ID: "1", Time: at, Source: "hub1", Owner: "hub1"}, codec.SyncReport{
		AllClusters: true, Position: &codec.HubPosition{UID: "hub-uid", ResourceVersion: "7"},
	})
	end := printf(t, b, hub1, transport.Filter{Source: "hub1", DataType: codec.ManifestBundles}, err, compared)
	reports("")
	end()
	for len(b.Warnings()) == 0 { // the broker notices the end of a stream with a delay
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the broker has not noticed that the source disconnected")
		}
	}
	reports("Warning: the hub-source of source hub1 is not connected: changes of its 1 works reach no cluster, and statuses do not reach the hub. Run kubectl -n hawser get pods on the hub\n")

	low := store.ErrLow
	disk.err.Store(&low)
	reports("Warning: the broker accepts no specs and statuses: store is low on disk space and accepts only deletions; enlarge its volume")
}
