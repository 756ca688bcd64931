package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/test/histories/judge"
)

// The load of one source: that many works at a time, which writers change at a pace.
const (
	slotsPerSource = 12
	writersPerSlot = 4 // slots of one writer
	writePace      = 60 * time.Millisecond
)

// source owns works and publishes them. Its memory stands for its hub: it outlives restarts.
type source struct {
	client
	t       *testing.T
	resting func() bool // true: it changes no work any more

	state sync.Mutex
	slots []*wanted
	made  int
	// unknown are records in the store of works that this source has deleted, by id.
	unknown map[string]codec.InventoryRecord
	// compared: the inventory of this subscription is complete. reported: the source has reported that.
	compared, reported bool

	cursor codec.Cursor
	lists  uint64 // status lists on this subscription
	asked  time.Duration
	rows   map[string]codec.InventoryRecord
}

// wanted is a work of the hub.
type wanted struct {
	id, cluster string
	version     int64
	deleting    bool
	publish     bool // the broker may lack it
	created     time.Duration
	// number and version of its last status, finished: its agent has reported that it is gone.
	number        int
	statusVersion int64
	finished      bool
}

func newSource(t *testing.T, x *trace, name, addresses string, resting func() bool) *source {
	t.Helper()
	s := &source{t: t, resting: resting, unknown: map[string]codec.InventoryRecord{}}
	s.client = client{name: name, trace: x, dialer: newDialer(t, addresses), handler: s, filter: transport.Filter{Source: name, DataType: codec.ManifestBundles}}
	for i := range slotsPerSource {
		s.slots = append(s.slots, s.create(clusters[i%len(clusters)]))
	}
	return s
}

func (s *source) create(cluster string) *wanted {
	s.made++
	return &wanted{id: fmt.Sprintf("%s-work-%d", s.name, s.made), cluster: cluster, version: 1, publish: true, created: s.trace.now()}
}

// run runs the session and the writers until ctx ends.
func (s *source) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.client.run(ctx) })
	for first := 0; first < slotsPerSource; first += writersPerSlot {
		g.Go(func() error { return s.write(ctx, first) })
	}
	return g.Wait()
}

// write changes and publishes works at a pace, one after the other. The first writer also ends comparisons.
func (s *source) write(ctx context.Context, first int) error {
	tick := time.NewTicker(writePace)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if first == 0 {
			s.deleteUnknown(ctx)
			s.reportSync(ctx)
		}
		if w, ok := s.next(first + rand.IntN(writersPerSlot)); ok {
			s.publishWork(ctx, w)
		}
	}
}

// next returns a work to publish: one that the broker may lack, or one that the source changes now.
func (s *source) next(slot int) (w wanted, ok bool) {
	s.state.Lock()
	defer s.state.Unlock()
	p := s.slots[slot]
	switch {
	case p.publish:
	case p.finished && s.resting():
		return w, false
	case p.finished:
		s.slots[slot] = s.create(p.cluster)
	case p.deleting, s.resting():
		return w, false
	case p.version > 2 && rand.IntN(5) == 0:
		p.deleting = true
		p.version++
	default:
		p.version++
	}
	s.slots[slot].publish = true
	return *s.slots[slot], true
}

func (s *source) publishWork(ctx context.Context, w wanted) {
	if s.send(ctx, w, 0) {
		s.state.Lock()
		defer s.state.Unlock()
		for _, p := range s.slots {
			if p.id == w.id && p.version == w.version {
				p.publish = false
			}
		}
	}
}

// send publishes a work, and reports whether that was acknowledged.
func (s *source) send(ctx context.Context, w wanted, ifRevision uint64) bool {
	e, err := encode(s.name, w)
	if err != nil {
		s.t.Error(err)
		return false
	}
	if ifRevision > 0 {
		e.SetExtension(codec.ExtIfRevision, codec.FormatRevision(ifRevision))
	}
	from := s.trace.now()
	r, sent, err := s.publish(ctx, e, "")
	if !sent {
		return false
	}
	x := judge.Event{
		Kind: judge.Write, From: from, Client: s.name, Cluster: w.cluster, Work: w.id, Version: w.version, Deleted: w.deleting, Acked: err == nil,
		Revision: r.Revision, Text: r.Outcome,
	}
	if err != nil {
		x.Text = err.Error()
	}
	s.trace.add(x)
	return err == nil
}

