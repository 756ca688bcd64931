package syncstate

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// quarantineMemory is how long a quarantined cluster is listed after its last attempt. A rejected agent retries
// every few minutes.
const quarantineMemory = time.Hour

// quarantinePrefix is the prefix of the bookmarks with the quarantined clusters, which all brokers show.
const quarantinePrefix = "quarantine/"

// Names binds cluster names to cluster uids, in the store. An agent sends the uid of its cluster's namespace kube-system. The
// first uid is bound to the name. Agents with another uid are rejected until an operator unbinds the name. When
// the name is bound to another uid, the subscriptions of the replaced cluster's agents end. Their events that
// are not committed yet are dropped: they are about objects of the replaced cluster.
type Names struct {
	cfg     *settings.Config
	agents  Agents
	refused prometheus.Counter

	// mu is held while a cluster's uid is read and bound, so that both are one step.
	mu sync.Mutex
}

// quarantinedCluster is a cluster whose agent used the name of another cluster. It counts while the name is bound to
// that other cluster.
type quarantinedCluster struct {
	UID   string    `json:"uid"`
	Known string    `json:"known"` // uid of the other cluster
	At    time.Time `json:"at"`
}

// Bind checks the uid that an agent sent, "" if it sent none, binds it if the name is free, and calls add. add
// runs under the same lock: no agent of a replaced cluster can subscribe after its name was bound again.
func (n *Names) Bind(ctx context.Context, scope store.Scope, uid string, add func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	// Most agents come back: their uid is bound already, and nothing is written.
	if known, ok := n.cfg.Store.Subscribed(scope.DataType, scope.Cluster); !ok || uid != "" && known != uid {
		if err := n.give(ctx, scope, uid); err != nil {
			return err
		}
	}
	return add()
}

// give binds a name to the cluster with this uid, if no other uid is bound to it. The caller holds mu.
func (n *Names) give(ctx context.Context, scope store.Scope, uid string) error {
	outcomes, err := n.cfg.Store.Commit(ctx, []store.Op{bindingOp(store.BindCluster, scope, uid)})
	if err != nil {
		return request.Store(err)
	}
	return n.given(ctx, scope, uid, outcomes[0])
}

func bindingOp(kind store.OpKind, scope store.Scope, uid string) store.Op {
	return store.Op{Kind: kind, Key: store.Key{DataType: scope.DataType, Cluster: scope.Cluster}, UID: uid}
}

// given returns the error of an agent whose cluster name is bound to another uid.
func (n *Names) given(ctx context.Context, scope store.Scope, uid string, o store.Outcome) error {
	switch o.Result {
	case store.OwnedByOther:
		known, _ := n.cfg.Store.Subscribed(scope.DataType, scope.Cluster)
		n.refused.Inc()
		if err := n.quarantine(ctx, scope, quarantinedCluster{UID: uid, Known: known, At: n.cfg.Now()}); err != nil {
			return request.Store(err)
		}
		n.cfg.Log.Warn("agent rejected: cluster name is bound to another cluster uid", "cluster", scope.Cluster, "known_uid", known, "uid", uid)
		return anotherCluster(scope.Cluster)
	case store.Invalid:
		return request.Invalid("cluster_name", o.Detail, "name the cluster as the hub does")
	case store.Accepted:
		n.bound(scope, uid) // at once: no event of a replaced cluster may be committed after this
	}
	return nil
}

// bound ends the subscriptions of agents of other clusters.
func (n *Names) bound(scope store.Scope, uid string) {
	if uid != "" {
		n.agents.End(scope, uid, anotherCluster(scope.Cluster))
	}
}

// changed applies a change of a binding, which another broker may have made. The change may be older than the
// present binding, so that one counts.
func (n *Names) changed(c *store.Change) {
	if dt, cluster, ok := store.ParseBinding(c.Key.ResourceID); ok {
		uid, _ := n.cfg.Store.Subscribed(dt, cluster)
		n.bound(store.Scope{DataType: dt, Cluster: cluster}, uid)
	}
}

// Rename frees a name for another cluster. That is the quarantined cluster if its agent still retries,
// otherwise the first cluster that subscribes. It returns the uid of the quarantined cluster, or "".
func (n *Names) Rename(ctx context.Context, cluster string) (uid string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ops []store.Op
	waiting := map[store.Scope]string{}
	for _, d := range codec.DataTypes() {
		scope := store.Scope{DataType: d, Cluster: cluster}
		ops = append(ops, bindingOp(store.UnbindCluster, scope, ""))
		if s := n.quarantinedAt(scope); s != "" {
			waiting[scope], uid = s, s
			ops = append(ops, bindingOp(store.BindCluster, scope, s))
		}
		ops = append(ops, store.Op{Kind: store.SetBookmark, Name: quarantineOf(scope)})
	}
	if _, err := n.cfg.Store.Commit(ctx, ops); err != nil {
		return "", request.Store(err)
	}
	for scope, uid := range waiting {
		n.bound(scope, uid)
	}
	return uid, nil
}

func quarantineOf(scope store.Scope) string {
	return store.ScopedName(quarantinePrefix, scope.DataType, scope.Cluster)
}

// quarantine stores a rejected cluster. While its agent retries, it is stored seldom.
func (n *Names) quarantine(ctx context.Context, scope store.Scope, q quarantinedCluster) error {
	if last := n.last(scope); last.UID == q.UID && last.Known == q.Known && q.At.Sub(last.At) < quarantineMemory/2 {
		return nil
	}
	value, err := json.Marshal(q)
	if err != nil {
		return err
	}
	return store.WriteBookmarks(ctx, n.cfg.Store, map[string][]byte{quarantineOf(scope): value})
}

// last returns the cluster that was rejected last under a name, the zero value if there is none. What a later release
// wrote may be unreadable; then there is none.
func (n *Names) last(scope store.Scope) (q quarantinedCluster) {
	if b, ok := n.cfg.Store.Bookmark(quarantineOf(scope)); !ok || json.Unmarshal(b.Value, &q) != nil {
		return quarantinedCluster{}
	}
	return q
}

// quarantinedAt returns the uid of the cluster that is quarantined under a name. It returns "" if there is
// none, or if its agent has stopped trying.
func (n *Names) quarantinedAt(scope store.Scope) string {
	q := n.last(scope)
	if known, ok := n.cfg.Store.Subscribed(scope.DataType, scope.Cluster); !ok || known != q.Known || n.cfg.Now().Sub(q.At) >= quarantineMemory {
		return ""
	}
	return q.UID
}

// scopes adds the scopes with a quarantined cluster.
func (n *Names) scopes(all map[store.Scope]struct{}) {
	for name := range n.cfg.Store.Bookmarks(quarantinePrefix) {
		if dt, cluster, ok := store.ParseScopedName(quarantinePrefix, name); ok {
			all[store.Scope{DataType: dt, Cluster: cluster}] = struct{}{}
		}
	}
}

// findings returns the quarantined cluster of a scope.
func (n *Names) findings(scope store.Scope) []Discrepancy {
	uid := n.quarantinedAt(scope)
	if uid == "" {
		return nil
	}
	return []Discrepancy{{Cause: Quarantined, Scope: scope, Detail: uid}}
}

// anotherCluster returns the error for an agent whose cluster name is bound to another uid.
func anotherCluster(name string) *transport.Error {
	return transport.Refused(transport.CodeDenied, "", "another cluster is known under the name "+name,
		"if it was replaced for good, an operator runs: hawser unbind cluster "+name)
}
