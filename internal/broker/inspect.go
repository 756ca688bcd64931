package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// ListClusters sends what is known of each cluster, sorted by name.
func (b *Broker) ListClusters(ctx context.Context, r *hawserv1.ListClustersRequest, send func(*hawserv1.ListClustersResponse) error) error {
	streams := map[place][]agentStream{}
	for _, s := range b.agentStreams(r.GetCluster()) {
		streams[s.place] = append(streams[s.place], s)
	}
	return b.eachCluster(ctx, r.GetCluster(), func(d codec.DataType, name string) error {
		p := place{dataType: d, cluster: name}
		return send(b.describe(p, streams[p]))
	})
}

// describe is one cluster. Of several agents the one that is furthest behind
// counts.
func (b *Broker) describe(p place, streams []agentStream) *hawserv1.ListClustersResponse {
	head := b.store.ClusterHead(p.dataType, p.cluster)
	uid, known := b.store.Subscribed(p.dataType, p.cluster)
	c := &hawserv1.ListClustersResponse{
		Cluster: p.cluster, DataType: p.dataType.String(), Uid: uid, Known: known,
		Subscriptions: uint32(min(len(streams), math.MaxUint32)),
		Live:          head.Digest.Count, Tombstones: uint64(head.Tombstones), Revision: head.SpecRevision,
		ComparedSources: b.comparisons.at(p),
	}
	for i, s := range streams {
		c.Pending = max(c.Pending, uint64(s.pending))
		if i == 0 {
			c.Since, c.AckedRevision, c.Sync = timestamppb.New(s.since), s.acked, syncOf(s, head)
			continue
		}
		c.AckedRevision = min(c.AckedRevision, s.acked)
		c.Sync = worse(c.Sync, syncOf(s, head))
	}
	return c
}

func syncOf(s agentStream, head store.ClusterHead) hawserv1.SyncState {
	switch {
	case s.proof == unproven:
		return hawserv1.SyncState_SYNC_STATE_UNSPECIFIED
	case s.proof == differs:
		return hawserv1.SyncState_SYNC_STATE_DIFFERS
	case s.behind(head) || s.pending > 0:
		return hawserv1.SyncState_SYNC_STATE_BEHIND
	}
	return hawserv1.SyncState_SYNC_STATE_IN_SYNC
}

// worse is what is shown of two agents: what differs, then what is not known.
func worse(x, y hawserv1.SyncState) hawserv1.SyncState {
	for _, s := range []hawserv1.SyncState{
		hawserv1.SyncState_SYNC_STATE_DIFFERS, hawserv1.SyncState_SYNC_STATE_UNSPECIFIED, hawserv1.SyncState_SYNC_STATE_BEHIND,
	} {
		if x == s || y == s {
			return s
		}
	}
	return x
}

// ListOrphans sends what does not fit together, sorted by cluster.
func (b *Broker) ListOrphans(ctx context.Context, r *hawserv1.ListOrphansRequest, send func(*hawserv1.ListOrphansResponse) error) error {
	for _, p := range b.ledger.places(r.GetCluster()) {
		found, omitted := b.ledger.at(p, b.cfg.Now())
		for _, f := range found {
			if err := ctx.Err(); err != nil {
				return err
			}
			o := &hawserv1.ListOrphansResponse{
				Cluster: p.cluster, ResourceId: f.resourceID, Name: f.name, Source: f.source, Revision: f.revision, Detail: f.detail,
			}
			if err := b.explain(ctx, f, o); err != nil {
				return err
			}
			if err := send(o); err != nil {
				return err
			}
		}
		if omitted > 0 {
			err := send(&hawserv1.ListOrphansResponse{
				Cluster: p.cluster, Cause: hawserv1.OrphanCause_ORPHAN_CAUSE_NO_RECORD,
				Detail: fmt.Sprintf("and %d more, which are counted and not named", omitted),
			})
			if err != nil {
				return err
			}
		}
	}
	return b.listUnexplained(r.GetCluster(), b.cfg.Now(), send)
}

// Resolve has the agent of a cluster remove or adopt what no work explains. What
// became of it the agent tells by what it lists next.
func (b *Broker) Resolve(_ context.Context, by identity.Identity, r *hawserv1.ResolveRequest) (*hawserv1.ResolveResponse, error) {
	if err := required("cluster", r.GetCluster(), "uid", r.GetUid()); err != nil {
		return nil, err
	}
	name, err := b.resolveUnexplained(by, r.GetCluster(), r.GetUid(), r.GetAdopt())
	return &hawserv1.ResolveResponse{Name: name}, err
}

