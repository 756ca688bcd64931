package delivery

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	// pageBytes is the largest page of an inventory, envelope included.
	pageBytes = 1 << 20
	// rowBytes is more than a row needs besides its texts.
	rowBytes = 64
)

// pageRequest asks for one page of what a source owns.
type pageRequest struct {
	id       string   // of the event that asks
	clusters []string // sorted; none: a digest per cluster
	from     pageToken
	free     func() // called when the request is no longer needed
}

// pageToken says where the page before ended, so that it counts whatever was
// changed since. The zero value is the begin.
type pageToken struct {
	revision    uint64 // of the store before the first page
	cluster, id string // of the last row
}

func (t pageToken) String() string {
	return strconv.FormatUint(t.revision, 10) + "/" + url.PathEscape(t.cluster) + "/" + url.PathEscape(t.id)
}

func parsePageToken(s string) (t pageToken, ok bool) {
	if s == "" {
		return t, true
	}
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return t, false
	}
	var errs [3]error
	t.revision, errs[0] = strconv.ParseUint(parts[0], 10, 64)
	t.cluster, errs[1] = url.PathUnescape(parts[1])
	t.id, errs[2] = url.PathUnescape(parts[2])
	return t, errors.Join(errs[:]...) == nil && t.cluster != ""
}

// RequestPage takes a source's wish for a page of what it owns. The first page begins a
// comparison, after which nothing of an earlier subscription may arrive.
func (f *Feed) RequestPage(ctx context.Context, e *request.Event) error {
	s, r, err := delivered(f.registry, e, codec.ParseInventoryRequest)
	if err != nil {
		return err
	}
	if s.part != codec.Status {
		return request.NotOfSource()
	}
	from, ok := parsePageToken(r.PageToken)
	if !ok {
		return request.Invalid("data", "the page token is none of this broker", "begin anew without one")
	}
	if len(r.Clusters) == 0 && from == (pageToken{}) {
		if err := f.intake.Supersede(ctx, s.id, s.client); err != nil {
			return err
		}
	}
	size := e.Payload
	if !f.lists.Reserve(s.client, size) {
		return request.Overloaded("too many requests wait to be answered", request.RetryAfter)
	}
	clusters := slices.Clone(r.Clusters)
	slices.Sort(clusters)
	p := &pageRequest{
		id: e.Env.ID, clusters: slices.Compact(clusters), from: from,
		free: func() { f.lists.Free(s.client, size) },
	}
	if !s.requestPage(p) {
		p.free()
		return request.Overloaded("too many requests of this subscription wait to be answered", request.RetryAfter)
	}
	return nil
}

// answerPage sends a page. It gives the slot back that the caller has occupied.
func (t *stream) answerPage(ctx context.Context, r *pageRequest) error {
	defer r.free()
	inventory, err := t.page(ctx, r)
	if err != nil {
		return request.Store(err)
	}
	t.metrics.pages.Inc()
	return t.sendEvent(codec.NewInventory(t.params(), inventory))
}

func (t *stream) page(ctx context.Context, r *pageRequest) (codec.Inventory, error) {
	defer t.sync.Slots.Free()
	start := t.cfg.Now()
	owner := t.sub.scope
	p := page{request: r, free: min(pageBytes, t.cfg.MaxEventBytes) - request.AddedBytes}
	p.inventory.RequestID = r.id
	p.inventory.Revision = r.from.revision
	if r.from == (pageToken{}) {
		p.inventory.Revision = t.cfg.Store.Head().Revision
		var err error
		if p.inventory.LastPosition, err = t.sync.Sources.LastPosition(owner.Owner); err != nil {
			return p.inventory, err
		}
	}
	if len(r.clusters) == 0 {
		p.addDigests(t.cfg.Store.Digests(owner.DataType, owner.Owner))
	} else if err := p.addRecords(ctx, t.cfg.Store, owner); err != nil {
		return p.inventory, err
	}
	end := t.cfg.Now()
	t.calmDown(end, end.Sub(start))
	return p.inventory, nil
}

// page is a page in the making.
type page struct {
	request   *pageRequest
	inventory codec.Inventory
	free      int // bytes left
	last      pageToken
}

// errPageFull ends a scan.
var errPageFull = errors.New("the page is full")

// reserve makes room for rows; false: there is none, and the page ends before
// them.
func (p *page) reserve(bytes int) bool {
	if bytes > p.free && p.last != (pageToken{}) {
		p.last.revision = p.inventory.Revision
		p.inventory.NextPageToken = p.last.String()
		return false
	}
	p.free -= bytes
	return true
}

// addDigests adds what fits of the digests of the owner's clusters.
func (p *page) addDigests(all []codec.ClusterDigest) {
	from := sort.Search(len(all), func(i int) bool { return all[i].Cluster > p.request.from.cluster })
	for _, d := range all[from:] {
		if !p.reserve(rowBytes + len(d.Cluster)) {
			return
		}
		p.inventory.Clusters = append(p.inventory.Clusters, d)
		p.last.cluster = d.Cluster
	}
}

// addRecords adds what fits of the records of the clusters that are asked for.
func (p *page) addRecords(ctx context.Context, s store.Store, owner store.Scope) error {
	from := p.request.from
	for _, cluster := range p.request.clusters {
		if cluster < from.cluster {
			continue
		}
		err := s.Scan(ctx, store.Scope{DataType: owner.DataType, Cluster: cluster, Owner: owner.Owner}, func(m store.Meta) error {
			if cluster == from.cluster && m.ResourceID <= from.id {
				return nil
			}
			rows := inventoryOf(m)
			size := 0
			for _, r := range rows {
				size += rowBytes + len(r.Cluster) + len(r.ResourceID) + len(r.Name)
			}
			if !p.reserve(size) {
				return errPageFull
			}
			p.inventory.Records = append(p.inventory.Records, rows...)
			p.last.cluster, p.last.id = cluster, m.ResourceID
			return nil
		})
		if errors.Is(err, errPageFull) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inventoryOf is a record as its source sees it. What waits behind a tombstone
// is listed as what it is going to be, with revision 0 because nothing can be
// said about it on a condition yet; under the tombstone's own id it takes the
// place of the tombstone. A grave is a tombstone to its source, unless an
// operator gave up a work that lives: that one is as if it never had been.
func inventoryOf(m store.Meta) []codec.InventoryRecord {
	row := codec.InventoryRecord{
		Cluster: m.Cluster, ResourceID: m.ResourceID, Name: m.Name,
		Version: m.Version, Tag: m.Tag, Revision: m.SpecRevision, Tombstone: m.State != store.Live,
	}
	w := m.Queued
	switch {
	case m.State == store.ConfirmedTombstone && m.DeletedAt.IsZero():
		return nil
	case w == nil:
		return []codec.InventoryRecord{row}
	}
	waiting := codec.InventoryRecord{
		Cluster: m.Cluster, ResourceID: w.ResourceID, Name: w.Name,
		Version: w.Version, Tag: w.Tag, Tombstone: w.Deleting,
	}
	if w.ResourceID == m.ResourceID {
		waiting.Revision = m.SpecRevision
		return []codec.InventoryRecord{waiting}
	}
	return []codec.InventoryRecord{row, waiting}
}
