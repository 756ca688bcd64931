package memindex

import (
	"cmp"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Summary is what an engine keeps in memory about its records: sums and
// revisions, no keys. With the change feed, which leads from a revision to its
// record, it answers what changed in a scope without a look at the rest. It
// takes some 20 bytes per record.
//
// It is not safe for concurrent use, but for its reading methods among
// themselves.
type Summary struct {
	clusters map[store.Scope]*clusterTally // data type and cluster are set
	owners   map[store.Scope]*ownerTally   // data type and owner are set
}

type clusterTally struct {
	records    int
	head       store.ClusterHead // without the number of tombstones
	specs      revisions         // of the specs in the feed
	tombstones revisions         // those of tombstones
}

type ownerTally struct {
	statuses  revisions // of the statuses in the feed
	confirmed revisions // those of graves that go when their source has seen them
	clusters  map[string]*holding
}

// holding is what one owner has on one cluster.
type holding struct {
	digest     store.Digest
	tombstones int
}

// NewTally returns the tally of an empty store.
func NewTally() *Summary {
	return &Summary{clusters: make(map[store.Scope]*clusterTally), owners: make(map[store.Scope]*ownerTally)}
}

// Load counts a record of a store that is being opened, in any order. Before
// anything else is called, Sort must be.
func (t *Summary) Load(m *store.Meta) { t.move(nil, m, (*revisions).load) }

// Sort ends the loading.
func (t *Summary) Sort() {
	for _, c := range t.clusters {
		c.specs.sort()
		c.tombstones.sort()
	}
	for _, o := range t.owners {
		o.statuses.sort()
		o.confirmed.sort()
	}
}

// Count follows one [store.Write]: old is what was there, n what is; nil for nothing.
func (t *Summary) Count(old, n *store.Meta) {
	if old != nil && n != nil && old.Owner != n.Owner {
		t.move(old, nil, (*revisions).add)
		old = nil
	}
	t.move(old, n, (*revisions).add)
}

// move takes old away and adds n, which have one owner; one of them may be nil.
// Every commit does this for every work: what stays is not touched.
func (t *Summary) move(old, n *store.Meta, add func(*revisions, uint64)) {
	c, o := t.scopes(cmp.Or(n, old))
	replace := func(r *revisions, before, now uint64) {
		if before == now {
			return
		}
		if before != 0 {
			r.remove(before)
		}
		if now != 0 {
			add(r, now)
		}
	}
	oldSpec, oldStatus := store.Entries(old)
	spec, status := store.Entries(n)
	replace(&c.specs, oldSpec, spec)
	replace(&o.statuses, oldStatus, status)
	replace(&c.tombstones, inTombstone(old, oldSpec), inTombstone(n, spec))
	replace(&o.confirmed, seen(old), seen(n))
	o.hold(c, old, n)
	c.head.Failing += live(n, fails) - live(old, fails)
	c.head.Unanswered += live(n, (*store.Meta).AwaitsStatus) - live(old, (*store.Meta).AwaitsStatus)
	if old != nil {
		c.records--
	}
	if n == nil {
		if c.records == 0 { // as after a restart: a source may use names of clusters without end
			delete(t.clusters, store.Scope{DataType: old.DataType, Cluster: old.Cluster})
		}
		return
	}
	c.records++
	if n.State != store.ConfirmedTombstone || old != nil && old.State == store.Live {
		c.head.SpecRevision = max(c.head.SpecRevision, n.SpecRevision)
	}
	if old == nil || old.Sequence != n.Sequence {
		c.head.Sequence = higherSequence(c.head.Sequence, n.Sequence)
	}
}

// seen is the revision at which the source of m has seen that it is gone, 0 where
// that does not end the record.
func seen(m *store.Meta) uint64 {
	if m == nil || !m.CollectableWhenAcked() {
		return 0
	}
	return m.StatusRevision
}

// live is 1 if m is a live record of which is says so, else 0.
func live(m *store.Meta, is func(*store.Meta) bool) int {
	if m == nil || m.State != store.Live || !is(m) {
		return 0
	}
	return 1
}

// fails reports whether the status of m says that the work is not applied, or not available.
func fails(m *store.Meta) bool { return m.Failing }

// inTombstone is revision, or what else is counted, if m is a tombstone, else 0.
func inTombstone(m *store.Meta, revision uint64) uint64 {
	if m == nil || m.State != store.Tombstone {
		return 0
	}
	return revision
}

// hold keeps the digests, of the cluster and of what o has on it, and the
// number of o's tombstones there. What waits behind a tombstone is what its
// owner has already, and the cluster has not.
func (o *ownerTally) hold(c *clusterTally, old, n *store.Meta) {
	if old != nil && n != nil && old.State == n.State && (old.State != store.Live || old.Tag == n.Tag) && old.Queued == n.Queued {
		return
	}
	cluster := cmp.Or(n, old).Cluster
	h := o.clusters[cluster]
	if h == nil {
		h = &holding{}
		o.clusters[cluster] = h
	}
	h.digests(&c.head.Digest, old, (*store.Digest).Remove)
	h.digests(&c.head.Digest, n, (*store.Digest).Add)
	h.tombstones += int(inTombstone(n, 1)) - int(inTombstone(old, 1))
	if h.digest.Count == 0 && h.tombstones == 0 {
		delete(o.clusters, cluster)
	}
}

// digests counts m, which may be nil, in the digests of its cluster and its
// owner.
func (h *holding) digests(cluster *store.Digest, m *store.Meta, count func(*store.Digest, codec.DigestSum)) {
	if m == nil {
		return
	}
	if m.State == store.Live {
		hash := codec.RecordHash(m.ResourceID, m.Tag)
		count(cluster, hash)
		count(&h.digest, hash)
	}
	if w := m.Queued; w != nil && !w.Deleting {
		count(&h.digest, codec.RecordHash(w.ResourceID, w.Tag))
	}
}

// scopes returns those that a record belongs to, new ones where there are none.
func (t *Summary) scopes(m *store.Meta) (*clusterTally, *ownerTally) {
	of := store.Scope{DataType: m.DataType, Cluster: m.Cluster}
	c := t.clusters[of]
	if c == nil {
		c = &clusterTally{}
		t.clusters[of] = c
	}
	of = store.Scope{DataType: m.DataType, Owner: m.Owner}
	o := t.owners[of]
	if o == nil {
		o = &ownerTally{clusters: make(map[string]*holding)}
		t.owners[of] = o
	}
	return c, o
}

// higherSequence returns the higher one of two ids; b does not count when an
// agent could not go on from it.
func higherSequence(a, b string) string {
	if b == "" || new(codec.Sequencer).Observe(b) != nil {
		return a
	}
	if newer, err := codec.CompareSequence(a, b); err != nil || !newer {
		return a
	}
	return b
}

// clustersOf adds to set the names of the clusters that have records other than graves.
func (t *Summary) clustersOf(dt codec.DataType, set map[string]struct{}) {
	for s, c := range t.clusters {
		if s.DataType == dt && (c.head.Digest.Count > 0 || c.tombstones.count() > 0) {
			set[s.Cluster] = struct{}{}
		}
	}
}

// cluster returns what is known of a cluster; of one without records nothing is.
func (t *Summary) cluster(dt codec.DataType, cluster string) *clusterTally {
	return cmp.Or(t.clusters[store.Scope{DataType: dt, Cluster: cluster}], &clusterTally{})
}

// owner is the same for an owner.
func (t *Summary) owner(dt codec.DataType, owner string) *ownerTally {
	return cmp.Or(t.owners[store.Scope{DataType: dt, Owner: owner}], &ownerTally{})
}

// ClusterHead as in [store.Store].
func (t *Summary) ClusterHead(dt codec.DataType, cluster string) store.ClusterHead {
	c := t.cluster(dt, cluster)
	h := c.head
	h.Tombstones = c.tombstones.count()
	return h
}

// Since returns the revisions above after of what changed in a scope that
// [store.CheckSince] allows, ascending: of the specs of its cluster, or of the
// statuses of its owner. It costs what it returns. If the scope names both, the
// other one is for the caller to compare.
func (t *Summary) Since(s store.Scope, part store.Part, after uint64) []uint64 {
	if part == store.SpecPart {
		return t.cluster(s.DataType, s.Cluster).specs.after(after)
	}
	return t.owner(s.DataType, s.Owner).statuses.after(after)
}

// Tombstones returns the spec revisions of a cluster's tombstones, ascending.
func (t *Summary) Tombstones(dt codec.DataType, cluster string) []uint64 {
	return t.cluster(dt, cluster).tombstones.after(0)
}

// ConfirmedTombstones returns the status revisions of an owner's graves that go when it has seen
// them and are not above upTo, ascending, at most limit.
func (t *Summary) ConfirmedTombstones(dt codec.DataType, owner string, upTo uint64, limit int) []uint64 {
	return t.owner(dt, owner).confirmed.upTo(upTo, limit)
}

// Digests as in [store.Store].
func (t *Summary) Digests(dt codec.DataType, owner string) []codec.ClusterDigest {
	o := t.owner(dt, owner)
	out := make([]codec.ClusterDigest, 0, len(o.clusters))
	for cluster, h := range o.clusters {
		out = append(out, codec.ClusterDigest{Cluster: cluster, Digest: h.digest})
	}
	slices.SortFunc(out, func(a, b codec.ClusterDigest) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return out
}

// revisions is an ascending list of revisions, 8 bytes each. New ones are higher
// than all before, so adding appends; what is removed stays as a hole until
// there are too many of them.
type revisions struct {
	list  []uint64 // twice the revision, plus one for a hole
	holes int
}

// fewHoles are not worth moving the others.
const fewHoles = 16

func (r *revisions) count() int { return len(r.list) - r.holes }

// find returns where a revision is, or would be.
func (r *revisions) find(revision uint64) (i int, ok bool) {
	return slices.BinarySearchFunc(r.list, revision, func(e, revision uint64) int { return cmp.Compare(e>>1, revision) })
}

// add puts a revision into its place.
func (r *revisions) add(revision uint64) {
	if n := len(r.list); n == 0 || r.list[n-1]>>1 < revision {
		r.list = append(r.list, revision<<1)
		return
	}
	i, ok := r.find(revision)
	switch {
	case !ok:
		r.list = slices.Insert(r.list, i, revision<<1)
	case r.list[i]&1 != 0: // it is back
		r.list[i] &^= 1
		r.holes--
	}
}

// load adds a revision without regard to order; sort puts that right.
func (r *revisions) load(revision uint64) { r.list = append(r.list, revision<<1) }

func (r *revisions) sort() {
	slices.Sort(r.list)
	r.list = slices.Clip(r.list)
}

func (r *revisions) remove(revision uint64) {
	i, ok := r.find(revision)
	if !ok || r.list[i]&1 != 0 {
		return
	}
	r.list[i] |= 1
	if r.holes++; r.holes <= fewHoles+len(r.list)/4 {
		return
	}
	r.list = slices.DeleteFunc(r.list, func(e uint64) bool { return e&1 != 0 })
	r.holes = 0
	if len(r.list) < cap(r.list)/4 {
		r.list = slices.Clone(r.list)
	}
}

// after returns the revisions above one.
func (r *revisions) after(revision uint64) []uint64 {
	i, ok := r.find(revision)
	if ok {
		i++
	}
	out := make([]uint64, 0, len(r.list)-i)
	for _, e := range r.list[i:] {
		if e&1 == 0 {
			out = append(out, e>>1)
		}
	}
	return out
}

// upTo returns the lowest revisions that are not above one, at most limit.
func (r *revisions) upTo(revision uint64, limit int) []uint64 {
	var out []uint64
	for _, e := range r.list {
		if e>>1 > revision || len(out) >= limit {
			break
		}
		if e&1 == 0 {
			out = append(out, e>>1)
		}
	}
	return out
}
