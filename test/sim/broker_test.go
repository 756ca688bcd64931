package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
)

// node is the broker and its store. The store outlives a restart.
type node struct {
	w        *world
	name     string
	gate     *gate
	broker   *broker.Broker
	front    *front // for MQTT; nil if no client uses MQTT
	registry *prometheus.Registry
	stop     context.CancelFunc
	done     chan error
	up       bool
	hung     bool         // it does nothing until it goes on
	disk     atomic.Int32 // a disk; also tasks of the broker that need no turn read it
	clock    time.Duration
	backup   *mem.Backup // what the next start finds
	old      *mem.Backup // a copy
	starts   int
	quota    *quota.Quota // of the hub; nil: no limit
}

// now is the clock of the broker's machine.
func (n *node) now() time.Time { return time.Now().Add(n.clock) }

// gate stands between broker and store. A commit, and the router's read of what changed, wait for their turn.
// Turns are steps. Between turns all goroutines of the broker are idle.
type gate struct {
	*mem.Store
	w    *world
	node *node
	// memory is what a replica knows of the store without reading it, nil if that is the store itself.
	memory atomic.Pointer[mem.Store]

	commits, routes chan struct{} // turns
	dead            chan struct{} // closed when the broker crashes
	fatal           chan error    // gets one when a write fails
	// late: a commit that is in progress when the broker crashes is on disk, and its caller gets no answer.
	late bool

	// Written by the broker's goroutines, read while they are idle.
	committing bool   // a commit waits for its turn
	routed     uint64 // the revision up to which the router has read
	routing    bool   // the router waits for its turn
}

// Commit commits when it is its turn. Ops are applied one by one, so that each can be judged. Bookmarks and
// bindings need no turn.
func (g *gate) Commit(ctx context.Context, ops []store.Op) (outcomes []store.Outcome, err error) {
	if len(ops) > 0 && !slices.ContainsFunc(ops, isOfRecord) {
		err = g.write(func() (err error) {
			outcomes, err = g.Store.Commit(ctx, ops)
			g.remember()
			return err
		})
		return outcomes, err
	}
	g.committing = true
	defer func() { g.committing = false }()
	select {
	case <-g.commits:
	case <-g.dead:
		if !g.late || g.node.disk.Load() >= diskFull {
			return nil, store.ErrClosed
		}
	}
	switch g.node.disk.Load() {
	case diskFull: // it gets its turn even if the broker stops
		return nil, store.ErrReadOnly
	case diskFails:
		if len(g.fatal) == 0 {
			g.fatal <- store.ErrReadOnly
		}
		return nil, store.ErrReadOnly
	}
	for i := range ops {
		if !isOfRecord(ops[i]) {
			o, err := g.Store.Commit(ctx, ops[i:i+1])
			if err != nil {
				return nil, err
			}
			outcomes = append(outcomes, o...)
			continue
		}
		g.w.broker.limited(&ops[i])
		before := g.look(ops[i].Key)
		o, err := g.Store.Commit(ctx, ops[i:i+1])
		if err != nil {
			return nil, err
		}
		outcomes = append(outcomes, o...)
		g.w.note("  commit %s", describe(&ops[i], o[0]))
		g.w.oracle.committed(&ops[i], o[0].Result, before, g.look(ops[i].Key))
	}
	g.remember()
	return outcomes, nil
}

func isOfRecord(op store.Op) bool { return op.Kind < store.SetBookmark }

// disk is the state of the broker's disk.
type disk = int32

const (
	diskAmple disk = iota
	// diskLow: it is nearly full. The broker must accept only writes that free space.
	diskLow
	// diskFull: writes wait until it is no longer full. It also stands for a lack of file descriptors.
	diskFull
	// diskFails: the next write fails, as after a remount read-only. That ends the broker.
	diskFails
)

// Err implements store.Store.
func (g *gate) Err() error {
	return [...]error{diskLow: store.ErrLow, diskFull: store.ErrNoSpace, diskFails: nil}[g.node.disk.Load()]
}

// Fatal implements store.Store.
func (g *gate) Fatal() <-chan error { return g.fatal }

// write performs a write that needs no turn.
func (g *gate) write(do func() error) error {
	switch g.node.disk.Load() {
	case diskFull:
		return store.ErrNoSpace
	case diskFails:
		return store.ErrReadOnly
	}
	return do()
}

func (g *gate) look(k store.Key) *store.Meta {
	r, err := g.Store.Get(context.Background(), k)
	if err != nil {
		return nil
	}
	return &r.Meta
}

