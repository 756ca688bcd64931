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

// quarantineMemory is for how long a quarantined cluster that stays away is remembered;
// one that is refused comes back every few minutes.
const quarantineMemory = time.Hour

// Names knows which cluster has a name. An agent says the uid of its cluster's namespace
// kube-system. The first that does gives its name to that cluster, and agents of another
// one are refused under it until an operator forgets the first. From the moment on at
// which another cluster has the name, whatever agents of the one before still say is about
// objects that nobody asks for: their subscriptions end, and with them what they published
// and the broker has not committed yet.
type Names struct {
	cfg     *settings.Config
	agents  Agents
	refused prometheus.Counter

	// mu makes looking a cluster's uid up and noting it one step.
	mu sync.Mutex
	// listing guards quarantined, so that whoever looks does not wait for a disk.
	listing     sync.Mutex
	quarantined map[store.Scope]quarantinedCluster
}

// quarantinedCluster is a cluster that came under the name of another one.
type quarantinedCluster struct {
	uid string
	at  time.Time
}

// Bind lets an agent of the cluster with this uid in, "" if it does not say, and calls add:
// no agent of the cluster before slips in behind the one that gets its name.
func (n *Names) Bind(ctx context.Context, scope store.Scope, uid string, add func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	known, ok := n.cfg.Store.Subscribed(scope.DataType, scope.Cluster)
	if ok && known != "" && uid != "" && known != uid {
		n.refused.Inc()
		n.quarantine(scope, uid)
		n.cfg.Log.Warn("agent of another cluster under a known name refused", "cluster", scope.Cluster, "known_uid", known, "uid", uid)
		return anotherCluster(scope.Cluster)
	}
	if !ok || known == "" && uid != "" {
		if err := n.give(ctx, scope, uid); err != nil {
			return err
		}
	}
	return add()
}

// give gives a name to the cluster with this uid. The caller holds mu.
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

// Rename lets another cluster have a name: the one whose agent was refused last, if it
// still comes, or else the first that comes.
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

// quarantinedAt returns the uid of the cluster whose agent was refused under a name, "" if
// there is none, or it stays away.
func (n *Names) quarantinedAt(scope store.Scope) string {
	n.listing.Lock()
	defer n.listing.Unlock()
	if s, ok := n.quarantined[scope]; ok && n.cfg.Now().Sub(s.at) < quarantineMemory {
		return s.uid
	}
	delete(n.quarantined, scope)
	return ""
}

// forget ends the quarantine of a name, which may belong to another cluster now.
func (n *Names) forget(cluster string) {
	n.listing.Lock()
	defer n.listing.Unlock()
	for scope := range n.quarantined {
		if scope.Cluster == cluster {
			delete(n.quarantined, scope)
		}
	}
}

// scopes adds the names under which clusters are quarantined.
func (n *Names) scopes(all map[store.Scope]struct{}) {
	n.listing.Lock()
	defer n.listing.Unlock()
	for scope := range n.quarantined {
		all[scope] = struct{}{}
	}
}

// findings is the cluster that is quarantined under a name.
func (n *Names) findings(scope store.Scope) []Discrepancy {
	uid := n.quarantinedAt(scope)
	if uid == "" {
		return nil
	}
	return []Discrepancy{{Cause: Quarantined, Scope: scope, Detail: uid}}
}

// anotherCluster is the answer to an agent whose name is another cluster's.
func anotherCluster(name string) *transport.Error {
	return request.Refused(transport.CodeDenied, "", "another cluster is known under the name "+name,
		"if it was replaced for good, an operator runs: hawser unbind cluster "+name)
}
