package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// resumed is the client side of a subscription. It passes checkpoints to the benchmark and counts all other
// events.
type resumed struct {
	accepted    chan transport.Accepted
	checkpoints chan []byte
	others      int
}

func (r *resumed) Accept(a transport.Accepted) error {
	r.accepted <- a
	return nil
}

func (r *resumed) Send(parts ...[]byte) error {
	event := slices.Concat(parts...)
	env, err := codec.ParseEnvelope(event)
	switch {
	case err != nil:
		return err
	case env.RawType == codec.TypeCheckpoint:
		r.checkpoints <- event
	default:
		r.others++
	}
	return nil
}

// BenchmarkResume measures the cost to the broker when an agent with 10,000 works of 1 KiB reconnects and
// already has everything. It runs until the checkpoint that proves it, with a cursor and with a list. There is
// no network, and the store is on disk.
func BenchmarkResume(b *testing.B) {
	const works = 10_000
	s, err := pebble.Open(pebble.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}()
	k := testkit.StartBroker(b, testkit.Options{Broker: broker.Config{Store: s, Log: slog.New(slog.DiscardHandler)}})
	defer k.Stop()
	var held []codec.ResourceVersion
	for chunk := range slices.Chunk(make([]struct{}, works), 500) {
		var ops []store.Op
		for range chunk {
			id := fmt.Sprintf("28e8bfbf-1292-522f-999a-%012d", len(held))
			tag := codec.TagOf(false, 1, id, nil)
			held = append(held, codec.ResourceVersion{ResourceID: id, ResourceVersion: 1, Tag: tag.String()})
			ops = append(ops, store.Op{
				Kind: store.PutSpec, Key: store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: id}, Owner: "src", Name: id,
				Action: codec.CreateRequest, Version: 1, Tag: tag, Event: make([]byte, 1<<10), At: time.Now(),
			})
		}
		if _, err := s.Commit(b.Context(), ops); err != nil {
			b.Fatal(err)
		}
	}
	peer := transport.Peer{Role: "agent", Name: "c1", Conn: 1}
	list := versions("c1", held...)
	head := s.Head()
	b.Run("cursor", func(b *testing.B) {
		benchmarkResume(b, k, peer, codec.Cursor{StoreID: head.StoreID, Incarnation: head.Incarnation, Revision: head.Revision}.String(), nil)
	})
	b.Run("list", func(b *testing.B) { benchmarkResume(b, k, peer, "", list) })
}

func benchmarkResume(b *testing.B, k *testkit.Broker, peer transport.Peer, cursor string, list []byte) {
	raw := transport.RawSubscription{
		Cluster: peer.Name, DataType: codec.ManifestBundles.String(), Hello: transport.Hello{Protocol: transport.Protocol, Cursor: cursor},
	}
	b.ReportAllocs()
	before := cpu(b)
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		r := &resumed{accepted: make(chan transport.Accepted, 1), checkpoints: make(chan []byte, 1)}
		ended := make(chan error, 1)
		go func() { ended <- k.Subscribe(ctx, peer, raw, r) }() // the result is received below
		a := <-r.accepted
		if list != nil {
			if _, err := k.Publish(ctx, peer, list, a.SubscriptionID); err != nil {
				b.Fatal(err)
			}
		}
		<-r.checkpoints
		cancel()
		if err := <-ended; transport.CodeOf(err) != transport.CodeUnavailable {
			b.Fatal(err)
		}
		if (a.Resync == codec.ResyncCursor) != (list == nil) || r.others > 0 && list == nil {
			b.Fatalf("%+v, and %d events", a, r.others)
		}
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// cpu returns the CPU time that the process has used.
func cpu(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
