package broker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// request requests a page of the inventory.
func (s *tap) request(id string, r codec.InventoryRequest) error {
	p := s.params()
	p.ID = id
	e, err := codec.NewInventoryRequest(p, r)
	return s.send(marshal(s.w, e, err))
}

// page requests a page of the inventory and returns it.
func (s *tap) page(r codec.InventoryRequest) codec.Inventory {
	s.w.Helper()
	id := "request-" + r.PageToken
	if err := s.request(id, r); err != nil {
		s.w.Fatalf("inventory: %v", err)
	}
	pages := s.takeSync(codec.TypeInventory)
	if len(pages) != 1 {
		s.w.Fatalf("%d pages", len(pages))
	}
	inv, err := codec.ParseInventory(pages[0])
	if err != nil {
		s.w.Fatal(err)
	}
	if b := marshal(s.w, pages[0], nil); len(b) > 1<<20 {
		s.w.Errorf("a page of %d bytes", len(b))
	}
	if inv.RequestID != id {
		s.w.Errorf("the answer is to %q, the request was %q", inv.RequestID, id)
	}
	return inv
}

// rows returns the records as text: id, version, state, and the revision if there is one.
func rows(inv codec.Inventory) (list []string) {
	for _, r := range inv.Records {
		line := fmt.Sprintf("%s/%s %s v%d", r.Cluster, r.ResourceID, r.Name, r.Version)
		if r.Tombstone {
			line += " tombstone"
		}
		if r.Revision == 0 {
			line += " waits"
		}
		list = append(list, line)
	}
	return list
}

func TestInventory_DigestsThenRecords(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		if inv := source.page(codec.InventoryRequest{}); len(inv.Clusters) != 0 || inv.NextPageToken != "" || inv.LastPosition != nil {
			t.Errorf("of nothing: %+v", inv)
		}
		for _, c := range []string{"c1", "c2", "c3"} { // an agent has subscribed once, so that tombstones wait for a confirmation
			w.subscribe(w.agent(c)).cancel()
		}
		put := func(k work) {
			t.Helper()
			w.put(w.source(or(k.source, "src")), k.event())
		}
		put(work{id: "a", version: 1})
		put(work{id: "b", version: 1})
		put(work{id: "b", version: 2, deleting: true})
		put(work{id: "c", name: "name-of-b", version: 1}) // queued behind b
		put(work{id: "d", version: 4})
		put(work{id: "d", version: 4, deleting: true})
		put(work{id: "d", version: 5}) // queued behind its own tombstone
		put(work{id: "e", version: 1})
		put(work{id: "e", version: 1, deleting: true})
		w.put(w.agent("c1"), w.event(report{id: "e", version: 1, deleted: true}))
		put(work{cluster: "c2", id: "f", version: 1})
		put(work{cluster: "c3", id: "g", version: 1})
		put(work{cluster: "c3", id: "g", version: 1, deleting: true})
		put(work{source: "other", id: "h", version: 1})

		digests := source.page(codec.InventoryRequest{})
		records := source.page(codec.InventoryRequest{Clusters: []string{"c3", "c1", "nowhere", "c1"}})
		if diff := cmp.Diff([]string{
			"c1/a name-of-a v1",
			"c1/b name-of-b v2 tombstone",
			"c1/c name-of-b v1 waits",
			"c1/d name-of-d v5",
			"c1/e name-of-e v1 tombstone",
			"c3/g name-of-g v1 tombstone",
		}, rows(records)); diff != "" {
			t.Error(diff)
		}
		head := w.Store.Head().Revision
		if digests.Revision != head || records.Revision != head || records.NextPageToken != "" {
			t.Errorf("revisions %d and %d of %d, next page %q", digests.Revision, records.Revision, head, records.NextPageToken)
		}
		// The digest of a source covers exactly the live records in its inventory.
		var mine codec.Digest
		for _, r := range records.Records {
			if r.Cluster == "c1" && !r.Tombstone {
				mine.Count++
				mine.Sum = mine.Sum.Add(codec.RecordHash(r.ResourceID, r.Tag))
			}
		}
		got := map[string]uint64{}
		for _, d := range digests.Clusters {
			got[d.Cluster] = d.Digest.Count
			if d.Cluster == "c1" && d.Digest != mine {
				t.Errorf("digest %+v, its records make %+v", d.Digest, mine)
			}
		}
		if diff := cmp.Diff(map[string]uint64{"c1": 3, "c2": 1, "c3": 0}, got); diff != "" {
			t.Error(diff)
		}
		for _, r := range records.Records {
			record, err := w.Store.Get(w.Context(), store.Key{DataType: codec.ManifestBundles, Cluster: r.Cluster, ResourceID: r.ResourceID})
			if err == nil && r.ResourceID != "d" && (record.Tag != r.Tag || record.SpecRevision != r.Revision) {
				t.Errorf("%+v of record %+v", r, record.Meta)
			}
		}
	})
}

