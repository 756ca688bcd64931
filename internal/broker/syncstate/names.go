package syncstate

import (
	"context"
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

// Names binds cluster names to cluster uids. An agent sends the uid of its cluster's namespace kube-system. The
// first uid is bound to the name. Agents with another uid are rejected until an operator unbinds the name. When
// the name is bound to another uid, the subscriptions of the replaced cluster's agents end. Their events that
// are not committed yet are dropped: they are about objects of the replaced cluster.
type Names struct {
	cfg     *settings.Config
	agents  Agents
	refused prometheus.Counter

	// mu is held while a cluster's uid is read and bound, so that both are one step.
	mu sync.Mutex
	// listing guards quarantined, so that an inspection does not wait for the disk.
	listing     sync.Mutex
	quarantined map[store.Scope]quarantinedCluster
}

// quarantinedCluster is a cluster whose agent used the name of another cluster.
type quarantinedCluster struct {
	uid string
	at  time.Time
}

// Bind checks the uid that an agent sent, "" if it sent none, binds it if the name is free, and calls add. add
// runs under the same lock: no agent of a replaced cluster can subscribe after its name was bound again.
func (n *Names) Bind(ctx context.Context, scope store.Scope, uid string, add func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	known, ok := n.cfg.Store.Subscribed(scope.DataType, scope.Cluster)
	if ok && known != "" && uid != "" && known != uid {
		n.refused.Inc()
		n.quarantine(scope, uid)
		n.cfg.Log.Warn("agent rejected: cluster name is bound to another cluster uid", "cluster", scope.Cluster, "known_uid", known, "uid", uid)
		return anotherCluster(scope.Cluster)
	}
	if !ok || known == "" && uid != "" {
		if err := n.give(ctx, scope, uid); err != nil {
			return err
		}
	}
	return add()
}

// give binds a name to the cluster with this uid. The caller holds mu.
func (n *Names) give(ctx context.Context, scope store.Scope, uid string) error {
	if err := n.cfg.Store.MarkSubscribed(ctx, scope.DataType, scope.Cluster, uid); err != nil {
		return request.Store(err)
	}
	if uid != "" {
		n.forget(scope.Cluster)
		n.agents.End(scope, uid, anotherCluster(scope.Cluster))
	}
	return nil
}

// Rename frees a name for another cluster. That is the quarantined cluster if its agent still retries,
// otherwise the first cluster that subscribes. It returns the uid of the quarantined cluster, or "".
func (n *Names) Rename(ctx context.Context, cluster string) (uid string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	waiting := map[store.Scope]string{}
	for _, d := range codec.DataTypes() {
		scope := store.Scope{DataType: d, Cluster: cluster}
		if s := n.quarantinedAt(scope); s != "" {
			waiting[scope], uid = s, s
		}
	}
	if err := n.cfg.Store.UnbindCluster(ctx, cluster); err != nil {
		return "", request.Store(err)
	}
	n.forget(cluster)
	for at, uid := range waiting {
		if err := n.give(ctx, at, uid); err != nil {
			return "", err
		}
	}
	return uid, nil
}

func (n *Names) quarantine(scope store.Scope, uid string) {
	n.listing.Lock()
	defer n.listing.Unlock()
	n.quarantined[scope] = quarantinedCluster{uid: uid, at: n.cfg.Now()}
}

// quarantinedAt returns the uid of the cluster that is quarantined under a name. It returns "" if there is
// none, or if its agent has stopped trying.
func (n *Names) quarantinedAt(scope store.Scope) string {
	n.listing.Lock()
	defer n.listing.Unlock()
	if s, ok := n.quarantined[scope]; ok && n.cfg.Now().Sub(s.at) < quarantineMemory {
		return s.uid
	}
	delete(n.quarantined, scope)
	return ""
}

// forget ends the quarantine for a name.
func (n *Names) forget(cluster string) {
	n.listing.Lock()
	defer n.listing.Unlock()
	for scope := range n.quarantined {
		if scope.Cluster == cluster {
			delete(n.quarantined, scope)
		}
	}
}

// scopes adds the scopes with a quarantined cluster.
func (n *Names) scopes(all map[store.Scope]struct{}) {
	n.listing.Lock()
	defer n.listing.Unlock()
	for scope := range n.quarantined {
		all[scope] = struct{}{}
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
