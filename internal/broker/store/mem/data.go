package mem

import (
	"cmp"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/pkg/codec"
)

// data is the content of a store. Records and metas are never modified, so a copy of the maps is a backup. A
// backup lacks tally, usage and ring, which Open rebuilds, and the removals, which no reader needs then.
type data struct {
	state     memindex.State
	clusters  map[memindex.ClusterKey]*clusterData
	ring      *memindex.Ring
	feed      map[uint64]store.Change // feed entries of the records and bookmarks, by revision
	removals  []store.Change          // those that readers may still need
	compacted uint64                  // revision of the last removal that was dropped
}

// ringSize is the number of last changes that are found without a search.
const ringSize = 1024

// clusterData holds the records of one cluster and data type.
type clusterData struct {
	records map[string]*record // by resource id
	names   map[string]string  // name → id of the record that has it
	behind  map[string]string  // queued id → id of the tombstone
}

type record struct {
	meta                 *store.Meta
	spec, status, queued []byte
}

func newData(epoch string) data {
	d := data{state: memindex.NewState(), clusters: make(map[memindex.ClusterKey]*clusterData), feed: make(map[uint64]store.Change)}
	d.state.At.StoreID = epoch
	return d
}

func (d *data) clone() data {
	c := *d
	c.state.Incarnations = slices.Clone(d.state.Incarnations)
	c.state.Tally, c.state.Usage, c.ring, c.removals, c.feed = nil, nil, nil, nil, maps.Clone(d.feed)
	c.state.Bookmarks = d.state.Bookmarks.Clone()
	c.clusters = make(map[memindex.ClusterKey]*clusterData, len(d.clusters))
	for w, p := range d.clusters {
		c.clusters[w] = &clusterData{records: maps.Clone(p.records), names: maps.Clone(p.names), behind: maps.Clone(p.behind)}
	}
	return c
}

// begin starts an incarnation.
func (d *data) begin(t memindex.Incarnation) {
	d.state.Begin(t)
	d.compacted = t.First - 1
	d.count(t.First)
}

// count builds tally and usage, and an empty ring from a revision on.
func (d *data) count(first uint64) {
	d.state.Tally, d.state.Usage, d.ring = memindex.NewTally(), quota.NewUsage(), memindex.NewRing(ringSize, first)
	for _, p := range d.clusters {
		for _, r := range p.records {
			d.state.Load(r.meta)
		}
	}
	d.state.Tally.Sort()
}

func (d *data) record(k store.Key) *record {
	if p := d.clusters[memindex.ClusterKey{DataType: k.DataType, Cluster: k.Cluster}]; p != nil {
		return p.records[k.ResourceID]
	}
	return nil
}

// Meta implements [store.Reader].
func (d *data) Meta(k store.Key) (*store.Meta, error) {
	if r := d.record(k); r != nil {
		return r.meta, nil
	}
	return nil, nil
}

// IDByName implements [store.Reader].
func (d *data) IDByName(dt codec.DataType, cluster, name string) (id string, ok bool, err error) {
	if p := d.clusters[memindex.ClusterKey{DataType: dt, Cluster: cluster}]; p != nil {
		id, ok = p.names[name]
	}
	return id, ok, nil
}

// BlockingTombstone implements [store.Reader].
func (d *data) BlockingTombstone(k store.Key) (id string, ok bool) {
	if p := d.clusters[memindex.ClusterKey{DataType: k.DataType, Cluster: k.Cluster}]; p != nil {
		id, ok = p.behind[k.ResourceID]
	}
	return id, ok
}

// IsSubscribed implements [store.Reader].
func (d *data) IsSubscribed(dt codec.DataType, cluster string) bool {
	return d.state.Bookmarks.IsSubscribed(dt, cluster)
}

// Bookmark implements [store.Reader].
func (d *data) Bookmark(name string) *store.Bookmark { return d.state.Bookmarks.Get(name) }

