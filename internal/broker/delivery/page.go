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
	// pageBytes is the maximum size of an inventory page, envelope included.
	pageBytes = 1 << 20
	// rowBytes is an upper bound for the size of a row without its strings.
	rowBytes = 64
)

// pageRequest is a request for one page of the inventory of a source.
type pageRequest struct {
	id       string   // of the request event
	clusters []string // sorted; empty: the page has a digest per cluster
	from     pageToken
	free     func() // called when the request is no longer needed
}

// pageToken is the end of the previous page. It stays valid when records change between the pages. The zero
// value is the beginning.
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

// RequestPage queues a source's request for a page of its inventory. The first page begins a comparison. From
// then on events of earlier subscriptions are rejected.
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
		return request.Invalid("data", "the page token is not from this broker", "list again without a token")
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

// answerPage sends a page. It frees the slot that the caller has taken.
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

// page collects the rows of the page that is being built.
type page struct {
	request   *pageRequest
	inventory codec.Inventory
	free      int // bytes left
	last      pageToken
}

// errPageFull ends a scan.
var errPageFull = errors.New("the page is full")

// reserve takes bytes for rows. It returns false if they do not fit; then the page ends before them.
func (p *page) reserve(bytes int) bool {
	if bytes > p.free && p.last != (pageToken{}) {
		p.last.revision = p.inventory.Revision
		p.inventory.NextPageToken = p.last.String()
		return false
	}
	p.free -= bytes
	return true
}

// addDigests adds the digests of the owner's clusters that fit.
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

// addRecords adds the records of the requested clusters that fit.
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

// inventoryOf returns the rows of a record for its source. A queued spec of another id has a second row with
// revision 0, because no condition on it is possible yet. A queued spec with the tombstone's own id replaces
// the row of the tombstone and has its revision. A confirmed tombstone is listed as a tombstone, unless it was
// made by an operator from a live work: such a record has no row.
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
