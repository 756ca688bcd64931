package admin

import (
	"context"
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/feed"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// ListClusters sends a page of what is known of each cluster, by name.
func (a *Admin) ListClusters(ctx context.Context, r *hawserv1.ListClustersRequest, send func(*hawserv1.ListClustersResponse) error) error {
	more := func(token string) *hawserv1.ListClustersResponse {
		return &hawserv1.ListClustersResponse{NextPageToken: token}
	}
	var places []position
	return list(ctx, a, r.GetPageToken(), reader[hawserv1.ListClustersResponse]{send, more}, func(p *part[hawserv1.ListClustersResponse]) error {
		if places == nil {
			places = a.places(r.GetCluster())
		}
		for _, at := range behind(places, p.after) {
			if p.full() {
				return nil
			}
			p.add(at, a.describe(at.place, a.agents.Agents(at.place.Cluster)))
		}
		p.done = true
		return nil
	})
}

// describe is one cluster. Of several agents the one that is furthest behind counts.
func (a *Admin) describe(place store.Scope, agents []feed.Agent) *hawserv1.ListClustersResponse {
	head := a.cfg.Store.ClusterHead(place.DataType, place.Cluster)
	uid, known := a.cfg.Store.Subscribed(place.DataType, place.Cluster)
	c := &hawserv1.ListClustersResponse{
		Cluster: place.Cluster, DataType: place.DataType.String(), Uid: uid, Known: known,
		Live: head.Digest.Count, Tombstones: uint64(head.Tombstones), Revision: head.SpecRevision,
		ComparedSources: a.claims.Sources.Vouching(place),
	}
	agents = slices.DeleteFunc(agents, func(s feed.Agent) bool { return s.Place != place })
	c.Subscriptions = uint32(min(len(agents), math.MaxUint32))
	for i, s := range agents {
		c.Pending = max(c.Pending, uint64(s.Pending))
		if s.Transport != "" && !slices.Contains(c.Transports, s.Transport) {
			c.Transports = append(c.Transports, s.Transport)
		}
		if i == 0 {
			c.Since, c.AckedRevision, c.Sync = timestamppb.New(s.Since), s.Acked, syncOf(s, head)
			continue
		}
		c.AckedRevision = min(c.AckedRevision, s.Acked)
		c.Sync = moreSevere(c.Sync, syncOf(s, head))
	}
	return c
}

func syncOf(s feed.Agent, head store.ClusterHead) hawserv1.SyncState {
	switch {
	case s.Proof == feed.Unproven:
		return hawserv1.SyncState_SYNC_STATE_UNSPECIFIED
	case s.Proof == feed.Differs:
		return hawserv1.SyncState_SYNC_STATE_DIFFERS
	case s.Acked < head.SpecRevision || s.Pending > 0:
		return hawserv1.SyncState_SYNC_STATE_BEHIND
	}
	return hawserv1.SyncState_SYNC_STATE_IN_SYNC
}

// moreSevere is what is shown of two agents: what differs, then what is not known.
func moreSevere(x, y hawserv1.SyncState) hawserv1.SyncState {
	for _, s := range []hawserv1.SyncState{
		hawserv1.SyncState_SYNC_STATE_DIFFERS, hawserv1.SyncState_SYNC_STATE_UNSPECIFIED, hawserv1.SyncState_SYNC_STATE_BEHIND,
	} {
		if x == s || y == s {
			return s
		}
	}
	return x
}

// ForgetCluster forgets which cluster goes by a name and, where asked for, all its works. The
// name is that of the cluster whose agent was refused then.
func (a *Admin) ForgetCluster(ctx context.Context, by identity.Identity, r *hawserv1.ForgetClusterRequest) (*hawserv1.ForgetClusterResponse, error) {
	cluster := r.GetCluster()
	if err := required("cluster", cluster); err != nil {
		return nil, err
	}
	known := func(d codec.DataType) bool { return slices.Contains(a.cfg.Store.Clusters(d), cluster) }
	if !slices.ContainsFunc(codec.DataTypes(), known) {
		return nil, call.NotFound("cluster "+cluster+" is not known", "hawser get clusters shows those that are")
	}
	resp := &hawserv1.ForgetClusterResponse{}
	if r.GetWorks() {
		n, err := a.forgetWorks(ctx, by, cluster)
		resp.Works = uint64(n)
		if err != nil {
			return resp, err
		}
	}
	uid, err := a.claims.Names.Rename(ctx, cluster)
	if err != nil {
		return resp, err
	}
	a.cfg.Log.Info("an operator let another cluster take over a name", "operator", by.Name, "cluster", cluster, "uid", uid, "works_given_up", resp.GetWorks())
	return resp, nil
}

// forgetWorks gives all works of a cluster up, graves aside: their sources have been told
// already.
func (a *Admin) forgetWorks(ctx context.Context, by identity.Identity, cluster string) (n int, err error) {
	for _, d := range codec.DataTypes() {
		place := store.Scope{DataType: d, Cluster: cluster}
		var ops []store.Op
		err := a.cfg.Store.Scan(ctx, place, func(m store.Meta) error {
			if m.State != store.Grave {
				ops = append(ops, store.Op{Kind: store.Forget, Key: m.Key, At: a.cfg.Now()})
				// What vanishes is not its source's word that it does not exist.
				a.claims.Sources.Revoke(place, m.Owner)
			}
			return nil
		})
		if err != nil {
			return n, call.Store(err)
		}
		outcomes, err := a.commit(ctx, by, ops)
		n += len(outcomes)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// backuper is a store that can send a consistent copy of everything acknowledged
// so far, in parts: one file after the other, with its path in the first part of
// each. data is valid during the call of send.
type backuper interface {
	Backup(ctx context.Context, send func(path string, data []byte) error) error
}

// Backup sends a copy of the store, file by file. There is one at a time.
func (a *Admin) Backup(ctx context.Context, _ *hawserv1.BackupRequest, send func(*hawserv1.BackupResponse) error) error {
	s, ok := a.cfg.Store.(backuper)
	if !ok {
		return call.Invalid("", "this broker's store makes no backups", "copy it with the tools of its database")
	}
	err := s.Backup(ctx, func(path string, data []byte) error {
		if err := send(&hawserv1.BackupResponse{Path: path, Data: data}); err != nil {
			return &transport.Error{Code: transport.CodeUnavailable, Message: "the stream broke", Err: err}
		}
		return nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return call.CallerGone(ctx)
	default:
		return call.Store(err)
	}
}