// apply executes a decision.
func (d *data) apply(dec store.Decision, op *store.Op) {
	var waited []byte
	if r := d.record(op.Key); r != nil {
		waited = r.queued
	}
	for _, c := range dec.Changes {
		d.state.At.Revision = c.Revision
		d.ring.Append(c)
		if c.Gone {
			d.removals = append(d.removals, c)
		} else {
			d.feed[c.Revision] = c
		}
	}
	for c := range dec.Uses() {
		d.state.Usage.Add(c)
	}
	for _, w := range dec.Writes {
		d.ring.Forget(w.Old, w.New)
		oldSpec, oldStatus := store.Entries(w.Old)
		spec, status := store.Entries(w.New)
		if oldSpec != spec {
			delete(d.feed, oldSpec)
		}
		if oldStatus != status {
			delete(d.feed, oldStatus)
		}
		d.write(w, op.Event, waited)
	}
	if w := dec.Bookmark; w != nil {
		if w.Old != nil {
			d.ring.Drop(w.Old.Revision)
			delete(d.feed, w.Old.Revision)
		}
		d.state.Bookmarks.Set(w.Name, w.New)
	}
}

// pass drops the removals up to a revision.
func (d *data) pass(revision uint64) {
	n, _ := slices.BinarySearchFunc(d.removals, revision+1, func(c store.Change, r uint64) int { return cmp.Compare(c.Revision, r) })
	if n > 0 {
		d.compacted = d.removals[n-1].Revision
		d.removals = slices.Delete(d.removals, 0, n)
	}
}

// after returns the changes above a revision, at most limit. The ring has the last ones.
func (d *data) after(revision uint64, limit int) []store.Change {
	var out []store.Change
	if revision+1 < d.ring.First {
		for r, c := range d.feed {
			if r > revision && r < d.ring.First {
				out = append(out, c)
			}
		}
		for _, c := range d.removals {
			if c.Revision > revision && c.Revision < d.ring.First {
				out = append(out, c)
			}
		}
		slices.SortFunc(out, func(a, b store.Change) int { return cmp.Compare(a.Revision, b.Revision) })
	}
	out = append(out, d.ring.ChangesFrom(max(revision+1, d.ring.First), limit)...)
	return out[:min(limit, len(out))]
}

func (d *data) write(w store.Write, event, waited []byte) {
	at := memindex.ClusterKey{DataType: w.Key.DataType, Cluster: w.Key.Cluster}
	p := d.clusters[at]
	if p == nil {
		p = &clusterData{records: make(map[string]*record), names: make(map[string]string), behind: make(map[string]string)}
		d.clusters[at] = p
	}
	p.index(w)
	d.state.Tally.Count(w.Old, w.New)
	if w.New == nil {
		delete(p.records, w.Key.ResourceID)
		return
	}
	r := &record{}
	if old := p.records[w.Key.ResourceID]; old != nil {
		*r = *old
	}
	r.meta = w.New
	take := func(what store.Payload, slot *[]byte) {
		switch what {
		case store.Clear:
			*slot = nil
		case store.FromOp:
			*slot = event
		case store.FromQueued:
			*slot = waited
		case store.Keep:
		}
	}
	take(w.Spec, &r.spec)
	take(w.Status, &r.status)
	take(w.Queued, &r.queued)
	p.records[w.Key.ResourceID] = r
}

// index updates the indexes by name and by queued id.
func (p *clusterData) index(w store.Write) {
	for _, n := range store.ReservedNames(w.Old) {
		delete(p.names, n)
	}
	for _, n := range store.ReservedNames(w.New) {
		p.names[n] = w.Key.ResourceID
	}
	if id := store.QueuedID(w.Old); id != "" {
		delete(p.behind, id)
	}
	if id := store.QueuedID(w.New); id != "" {
		p.behind[id] = w.Key.ResourceID
	}
}
