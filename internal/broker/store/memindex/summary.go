package memindex

import (
	"cmp"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Summary holds sums and revisions of an engine's records, but no keys. The change feed leads from a revision
// to its record. Together with the feed, Summary finds the changed records of a scope without a scan. It needs
// about 20 bytes per record.
//
// It is not safe for concurrent use, except that reading methods may run concurrently.
type Summary struct {
	clusters map[store.Scope]*clusterTally // by data type and cluster
	owners   map[store.Scope]*ownerTally   // by data type and owner
}

type clusterTally struct {
	records    int
	head       store.ClusterHead // Tombstones is not set
	specs      revisions         // of the specs in the feed
	tombstones revisions         // of the tombstones among them
}

type ownerTally struct {
	statuses  revisions // of the statuses in the feed
	confirmed revisions // of the confirmed tombstones that are collectable when acknowledged
	clusters  map[string]*holding
}

// holding is the summary of one owner on one cluster.
type holding struct {
	digest     store.Digest
	tombstones int
}

// NewTally returns the summary of an empty store.
func NewTally() *Summary {
	return &Summary{clusters: make(map[store.Scope]*clusterTally), owners: make(map[store.Scope]*ownerTally)}
}

// Load counts a record while the store is opened, in any order. Call Sort before any other method.
func (t *Summary) Load(m *store.Meta) { t.move(nil, m, (*revisions).load) }

// Sort finishes the loading.
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

// Count applies one [store.Write]: old is the previous record and n the next one. nil means that there is none.
func (t *Summary) Count(old, n *store.Meta) {
	if old != nil && n != nil && old.Owner != n.Owner {
		t.move(old, nil, (*revisions).add)
		old = nil
	}
	t.move(old, n, (*revisions).add)
}

// move replaces old by n, which have the same owner; one of them may be nil. Each commit calls it for each
// work, so it only touches the parts that change.
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
		if c.records == 0 { // the summary is then as after a restart; a source may use any number of cluster names
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

// seen returns the revision whose acknowledgement by the source of m makes m collectable, 0 if there is none.
func seen(m *store.Meta) uint64 {
	if m == nil || !m.CollectableWhenAcked() {
		return 0
	}
	return m.StatusRevision
}

// live returns 1 if m is a live record for which is returns true, otherwise 0.
func live(m *store.Meta, is func(*store.Meta) bool) int {
	if m == nil || m.State != store.Live || !is(m) {
		return 0
	}
	return 1
}

// fails reports whether the status of m reports that the work is not applied, or not available.
func fails(m *store.Meta) bool { return m.Failing }

// inTombstone returns the given number if m is a tombstone, otherwise 0.
func inTombstone(m *store.Meta, revision uint64) uint64 {
	if m == nil || m.State != store.Tombstone {
		return 0
	}
	return revision
}

// hold updates the digests of the cluster and of o on it, and the number of o's tombstones there. A queued spec
// is in the digest of its owner, but not in that of the cluster.
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

// digests applies m, which may be nil, to the digests of its cluster and its owner.
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

// scopes returns the tallies that a record belongs to, and creates them if needed.
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

// higherSequence returns the higher of two sequence ids. It ignores b if no agent can continue from b.
func higherSequence(a, b string) string {
	if b == "" || new(codec.Sequencer).Observe(b) != nil {
		return a
	}
	if newer, err := codec.CompareSequence(a, b); err != nil || !newer {
		return a
	}
	return b
}

// clustersOf adds to set the names of the clusters that have records other than confirmed tombstones.
func (t *Summary) clustersOf(dt codec.DataType, set map[string]struct{}) {
	for s, c := range t.clusters {
		if s.DataType == dt && (c.head.Digest.Count > 0 || c.tombstones.count() > 0) {
			set[s.Cluster] = struct{}{}
		}
	}
}

// cluster returns the tally of a cluster, an empty one if it has no records.
func (t *Summary) cluster(dt codec.DataType, cluster string) *clusterTally {
	return cmp.Or(t.clusters[store.Scope{DataType: dt, Cluster: cluster}], &clusterTally{})
}

// owner returns the tally of an owner, an empty one if it has no records.
func (t *Summary) owner(dt codec.DataType, owner string) *ownerTally {
	return cmp.Or(t.owners[store.Scope{DataType: dt, Owner: owner}], &ownerTally{})
}

// ClusterHead is ClusterHead of [store.Replica].
func (t *Summary) ClusterHead(dt codec.DataType, cluster string) store.ClusterHead {
	c := t.cluster(dt, cluster)
	h := c.head
	h.Tombstones = c.tombstones.count()
	return h
}

// Since returns, ascending, the revisions above after of the changes in a scope that [store.CheckSince] allows.
// These are the specs of its cluster or the statuses of its owner. The cost depends on the number of results.
// If the scope names cluster and owner, the caller must filter by the other of the two.
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

// ConfirmedTombstones returns the status revisions, up to upTo, of an owner's confirmed tombstones that are
// collectable when acknowledged, ascending, at most limit.
func (t *Summary) ConfirmedTombstones(dt codec.DataType, owner string, upTo uint64, limit int) []uint64 {
	return t.owner(dt, owner).confirmed.upTo(upTo, limit)
}

// Digests is Digests of [store.Replica].
func (t *Summary) Digests(dt codec.DataType, owner string) []codec.ClusterDigest {
	o := t.owner(dt, owner)
	out := make([]codec.ClusterDigest, 0, len(o.clusters))
	for cluster, h := range o.clusters {
		out = append(out, codec.ClusterDigest{Cluster: cluster, Digest: h.digest})
	}
	slices.SortFunc(out, func(a, b codec.ClusterDigest) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return out
}

// revisions is an ascending list of revisions, 8 bytes each. A new revision is higher than all others, so it is
// appended. A removed revision leaves a hole; the list is compacted when it has too many holes.
type revisions struct {
	list  []uint64 // twice the revision, plus one for a hole
	holes int
}

// fewHoles is the number of holes below which the list is not compacted.
const fewHoles = 16

func (r *revisions) count() int { return len(r.list) - r.holes }

// find returns the index of a revision, or the index where it belongs.
func (r *revisions) find(revision uint64) (i int, ok bool) {
	return slices.BinarySearchFunc(r.list, revision, func(e, revision uint64) int { return cmp.Compare(e>>1, revision) })
}

// add inserts a revision.
func (r *revisions) add(revision uint64) {
	if n := len(r.list); n == 0 || r.list[n-1]>>1 < revision {
		r.list = append(r.list, revision<<1)
		return
	}
	i, ok := r.find(revision)
	switch {
	case !ok:
		r.list = slices.Insert(r.list, i, revision<<1)
	case r.list[i]&1 != 0: // the revision is added again
		r.list[i] &^= 1
		r.holes--
	}
}

// load appends a revision in any order; sort must follow.
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

// after returns the revisions above revision.
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

// upTo returns the lowest revisions up to revision, at most limit.
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