// explain completes what is sent of a finding.
func (b *Broker) explain(ctx context.Context, f finding, o *hawserv1.ListOrphansResponse) error {
	switch f.cause {
	case causeOrphan:
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_NO_RECORD
		o.Detail = "the agent holds it, the broker knows nothing of it"
	case causeAhead:
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_AHEAD
		o.Detail = "the agent holds a newer version, its source has to publish it again"
		switch r, err := b.store.Get(ctx, store.Key{DataType: f.dataType, Cluster: f.cluster, ResourceID: f.resourceID}); {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return storeError(err)
		default:
			o.Name, o.Source, o.Revision = r.Name, r.Owner, r.SpecRevision
		}
	case causeWithheld:
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_WITHHELD
	case causeStranger:
		o.Cause = hawserv1.OrphanCause_ORPHAN_CAUSE_STRANGER
		o.Detail = "cluster " + f.detail + " comes under this name, which is another cluster's"
	}
	return nil
}

// Approve deletes works that their source withholds.
func (b *Broker) Approve(ctx context.Context, by identity.Identity, r *hawserv1.ApproveRequest) (*hawserv1.ApproveResponse, error) {
	if err := required("source", r.GetSource(), "cluster", r.GetCluster()); err != nil {
		return nil, err
	}
	works := make([]codec.WithheldDeletion, 0, len(r.GetWorks()))
	for _, w := range r.GetWorks() {
		works = append(works, codec.WithheldDeletion{ResourceID: w.GetResourceId(), Name: w.GetName(), Revision: w.GetRevision()})
	}
	p := place{dataType: codec.ManifestBundles, cluster: r.GetCluster()}
	if err := b.approve(ctx, by, p, r.GetSource(), works); err != nil {
		return nil, err
	}
	return &hawserv1.ApproveResponse{}, nil
}

