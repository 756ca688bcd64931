package resident

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Tally is what an engine keeps in memory about its records: sums and
// revisions, no keys. With the change feed, which leads from a revision to its
// record, it answers what changed in a scope without a look at the rest. It
// takes some 20 bytes per record.
//
// It is not safe for concurrent use, but for its reading methods among
// themselves.
type Tally struct {
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
	statuses revisions // of the statuses in the feed
	graves   revisions // those of graves that go when their source has seen them
	clusters map[string]*holding
}

// holding is what one owner has on one cluster.
type holding struct {
	digest     store.Digest
	tombstones int
}

// NewTally returns the tally of an empty store.
func NewTally() *Tally {
	return &Tally{clusters: make(map[store.Scope]*clusterTally), owners: make(map[store.Scope]*ownerTally)}
}

// Load counts a record of a store that is being opened, in any order. Before
// anything else is called, Sort must be.
func (t *Tally) Load(m *store.Meta) { t.move(nil, m, (*revisions).load) }

// Sort ends the loading.
func (t *Tally) Sort() {
	for _, c := range t.clusters {
		c.specs.sort()
		c.tombstones.sort()
	}
	for _, o := range t.owners {
		o.statuses.sort()
		o.graves.sort()
	}
}

// Count follows one [store.Write]: old is what was there, n what is; nil for nothing.
func (t *Tally) Count(old, n *store.Meta) {
	if old != nil && n != nil && old.Owner != n.Owner {
		t.move(old, nil, (*revisions).add)
		old = nil
	}
	t.move(old, n, (*revisions).add)
}

// move takes old away and adds n, which have one owner; one of them may be nil.
// Every commit does this for every work: what stays is not touched.
func (t *Tally) move(old, n *store.Meta, add func(*revisions, uint64)) {
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
	replace(&c.tombstones, when(old, store.Tombstone, oldSpec), when(n, store.Tombstone, spec))
	replace(&o.graves, seen(old), seen(n))
	o.hold(c, old, n)
	if old != nil {
		c.records--
	}
	if n == nil {
		return
	}
	c.records++
	c.head.SpecRevision = max(c.head.SpecRevision, n.SpecRevision)
	if old == nil || old.Sequence != n.Sequence {
		c.head.Sequence = higherSequence(c.head.Sequence, n.Sequence)
	}
}

// seen is the revision at which the source of m has seen that it is gone, 0 where
// that does not end the record.
func seen(m *store.Meta) uint64 {
	if m == nil || !m.GoesWhenSeen() {
		return 0
	}
	return m.StatusRevision
}

// when is revision if m is in a state, else 0.
func when(m *store.Meta, s store.State, revision uint64) uint64 {
	if m == nil || m.State != s {
		return 0
	}
	return revision
}

// hold keeps the digests, of the cluster and of what o has on it, and the
// number of o's tombstones there. What waits behind a tombstone is what its
// owner has already, and the cluster has not.
func (o *ownerTally) hold(c *clusterTally, old, n *store.Meta) {
	is := func(m *store.Meta, s store.State) bool { return m != nil && m.State == s }
	if old != nil && n != nil && old.State == n.State && (old.State != store.Live || old.Tag == n.Tag) && old.Waiting == n.Waiting {
		return
	}
	cluster := cmp.Or(n, old).Cluster
	h := o.clusters[cluster]
	if h == nil {
		h = &holding{}
		o.clusters[cluster] = h
	}
	h.digests(&c.head.Digest, old, subtract)
	h.digests(&c.head.Digest, n, add)
	if is(old, store.Tombstone) {
		h.tombstones--
	}
	if is(n, store.Tombstone) {
		h.tombstones++
	}
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
	if w := m.Waiting; w != nil && !w.Deleting {
		count(&h.digest, codec.RecordHash(w.ResourceID, w.Tag))
	}
}

func add(d *store.Digest, hash codec.DigestSum) {
	d.Count++
	d.Sum = d.Sum.Add(hash)
}

func subtract(d *store.Digest, hash codec.DigestSum) {
	d.Count--
	d.Sum = d.Sum.Sub(hash)
}

// scopes returns those that a record belongs to, new ones where there are none.
func (t *Tally) scopes(m *store.Meta) (*clusterTally, *ownerTally) {
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

// clustersOf adds to set the names of the clusters that have records.
func (t *Tally) clustersOf(dt codec.DataType, set map[string]struct{}) {
	for s, c := range t.clusters {
		if s.DataType == dt && c.records > 0 {
			set[s.Cluster] = struct{}{}
		}
	}
}

// ClusterHead as in [store.Store].
func (t *Tally) ClusterHead(dt codec.DataType, cluster string) store.ClusterHead {
	c := t.clusters[store.Scope{DataType: dt, Cluster: cluster}]
	if c == nil {
		return store.ClusterHead{}
	}
	h := c.head
	h.Tombstones = c.tombstones.count()
	return h
}

// Since returns the revisions above after of what changed in a scope that
// [store.CheckSince] allows, ascending: of the specs of its cluster, or of the
// statuses of its owner. It costs what it returns. If the scope names both, the
// other one is for the caller to compare.
func (t *Tally) Since(s store.Scope, part store.Part, after uint64) []uint64 {
	if part == store.SpecPart {
		if c := t.clusters[store.Scope{DataType: s.DataType, Cluster: s.Cluster}]; c != nil {
			return c.specs.after(after)
		}
		return nil
	}
	if o := t.owners[store.Scope{DataType: s.DataType, Owner: s.Owner}]; o != nil {
		return o.statuses.after(after)
	}
	return nil
}

// Tombstones returns the spec revisions of a cluster's tombstones, ascending.
func (t *Tally) Tombstones(dt codec.DataType, cluster string) []uint64 {
	if c := t.clusters[store.Scope{DataType: dt, Cluster: cluster}]; c != nil {
		return c.tombstones.after(0)
	}
	return nil
}

// Graves returns the status revisions of an owner's graves that go when it has seen
// them and are not above upTo, ascending, at most limit.
func (t *Tally) Graves(dt codec.DataType, owner string, upTo uint64, limit int) []uint64 {
	if o := t.owners[store.Scope{DataType: dt, Owner: owner}]; o != nil {
		return o.graves.upTo(upTo, limit)
	}
	return nil
}

// Digests as in [store.Store].
func (t *Tally) Digests(dt codec.DataType, owner string) []codec.ClusterDigest {
	o := t.owners[store.Scope{DataType: dt, Owner: owner}]
	if o == nil {
		return nil
	}
	out := make([]codec.ClusterDigest, 0, len(o.clusters))
	for cluster, h := range o.clusters {
		out = append(out, codec.ClusterDigest{Cluster: cluster, Digest: h.digest})
	}
	slices.SortFunc(out, func(a, b codec.ClusterDigest) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return out
}

// Clone returns a copy that is counted on its own.
func (t *Tally) Clone() *Tally {
	n := &Tally{clusters: maps.Clone(t.clusters), owners: maps.Clone(t.owners)}
	for of, c := range n.clusters {
		m := *c
		m.specs, m.tombstones = c.specs.clone(), c.tombstones.clone()
		n.clusters[of] = &m
	}
	for of, o := range n.owners {
		m := &ownerTally{statuses: o.statuses.clone(), graves: o.graves.clone(), clusters: maps.Clone(o.clusters)}
		for cluster, h := range m.clusters {
			copied := *h
			m.clusters[cluster] = &copied
		}
		n.owners[of] = m
	}
	return n
}
