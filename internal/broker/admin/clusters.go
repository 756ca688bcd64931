package admin

import (
	"context"
	"math"
	"slices"
	"time"

	ggrpc "google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-io/hawser/internal/broker/agentstatus"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// ListClusters sends a page of clusters, sorted by name.
func (a *Admin) ListClusters(r *hawserv1.ListClustersRequest, s ggrpc.ServerStreamingServer[hawserv1.ListClustersResponse]) error {
	var places []position
	return list(a, r.GetPageToken(), s, func(p *part[hawserv1.ListClustersResponse]) error {
		if places == nil {
			places = a.scopes(r.GetCluster())
		}
		for _, at := range behind(places, p.after) {
			if p.full() {
				return nil
			}
			p.add(at, a.describe(at.scope))
		}
		p.done = true
		return nil
	})
}

// describe returns one cluster. If the cluster has several agents, the row shows the one that is furthest
// behind.
func (a *Admin) describe(scope store.Scope) *hawserv1.ListClustersResponse {
	facts, connected, state := a.peers.Of(scope)
	if state == 0 { // only the hub knows it
		state = agentstatus.NeverConnected
	}
	head := a.cfg.Store.ClusterHead(scope.DataType, scope.Cluster)
	uid, known := a.cfg.Store.Subscribed(scope.DataType, scope.Cluster)
	c := &hawserv1.ListClustersResponse{
		Cluster: scope.Cluster, DataType: scope.DataType.String(), Uid: uid, EverConnected: known,
		Live: head.Digest.Count, Tombstones: uint64(head.Tombstones), Revision: head.SpecRevision,
		SyncedSources: a.sync.Sources.SyncedSources(scope),
		State:         clusterStates[state], Failing: uint64(max(head.Failing, 0)), BrokerSince: timestamppb.New(a.peers.Began()),
		Address: facts.Address, AgentVersion: facts.Version, LastTransport: facts.Transport,
		CertificateNotAfter: timeOf(facts.CertificateEnds), RejectedAt: timeOf(facts.RefusedAt), RejectionReason: facts.Refusal,
	}
	if a.hub != nil {
		f := a.hub.Facts(scope.Cluster)
		c.Registration = &hawserv1.ClusterRegistration{Accepted: f.Accepted, Joined: f.Joined, Available: f.Available, AvailableSince: f.AvailableSince, AvailableMessage: f.AvailableMessage, NotOnHub: f.Absent}
	}
	if facts.RoundTrip > 0 {
		c.RoundTrip = durationpb.New(facts.RoundTrip)
	}
	c.Sync, c.Pending, c.Subscriptions = syncStates[connected.State], uint64(max(connected.Pending, 0)), uint32(min(connected.Subscriptions, math.MaxUint32))
	if connected.State == 0 {
		c.LastSeen, c.Pending = timeOf(facts.Seen), uint64(max(head.Unanswered+head.Tombstones, 0))
		return c
	}
	c.ConnectedAt, c.AckedRevision, c.Transports = timeOf(connected.Since), connected.Acked, connected.Transports
	return c
}

// timeOf converts a time; zero gives nil.
func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

var (
	syncStates = map[agentstatus.State]hawserv1.SyncState{
		agentstatus.InSync: hawserv1.SyncState_SYNC_STATE_IN_SYNC, agentstatus.Syncing: hawserv1.SyncState_SYNC_STATE_SYNCING, agentstatus.OutOfSync: hawserv1.SyncState_SYNC_STATE_OUT_OF_SYNC,
	}
	clusterStates = map[agentstatus.State]hawserv1.ClusterState{
		agentstatus.InSync: hawserv1.ClusterState_CLUSTER_STATE_IN_SYNC, agentstatus.Syncing: hawserv1.ClusterState_CLUSTER_STATE_SYNCING,
		agentstatus.OutOfSync: hawserv1.ClusterState_CLUSTER_STATE_OUT_OF_SYNC, agentstatus.Failing: hawserv1.ClusterState_CLUSTER_STATE_FAILING,
		agentstatus.Unverified: hawserv1.ClusterState_CLUSTER_STATE_UNVERIFIED, agentstatus.Disconnected: hawserv1.ClusterState_CLUSTER_STATE_DISCONNECTED,
		agentstatus.Rejected: hawserv1.ClusterState_CLUSTER_STATE_REJECTED, agentstatus.NeverConnected: hawserv1.ClusterState_CLUSTER_STATE_NEVER_CONNECTED,
	}
)

// UnbindCluster unbinds a cluster name and, if requested, removes all its works. The name is then bound to the
// cluster whose agent was quarantined, if there is one.
func (a *Admin) UnbindCluster(ctx context.Context, r *hawserv1.UnbindClusterRequest) (*hawserv1.UnbindClusterResponse, error) {
	cluster := r.GetCluster()
	if err := required("cluster", cluster); err != nil {
		return nil, err
	}
	known := func(d codec.DataType) bool { return slices.Contains(a.cfg.Store.Clusters(d), cluster) }
	if !slices.ContainsFunc(codec.DataTypes(), known) {
		return nil, request.NotFound("cluster "+cluster+" is not known", "hawser get clusters shows the known ones")
	}
	resp := &hawserv1.UnbindClusterResponse{}
	if r.GetWorks() {
		n, err := a.forgetWorks(ctx, cluster)
		resp.Works = uint64(n)
		if err != nil {
			return resp, err
		}
	}
	uid, err := a.sync.Names.Rename(ctx, cluster)
	if err != nil {
		return resp, err
	}
	a.peers.Forget(cluster)
	a.cfg.Log.Info("an operator unbound a cluster name", "operator", callerOf(ctx).Name, "cluster", cluster, "uid", uid, "works_released", resp.GetWorks())
	return resp, nil
}

// forgetWorks removes all works of a cluster, except confirmed tombstones, because their sources already know
// of the deletion.
func (a *Admin) forgetWorks(ctx context.Context, cluster string) (n int, err error) {
	for _, d := range codec.DataTypes() {
		scope := store.Scope{DataType: d, Cluster: cluster}
		var ops []store.Op
		var owners []string
		err := a.cfg.Store.Scan(ctx, scope, func(m store.Meta) error {
			if m.State != store.ConfirmedTombstone {
				ops = append(ops, store.Op{Kind: store.Forget, Key: m.Key, At: a.cfg.Now()})
				owners = append(owners, m.Owner)
			}
			return nil
		})
		if err != nil {
			return n, request.Store(err)
		}
		// The sources have not reported that the works are deleted, so they are not synced any more.
		var revoked []store.Op
		slices.Sort(owners)
		for _, owner := range slices.Compact(owners) {
			revoked = append(revoked, a.sync.Sources.Revoke(scope, owner)...)
		}
		outcomes, err := a.commit(ctx, append(revoked, ops...))
		n += max(0, len(outcomes)-len(revoked))
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// backuper is a store that can send a consistent copy of everything acknowledged so far. It sends one file
// after the other, in parts. Only the first part of a file has a path. data is valid only during the call of
// send.
type backuper interface {
	Backup(ctx context.Context, send func(path string, data []byte) error) error
}

// Backup sends a copy of the store, file by file. Only one backup runs at a time.
func (a *Admin) Backup(_ *hawserv1.BackupRequest, s ggrpc.ServerStreamingServer[hawserv1.BackupResponse]) error {
	ctx := s.Context()
	from, ok := a.cfg.Store.(backuper)
	if !ok {
		return request.Invalid("", "this broker's store makes no backups", "copy it with the tools of its database")
	}
	err := from.Backup(ctx, func(path string, data []byte) error {
		if err := s.Send(&hawserv1.BackupResponse{Path: path, Data: data}); err != nil {
			return &transport.Error{Code: transport.CodeUnavailable, Message: "the stream broke", Err: err}
		}
		return nil
	})
	return request.StoreCall(ctx, err)
}