// TestInventory_PagesSurviveChanges checks that every record that exists all the time is listed exactly once.
// Other records may be created and removed between the pages.
func TestInventory_PagesSurviveChanges(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		long := strings.Repeat("n", 900) // a page holds about a thousand of these
		name := func(i int) string { return fmt.Sprintf("%s-%05d", long, i) }
		id := func(i int) string { return fmt.Sprintf("w/%05d", i) }
		const works = 3000
		var ops []store.Op
		put := func(cluster string, i int, version int64) {
			ops = append(ops, store.Op{
				Kind: store.PutSpec, Key: store.Key{DataType: codec.ManifestBundles, Cluster: cluster, ResourceID: id(i)},
				Owner: "src", Name: name(i), Action: codec.CreateRequest, Version: version,
				Tag: codec.TagOf(false, version, name(i), nil), Event: []byte("spec"), At: time.Now(),
			})
		}
		commit := func() {
			if _, err := w.Store.Commit(w.Context(), ops); err != nil {
				t.Fatal(err)
			}
			ops = nil
		}
		for i := range works {
			put("c1", 2*i, 1)
			put("c 2/%", 2*i, 1)
		}
		commit()
		first := w.Store.Head().Revision
		seen := map[string]int{}
		req := codec.InventoryRequest{Clusters: []string{"c1", "c 2/%"}}
		for n := range 100 {
			inv := source.page(req)
			for _, r := range inv.Records {
				seen[r.Cluster+" "+r.ResourceID]++
			}
			if inv.Revision != first {
				t.Errorf("page %d is of revision %d, the first one was of %d", n, inv.Revision, first)
			}
			if req.PageToken = inv.NextPageToken; req.PageToken == "" {
				break
			}
			put("c1", 2*n+1, 1)       // after the page
			put("c1", 5999-2*n, 1)    // before the page
			put("c1", 2*(n%works), 2) // changed
			commit()
		}
		if req.PageToken != "" {
			t.Fatal("the pages do not end")
		}
		for _, c := range req.Clusters {
			for i := range works {
				if k := c + " " + id(2*i); seen[k] != 1 {
					t.Fatalf("%s is listed %d times", k, seen[k])
				}
			}
		}
	})
}

func TestInventory_PagesOfDigests(t *testing.T) {
	inWorld(t, broker.Config{MaxEventBytes: 16 << 10}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		const clusters = 500
		for i := range clusters {
			w.put(source.peer, work{cluster: fmt.Sprintf("c%03d", i), version: 1}.event())
		}
		var names []string
		req := codec.InventoryRequest{}
		pages := 0
		for ; ; pages++ {
			inv := source.page(req)
			for _, d := range inv.Clusters {
				names = append(names, d.Cluster)
			}
			if req.PageToken = inv.NextPageToken; req.PageToken == "" {
				break
			}
		}
		if len(names) != clusters || !slices.IsSorted(names) || len(slices.Compact(names)) != clusters || pages < 2 {
			t.Errorf("%d clusters on %d pages", len(names), pages)
		}
	})
}