// encode returns the event with a work.
func encode(source string, w wanted) (codec.Event, error) {
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"version":"%d"}}`, w.id, w.version)
	o := &workv1.ManifestWork{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.cluster, Name: w.id, UID: types.UID(w.id), Generation: w.version},
		Spec:       workv1.ManifestWorkSpec{Workload: workv1.ManifestsTemplate{Manifests: []workv1.Manifest{{RawExtension: runtime.RawExtension{Raw: []byte(text)}}}}},
	}
	p := manifestwork.SpecParams{ID: newID(), Now: time.Now(), Source: source, Action: codec.UpdateRequest}
	if w.deleting {
		p.Action, p.DeletionWithData, p.Reported = codec.DeleteRequest, true, w.number > 0
	}
	return manifestwork.EncodeSpec(o, p)
}

// deleteUnknown deletes records of works that the hub no longer has.
func (s *source) deleteUnknown(ctx context.Context) {
	s.state.Lock()
	var list []codec.InventoryRecord
	for _, r := range s.unknown {
		list = append(list, r)
	}
	s.state.Unlock()
	for _, r := range list {
		if s.send(ctx, wanted{id: r.ResourceID, cluster: r.Cluster, version: r.Version, deleting: true, number: 1}, r.Revision) {
			s.state.Lock()
			delete(s.unknown, r.ResourceID)
			s.state.Unlock()
		}
	}
}

// reportSync reports that the store has all works, once a comparison is complete and everything is published.
func (s *source) reportSync(ctx context.Context) {
	s.state.Lock()
	due := s.compared && !s.reported && len(s.unknown) == 0
	for _, p := range s.slots {
		due = due && !p.publish
	}
	on := s.subscription
	s.state.Unlock()
	if !due {
		return
	}
	report := codec.SyncReport{}
	for _, c := range clusters {
		report.Clusters = append(report.Clusters, codec.ClusterSyncReport{Cluster: c})
	}
	e, err := codec.NewSyncReport(s.params(), report)
	if err != nil {
		s.t.Error(err)
		return
	}
	if _, _, err := s.publish(ctx, e, on); err == nil {
		s.state.Lock()
		s.reported = s.subscription == on
		s.state.Unlock()
	}
}

// settled reports whether the broker has all works, and the source all statuses.
func (s *source) settled() string {
	s.state.Lock()
	defer s.state.Unlock()
	if !s.reported {
		return s.name + " has not reported that it is in sync"
	}
	for _, p := range s.slots {
		if p.publish || p.deleting && !p.finished || !p.deleting && p.statusVersion != p.version {
			return fmt.Sprintf("%s waits for %s (version %d, status of %d, deleting: %t)", s.name, p.id, p.version, p.statusVersion, p.deleting)
		}
	}
	return ""
}

// current returns the ids of the works on a cluster that the source has since a time.
func (s *source) current(cluster string, since time.Duration) (list []string) {
	s.state.Lock()
	defer s.state.Unlock()
	for _, p := range s.slots {
		if p.cluster == cluster && p.created < since {
			list = append(list, p.id)
		}
	}
	return list
}

// final records the statuses at the end.
func (s *source) final() {
	s.state.Lock()
	defer s.state.Unlock()
	for _, p := range s.slots {
		if !p.deleting {
			s.trace.add(judge.Event{Kind: judge.Known, Client: s.name, Cluster: p.cluster, Work: p.id, Version: p.statusVersion, Number: p.number})
		}
	}
	s.trace.add(judge.Event{Kind: judge.Complete, Client: s.name})
}

// Hello implements [session.Handler].
func (s *source) Hello() transport.Hello { return s.hello(s.cursor) }

// Subscribed implements [session.Handler]: it compares all works, and requests all statuses unless the broker continues.
func (s *source) Subscribed(_ context.Context, a transport.Accepted) ([]codec.Event, error) {
	s.state.Lock()
	defer s.state.Unlock()
	resumed := s.subscribed(a, s.cursor)
	s.compared, s.reported, s.rows, s.lists = false, false, map[string]codec.InventoryRecord{}, 0
	var events []codec.Event
	if !resumed {
		s.cursor, s.lists = codec.Cursor{}, 1
		e, err := codec.NewStatusResyncRequest(codec.ResyncParams{ID: newID(), Time: time.Now(), Source: s.name, DataType: codec.ManifestBundles}, nil)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	s.asked = s.trace.now()
	e, err := s.inventoryRequest("")
	return append(events, e), err
}

func (s *source) inventoryRequest(page string) (codec.Event, error) {
	return codec.NewInventoryRequest(s.params(), codec.InventoryRequest{Clusters: clusters, PageToken: page})
}

// Disconnected implements [session.Handler].
func (s *source) Disconnected(err error) {
	if advises(err, transport.NextResync) {
		s.cursor = codec.Cursor{}
	}
}

// Handle implements [session.Handler].
func (s *source) Handle(ctx context.Context, e codec.Event) error {
	switch e.Type() {
	case codec.TypeInventory:
		return s.inventory(ctx, e)
	case codec.TypeCheckpoint:
		k, err := codec.ParseCheckpoint(e)
		if err != nil {
			return err
		}
		s.checkpoint(k)
		if k.AnsweredStatusRequests == s.lists {
			s.cursor = k.Cursor
			s.ack(ctx, codec.Ack{Cursor: k.Cursor})
		}
		return nil
	case codec.TypeDisconnectedClusters:
		return nil
	}
	report, err := manifestwork.DecodeStatus(e)
	if err != nil {
		return err
	}
	s.status(&report)
	return nil
}

func (s *source) status(r *manifestwork.StatusReport) {
	number := numberOf(r.Status)
	s.trace.add(judge.Event{
		Kind: judge.Status, Client: s.name, Cluster: r.Cluster, Work: r.ResourceID, Version: r.Version, Deleted: r.Deleted, Number: number, Revision: r.Revision,
	})
	s.state.Lock()
	defer s.state.Unlock()
	for _, p := range s.slots {
		if p.id == r.ResourceID {
			p.number, p.statusVersion = number, r.Version
			p.finished = p.finished || p.deleting && r.Deleted
		}
	}
}

// inventory reads a page, and compares after the last one.
func (s *source) inventory(ctx context.Context, e codec.Event) error {
	page, err := codec.ParseInventory(e)
	if err != nil {
		return err
	}
	s.state.Lock()
	for _, r := range page.Records {
		s.rows[r.ResourceID] = r
		s.trace.add(judge.Event{Kind: judge.Read, From: s.asked, Client: s.name, Cluster: r.Cluster, Work: r.ResourceID, Version: r.Version, Deleted: r.Tombstone, Revision: r.Revision})
	}
	if page.NextPageToken == "" {
		s.compare()
	}
	s.state.Unlock()
	if page.NextPageToken == "" {
		return nil
	}
	request, err := s.inventoryRequest(page.NextPageToken)
	if err == nil {
		_, _, err = s.publish(ctx, request, s.subscription)
	}
	return err
}

// compare marks what the store lacks. s.state is held.
func (s *source) compare() {
	clear(s.unknown)
	for _, p := range s.slots {
		r, there := s.rows[p.id]
		delete(s.rows, p.id)
		if !there && p.created < s.asked {
			s.trace.add(judge.Event{Kind: judge.Read, From: s.asked, Client: s.name, Cluster: p.cluster, Work: p.id})
		}
		if !p.finished && (r.Version != p.version || r.Tombstone != p.deleting) {
			p.publish = true
		}
	}
	for id, r := range s.rows {
		if !r.Tombstone {
			s.unknown[id] = r
		}
	}
	s.compared = true
}