// Changes returns one change per turn.
func (g *gate) Changes(ctx context.Context, after uint64, _ int) ([]store.Change, error) {
	g.routed, g.routing = after, true
	defer func() { g.routing = false }()
	select {
	case <-g.routes:
	case <-g.dead:
		return nil, store.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	g.remember()
	return g.Store.Changes(ctx, after, 1)
}

func describe(op *store.Op, o store.Outcome) string {
	kind := map[store.OpKind]string{store.PutSpec: "spec", store.PutStatus: "status", store.Drop: "drop", store.CollectTombstone: "acked", store.TakeOver: "takeover"}[op.Kind]
	if op.Deleting {
		kind = "deletion"
	}
	if op.Deleted {
		kind = "deleted"
	}
	return fmt.Sprintf("%s %s/%s v%d: result %d at %d", kind, op.Key.Cluster, op.Key.ResourceID, op.Version, o.Result, o.Revision)
}

func (n *node) start() {
	n.starts++
	start, ids := n.starts, 0
	inner := n.w.openStore(n, func() string { ids++; return fmt.Sprintf("store%d-%d", start, ids) })
	n.gate = &gate{Store: inner, w: n.w, node: n, commits: make(chan struct{}), routes: make(chan struct{}), dead: make(chan struct{}), fatal: make(chan error, 1)}
	n.gate.remember()
	n.registry = prometheus.NewRegistry()
	b, err := broker.New(broker.Config{
		Store: n.gate, Log: slog.New(slog.DiscardHandler), Registry: n.registry,
		Heartbeat: time.Minute, DrainTimeout: time.Second, Comparisons: 8,
		NewID: n.w.newID, Now: n.now,
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	n.broker, n.stop, n.done, n.up = b, stop, done, true
	go func() { done <- b.Run(ctx) }() // end waits for it
	if n.w.shape.mqtt {
		n.front = newFront(ctx, n.w, b)
	}
	synctest.Wait()
}

// crash ends the broker. What was not committed is lost. With late, the commit in progress is on disk, and its
// answers are lost.
func (n *node) crash(late bool) {
	n.gate.late = late
	n.w.cutAll(n) // before it can send goodbyes to its peers
	close(n.gate.dead)
	n.end()
}

// drain ends the broker as SIGTERM does.
func (n *node) drain() {
	n.stop()
	for range 5000 {
		synctest.Wait()
		switch {
		case len(n.done) > 0:
			n.end()
			return
		case n.gate.committing:
			n.gate.commits <- struct{}{}
		case n.canRoute():
			n.gate.routes <- struct{}{}
		default:
			<-time.After(time.Millisecond)
		}
	}
	n.w.fail("I6", "the broker does not end")
}

func (n *node) end() {
	n.up, n.hung = false, false
	n.w.cutAll(n)
	n.stop()
	if err := <-n.done; err != nil && !errors.Is(err, store.ErrClosed) && !errors.Is(err, store.ErrReadOnly) {
		n.w.fail("I6", "the broker ended with %v", err)
	}
	n.front.end()
	synctest.Wait()
	if n.w.database == nil {
		n.backup = n.gate.Backup()
	}
	if err := n.gate.Close(); err != nil {
		panic(err)
	}
}

// commit lets one commit through. If it fails, the broker ends.
func (n *node) commit() {
	n.gate.commits <- struct{}{}
	synctest.Wait()
	if n.disk.Load() == diskFails {
		n.drain()
	}
}

func (n *node) canRoute() bool {
	return n.up && n.gate.routing && n.gate.Store.Head().Revision > n.gate.routed
}

// catchUp waits until the broker has answered a subscription. The broker answers when it has followed the store up to
// the head.
func (n *node) catchUp(c *conn) {
	synctest.Wait()
	for len(c.stream.accepted) == 0 && len(c.ended) == 0 && n.canRoute() {
		n.gate.routes <- struct{}{}
		synctest.Wait()
	}
}

func (n *node) steps(list []step) []step {
	if !n.up || n.hung {
		return list
	}
	if n.gate.committing && n.disk.Load() != diskFull {
		list = append(list, step{n.name, "commit", "", n.commit})
	}
	if n.canRoute() {
		list = append(list, step{n.name, "route", "", func() { n.gate.routes <- struct{}{} }})
	}
	return n.front.steps(list)
}

// knowsLater reports whether the broker has received a hub position later than that of a copy of the hub. It
// receives one each minute.
func (n *node) knowsLater(b *hubBackup) bool {
	if n.w.database != nil {
		return knowsLater(n.w.database.Snapshot(), b)
	}
	if !n.up { // the store at the next start
		return knowsLater(mem.Open(mem.Options{From: n.backup, NewID: n.w.newID}), b)
	}
	return knowsLater(n.gate.Store, b)
}

func knowsLater(s *mem.Store, b *hubBackup) bool {
	for _, value := range s.Bookmarks("hub/" + hubName) {
		var position struct {
			ResourceVersion int `json:"resourceVersion,string"`
		}
		if err := json.Unmarshal(value, &position); err != nil {
			panic(err)
		}
		return position.ResourceVersion > b.rv
	}
	return false
}

// unsent returns the number of records in all delivery queues.
func (n *node) unsent() float64 {
	families, err := n.registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		if f.GetName() == "hawser_broker_delivery_queue_records" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	panic("the broker has no gauge of its delivery queues")
}