// TestInventory_IsBounded checks that requests of a source that does not read are rejected, and those of others
// are answered.
func TestInventory_IsBounded(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		gate := make(chan struct{})
		stuck := w.open(w.source("src"), func(raw *transport.RawSubscription, s *tap) {
			hawser(raw, s)
			s.hold = func() { <-gate }
		})
		refusals := 0
		for range 40 {
			if err := stuck.request("r", codec.InventoryRequest{}); err != nil {
				w.wantCode(err, transport.CodeOverloaded)
				refusals++
			}
			synctest.Wait()
		}
		if refusals < 20 || refusals > 30 {
			t.Errorf("%d of 40 requests were refused", refusals)
		}
		other := w.open(w.source("other"), hawser)
		other.page(codec.InventoryRequest{})
		close(gate)
		if got := len(stuck.takeSync(codec.TypeInventory)); got != 40-refusals {
			t.Errorf("%d answers to %d requests", got, 40-refusals)
		}
		for _, token := range []string{"x", "1/2", "1//id", "x/c/id", "1/%zz/id", "1/c/i/d"} {
			w.wantCode(other.request("r", codec.InventoryRequest{PageToken: token}), transport.CodeInvalid)
		}
		// The stream may end while a request waits.
		late := w.open(w.source("late"), func(raw *transport.RawSubscription, s *tap) {
			hawser(raw, s)
			s.hold = func() { <-w.Context().Done() }
		})
		for range 3 {
			if err := late.request("r", codec.InventoryRequest{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestInventory_ListsDisconnectedClusters checks that a source gets the list of its clusters without an agent
// for five minutes. It gets each list once. Time in which the broker was down does not count.
func TestInventory_ListsDisconnectedClusters(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		for _, cluster := range []string{"c1", "c2", "c3"} {
			w.put(source, work{cluster: cluster, id: "of-" + cluster, name: "a", version: 1}.event())
		}
		w.put(w.source("ci"), work{source: "ci", cluster: "c4", id: "w4", version: 1}.event())
		began := time.Now()
		there, leaves := w.open(w.agent("c1"), hawser), w.open(w.agent("c2"), hawser)
		hub, other, ocm := w.open(source, hawser), w.open(source, hawser), w.open(source, nil)
		hub.page(codec.InventoryRequest{})
		reported := func(s *tap) (all []string) {
			w.Helper()
			for _, e := range s.takeSync(codec.TypeDisconnectedClusters) {
				d, err := codec.ParseDisconnectedClusters(e)
				if err != nil || d.More {
					t.Errorf("%+v, %v", d, err)
				}
				all = append(all, "page")
				for _, a := range d.Clusters {
					all = append(all, strings.TrimSpace(fmt.Sprint(a.Cluster, " ", a.Since.Sub(began).Round(time.Second), " ", a.NeverConnected, " ", a.Reason)))
				}
			}
			return all
		}
		pass(3 * time.Minute)
		w.differs("none was away for long", []string{"page"}, reported(hub))
		leaves.cancel()
		w.wantCode(<-leaves.ended, transport.CodeUnavailable)
		pass(4 * time.Minute)
		w.differs("c3 never came", []string{"page", "c3 0s true"}, reported(hub))
		pass(4 * time.Minute)
		w.differs("c2 left", []string{"page", "c2 3m0s false", "c3 0s true"}, reported(hub))
		pass(4 * time.Minute)
		w.differs("it was sent already", []string(nil), reported(hub))
		quarantined := w.open(w.agent("c1"), func(r *transport.RawSubscription, _ *tap) { r.Cluster = "c3" })
		w.wantCode(<-quarantined.ended, transport.CodeDenied)
		pass(2 * time.Minute)
		w.differs("c3 was refused", []string{"page", "c2 3m0s false", "c3 0s true its agent used the certificate of cluster c1: put the certificate of c3 into its Secret"}, reported(hub))
		w.open(w.agent("c3"), hawser)
		pass(2 * time.Minute)
		w.differs("c3 came", []string{"page", "c2 3m0s false"}, reported(hub))
		w.differs("an OCM source", []string(nil), reported(ocm))
		w.differs("a program that sends no request", []string(nil), reported(other))
		there.cancel()
		w.wantCode(<-there.ended, transport.CodeUnavailable)
	})
}
