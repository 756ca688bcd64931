package sim

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/pkg/codec"
)

// The shape with several brokers over one store. A commit is one transaction under the lock of the database, so it
// reads the state that all earlier commits left. What a broker keeps in memory is older: it is the state at the last
// commit or read of the change feed by this broker. A client uses another broker at each connection.

// TestReplicaSeeds plays seeds with three brokers over one store.
func TestReplicaSeeds(t *testing.T) { playSeeds(t, replicated, leastSeeds/10, defaultTime/3) }

// openStore opens the store of a broker.
func (w *world) openStore(n *node, newID func() string) *mem.Store {
	if w.shape.replicas == 0 {
		return mem.Open(mem.Options{From: n.backup, NewID: newID})
	}
	if w.database == nil {
		w.database = mem.Open(mem.Options{From: w.broker.backup, NewID: newID})
		if err := w.database.Close(); err != nil { // it is no broker
			panic(err)
		}
	}
	return w.database.Share()
}

func (w *world) startBrokers() {
	w.broker = &node{w: w, name: "broker"}
	w.replicas = []*node{w.broker}
	for i := range max(0, w.shape.replicas-1) {
		w.replicas = append(w.replicas, &node{w: w, name: fmt.Sprint("broker", i+2)})
	}
	for _, n := range w.replicas {
		n.start()
	}
}

// remember brings the memory of a replica to the head of the store.
func (g *gate) remember() {
	if g.w.database != nil {
		g.memory.Store(g.Store.Snapshot())
	}
}

// known returns the memory of the broker.
func (g *gate) known() *mem.Store {
	if m := g.memory.Load(); m != nil {
		return m
	}
	return g.Store
}

// anyBroker returns a broker that a client may dial now, nil if there is none.
func (w *world) anyBroker() *node {
	var list []*node
	for _, n := range w.replicas {
		if n.up && !n.hung {
			list = append(list, n)
		}
	}
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return list[w.rng.IntN(len(list))]
}

// brokerOf returns the broker of a connection.
func (w *world) brokerOf(c *conn) *node {
	if c.at == nil {
		return w.broker
	}
	return c.at
}

// isHung reports whether a publish waits for a broker that hangs.
func (w *world) isHung(c *call) bool { return w.brokerOf(c.conn).hung }

// store returns the store of a broker that is up, if there is one.
func (w *world) store() *mem.Store {
	for _, n := range w.replicas {
		if n.up {
			return n.gate.Store
		}
	}
	return w.broker.gate.Store
}

// unsent returns the number of records in all delivery queues.
func (w *world) unsent() (sum float64) {
	for _, n := range w.replicas {
		sum += n.unsent()
	}
	return sum
}

// hang stops a broker until resume. Its clients notice that it is silent. It does not notice that they leave.
func (n *node) hang() {
	n.hung = true
	for _, l := range n.w.links {
		if l.conn != nil && n.w.brokerOf(l.conn) == n {
			l.leave(unavailable("the broker is silent"))
		}
	}
}

// onReplica is an operation on one of the brokers for which it is possible.
func onReplica(possible func(n *node) bool, do func(n *node, b uint32)) func(*world, uint32, uint32) string {
	return func(w *world, a, b uint32) string {
		var list []*node
		for _, n := range w.replicas {
			if possible(n) {
				list = append(list, n)
			}
		}
		if len(list) == 0 {
			return ""
		}
		n := list[int(a)%len(list)]
		do(n, b)
		return n.name
	}
}

// restartDatabase ends all brokers, and begins another incarnation of the store.
func restartDatabase(w *world, _, _ uint32) string {
	if w.database == nil {
		return ""
	}
	w.endAll()
	w.broker.backup, w.database = w.database.Backup(), nil
	return "with everything"
}

// endAll ends all brokers.
func (w *world) endAll() {
	for _, n := range w.replicas {
		if n.up {
			n.crash(false)
		}
	}
}

func running(n *node) bool { return n.up && !n.hung }

// oneBroker are the operations that need one broker with a store of its own.
var oneBroker = []string{"crash broker", "drain broker", "start broker", "disk of the broker", "copy broker's store", "restore broker's store", "lose broker's store"}

var replicated = &shape{settles: settleTime, replicas: 3, themes: [][]string{
	{"hang broker", "broker goes on", "hub update", "hub delete", "cut connection", "wait"},
	{"hang broker", "broker goes on", "select", "hub delete", "restart hub source"},
	{"crash broker", "start broker", "hub create", "hub delete", "restart agent"},
	{"restart database", "start broker", "hub update", "hub delete", "leave ghost"},
	{"leave ghost", "reap ghosts", "cut connection", "hub update", "hub delete", "select"},
}, operations: append(slices.DeleteFunc(slices.Clone(operations), func(o operation) bool {
	return slices.Contains(oneBroker, o.name)
}),
	operation{"crash broker", 4, onReplica(func(n *node) bool { return n.up }, func(n *node, b uint32) { n.crash(b%2 == 0) })},
	operation{"drain broker", 3, onReplica(running, func(n *node, _ uint32) { n.drain() })},
	operation{"start broker", 12, onReplica(func(n *node) bool { return !n.up }, func(n *node, _ uint32) { n.start() })},
	operation{"hang broker", 5, onReplica(running, func(n *node, _ uint32) { n.hang() })},
	operation{"broker goes on", 8, onReplica(func(n *node) bool { return n.hung }, func(n *node, _ uint32) { n.hung = false })},
	operation{"restart database", 2, restartDatabase},
)}

// The memory of a broker; see [store.Replica].

// Reach implements [store.Store].
func (g *gate) Reach(ctx context.Context) error {
	g.remember()
	return g.Store.Reach(ctx)
}

// Head implements [store.Store].
func (g *gate) Head() store.Head { return g.known().Head() }

// ClusterHead implements [store.Store].
func (g *gate) ClusterHead(dt codec.DataType, cluster string) store.ClusterHead {
	return g.known().ClusterHead(dt, cluster)
}

// Clusters implements [store.Store].
func (g *gate) Clusters(dt codec.DataType) []string { return g.known().Clusters(dt) }

// Digests implements [store.Store].
func (g *gate) Digests(dt codec.DataType, owner string) []codec.ClusterDigest {
	return g.known().Digests(dt, owner)
}

// Rows implements [store.Store].
func (g *gate) Rows(of quota.Scope, after string, limit int) []quota.Row {
	return g.known().Rows(of, after, limit)
}

// ValidCursor implements [store.Store].
func (g *gate) ValidCursor(c store.Cursor) bool { return g.known().ValidCursor(c) }

// Subscribed implements [store.Store].
func (g *gate) Subscribed(dt codec.DataType, cluster string) (string, bool) {
	return g.known().Subscribed(dt, cluster)
}

// Bookmark implements [store.Store].
func (g *gate) Bookmark(name string) (store.Bookmark, bool) { return g.known().Bookmark(name) }

// Bookmarks implements [store.Store].
func (g *gate) Bookmarks(prefix string) map[string][]byte { return g.known().Bookmarks(prefix) }