// eachCluster calls f for the cluster named, or for all that are known.
func (b *Broker) eachCluster(ctx context.Context, name string, f func(codec.DataType, string) error) error {
	for _, d := range codec.DataTypes() {
		for _, c := range b.store.Clusters(d) {
			if name != "" && c != name {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := f(d, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// ListWorks sends the records of a cluster, a source, or both, sorted by
// cluster and name. What is read from the store of one cluster is let go before
// it is sent, however slowly it is received.
func (b *Broker) ListWorks(ctx context.Context, r *hawserv1.ListWorksRequest, send func(*hawserv1.ListWorksResponse) error) error {
	return b.eachCluster(ctx, r.GetCluster(), func(d codec.DataType, name string) error {
		var metas []store.Meta
		err := b.store.Scan(ctx, store.Scope{DataType: d, Cluster: name, Owner: r.GetSource()}, func(m store.Meta) error {
			metas = append(metas, m)
			return nil
		})
		if err != nil {
			return storeError(err)
		}
		slices.SortStableFunc(metas, func(x, y store.Meta) int { return cmp.Compare(x.Name, y.Name) })
		for i := range metas {
			if err := send(workOf(&metas[i])); err != nil {
				return err
			}
		}
		return nil
	})
}

func workOf(m *store.Meta) *hawserv1.ListWorksResponse {
	w := &hawserv1.ListWorksResponse{
		Cluster: m.Cluster, ResourceId: m.ResourceID, Name: m.Name, Source: m.Owner,
		State: map[store.State]hawserv1.WorkState{
			store.Live:      hawserv1.WorkState_WORK_STATE_LIVE,
			store.Tombstone: hawserv1.WorkState_WORK_STATE_TOMBSTONE,
			store.Grave:     hawserv1.WorkState_WORK_STATE_GRAVE,
		}[m.State],
		Version: m.Version, Revision: m.SpecRevision,
		Reported: m.StatusRevision != 0, ReportedVersion: m.StatusVersion,
	}
	if !m.DeletedAt.IsZero() {
		w.DeletedAt = timestamppb.New(m.DeletedAt)
	}
	if m.Waiting != nil {
		w.WaitingResourceId = m.Waiting.ResourceID
	}
	return w
}

// ForgetWork gives a record up.
func (b *Broker) ForgetWork(ctx context.Context, by identity.Identity, r *hawserv1.ForgetWorkRequest) (*hawserv1.ForgetWorkResponse, error) {
	if err := required("cluster", r.GetCluster(), "resource_id", r.GetResourceId()); err != nil {
		return nil, err
	}
	return &hawserv1.ForgetWorkResponse{}, b.operate(ctx, by, r.GetCluster(), r.GetResourceId(), store.Op{Kind: store.Forget})
}

// Adopt gives a record to another source.
func (b *Broker) Adopt(ctx context.Context, by identity.Identity, r *hawserv1.AdoptRequest) (*hawserv1.AdoptResponse, error) {
	if err := required("cluster", r.GetCluster(), "resource_id", r.GetResourceId(), "source", r.GetSource()); err != nil {
		return nil, err
	}
	op := store.Op{Kind: store.Adopt, Owner: r.GetSource()}
	return &hawserv1.AdoptResponse{}, b.operate(ctx, by, r.GetCluster(), r.GetResourceId(), op)
}

// operate commits what an operator wants done with a work. Where the ids of
// several data types are equal, all are meant.
func (b *Broker) operate(ctx context.Context, by identity.Identity, cluster, id string, op store.Op) error {
	if err := b.hub.closing(); err != nil {
		return err
	}
	op.At = b.cfg.Now()
	found := false
	for _, d := range codec.DataTypes() {
		op.Key = store.Key{DataType: d, Cluster: cluster, ResourceID: id}
		before, err := b.ownerOf(ctx, op.Key)
		if err != nil {
			return err
		}
		outcomes, err := b.commits.commit(ctx, by, op)
		if err != nil {
			return storeError(err)
		}
		switch o := outcomes[0]; o.Verdict {
		case store.Accepted, store.Confirmed:
			found = true
			if before != "" {
				b.revoke(placeOf(op.Key), before)
			}
			b.log.Info("an operator changed a work", "operator", by.Name, "cluster", cluster, "resource_id", id, "change", changeName(op.Kind), "revision", o.Revision)
		case store.Unchanged:
			found = true
		case store.Ignored:
		case store.Invalid:
			return invalid("", o.Detail, "")
		default:
			return internalError(errors.New("no answer to this verdict"))
		}
	}
	if !found {
		return notFound("cluster "+cluster+" has no work "+id, "hawser get works --cluster "+cluster+" shows those it has")
	}
	return nil
}

// ownerOf is the source that owns a record, "" when there is none.
func (b *Broker) ownerOf(ctx context.Context, k store.Key) (string, error) {
	r, err := b.store.Get(ctx, k)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return "", storeError(err)
	}
	return r.Owner, nil
}

func changeName(k store.OpKind) string {
	if k == store.Adopt {
		return "adopt"
	}
	return "forget"
}

// ForgetCluster forgets which cluster goes by a name and, where asked for, all
// its works. The name is that of the cluster whose agent was refused then.
func (b *Broker) ForgetCluster(ctx context.Context, by identity.Identity, r *hawserv1.ForgetClusterRequest) (*hawserv1.ForgetClusterResponse, error) {
	if err := required("cluster", r.GetCluster()); err != nil {
		return nil, err
	}
	known := false
	for _, d := range codec.DataTypes() {
		known = known || slices.Contains(b.store.Clusters(d), r.GetCluster())
	}
	if !known {
		return nil, notFound("cluster "+r.GetCluster()+" is not known", "hawser get clusters shows those that are")
	}
	resp := &hawserv1.ForgetClusterResponse{}
	if r.GetWorks() {
		n, err := b.forgetWorks(ctx, by, r.GetCluster())
		resp.Works = n
		if err != nil {
			return resp, err
		}
	}
	uid, err := b.rename(ctx, r.GetCluster())
	if err != nil {
		return resp, err
	}
	b.log.Info("an operator let another cluster take over a name", "operator", by.Name, "cluster", r.GetCluster(), "uid", uid, "works_given_up", resp.GetWorks())
	return resp, nil
}

// forgetWorks gives all works of a cluster up, graves aside: their sources have
// been told already.
func (b *Broker) forgetWorks(ctx context.Context, by identity.Identity, cluster string) (n uint64, err error) {
	for _, d := range codec.DataTypes() {
		var ops []store.Op
		err := b.store.Scan(ctx, store.Scope{DataType: d, Cluster: cluster}, func(m store.Meta) error {
			if m.State != store.Grave {
				ops = append(ops, store.Op{Kind: store.Forget, Key: m.Key, At: b.cfg.Now()})
				// What vanishes is not its source's word that it does not exist.
				b.revoke(placeOf(m.Key), m.Owner)
			}
			return nil
		})
		if err != nil {
			return n, storeError(err)
		}
		for batch := range slices.Chunk(ops, jobOps) {
			if _, err := b.commits.commit(ctx, by, batch...); err != nil {
				return n, storeError(err)
			}
			n += uint64(len(batch))
		}
	}
	return n, nil
}

// required is the error for the first of the named values that is empty.
func required(namesAndValues ...string) error {
	for i := 0; i < len(namesAndValues); i += 2 {
		if namesAndValues[i+1] == "" {
			return invalid("", "field "+namesAndValues[i]+" is empty", "set it")
		}
	}
	return nil
}

func notFound(message, hint string) *transport.Error {
	return &transport.Error{Code: transport.CodeNotFound, Next: transport.NextStop, Message: message, Hint: hint}
}
