package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// realm is a hub that is restored from backups, a broker with the real rules of its store, and agents, around
// the real core. rapid chooses the steps. At any of them the core may be replaced by a new one.
type realm struct {
	t   *rapid.T
	now time.Time
	ids int

	hub     hubState
	backups []hubState
	events  []hubEvent
	hubUp   bool
	// lostWorks are works that a restore removed without a deletion. dead are works that a user deleted, or removed
	// from the hub without their finalizer.
	lostWorks, dead map[types.UID]bool
	suspicious      bool // there was a restore that cannot be noticed
	// unnoticed is the resource version below which the source notices a restore, 0 without such a restore.
	unnoticed     int64
	restored      bool // the hub was restored at least once
	storeReplaced bool // the broker has an earlier store, or an empty one

	store    *mem.Store
	copies   []*mem.Backup
	stream   *modelStream // the source's subscription, nil without one
	withheld map[string][]codec.WithheldDeletion
	agents   map[store.Key]uint64 // revision that the agent has applied
	sequence int
	written  int // number of publishes that caused a change

	core     *Core
	epoch    int // the hub epoch of the informer
	queue    map[Queue]map[Key]time.Time
	inFlight []Effect
	shown    int64 // highest resource version that the core has seen
}

// hubState is the content of a backup of the hub.
type hubState struct {
	works map[string]*workv1.ManifestWork
	rv    int64
	state SavedState
}

func (h hubState) clone() hubState { h.works = maps.Clone(h.works); return h }

// modelStream is the source's subscription.
type modelStream struct {
	established bool // the stream continues from a cursor, or a list was compared
	grace       time.Time
	lists       []codec.Event
	answered    uint64
	sent        map[store.Key]uint64 // the records still to be sent, with their revisions
	routed      uint64
	reported    uint64 // revision of the last checkpoint
	inbox       []codec.Event
	pages       []codec.Event // requests
}

type hubEvent struct {
	o    *workv1.ManifestWork
	gone bool
}

var clusterNames = []string{"c1", "c2"}

var manifestBundles = codec.ManifestBundles

func newRealm(t *rapid.T) *realm {
	r := &realm{t: t, now: time.Unix(1e9, 0), hubUp: true, lostWorks: map[types.UID]bool{}, dead: map[types.UID]bool{},
		hub: hubState{works: map[string]*workv1.ManifestWork{}, rv: 100}, withheld: map[string][]codec.WithheldDeletion{}, agents: map[store.Key]uint64{}}
	r.store = mem.Open(mem.Options{NewID: r.id})
	r.subscribeAgents()
	r.start()
	return r
}

func (r *realm) subscribeAgents() {
	for _, name := range clusterNames {
		if err := storetest.Bind(context.Background(), r.store, manifestBundles, name, "uid-"+name); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *realm) id() string { r.ids++; return fmt.Sprint("id", r.ids) }

func (r *realm) Wake(l Queue, k Key, after time.Duration) {
	at := r.now.Add(after)
	if old, has := r.queue[l][k]; !has || at.Before(old) {
		r.queue[l][k] = at
	}
}

// start starts a process. The effects in flight of the previous one were executed or not.
func (r *realm) start() {
	for _, e := range r.inFlight {
		if rapid.Bool().Draw(r.t, "happened") {
			r.perform(e)
		}
	}
	r.inFlight, r.events, r.stream = nil, nil, nil
	r.queue = map[Queue]map[Key]time.Time{BrokerQueue: {}, HubQueue: {}}
	r.core = New(Config{
		Now: func() time.Time { return r.now }, Jitter: func() float64 { return 0.5 }, Waker: r,
		NewID: r.id, State: r.hub.state, All: true,
	})
	r.shown, r.epoch = 0, r.core.Epoch()
	if r.unnoticed > 0 && !r.suspected() { // the evidence that the previous process saw is lost
		r.suspicious = r.suspicious || r.notified() == 0
		r.unnoticed = r.notified()
	}
	for _, key := range slices.Sorted(maps.Keys(r.hub.works)) {
		r.show(r.hub.works[key])
	}
}

func (r *realm) show(o *workv1.ManifestWork) {
	n, _ := strconv.ParseInt(o.ResourceVersion, 10, 64)
	r.shown = max(r.shown, n)
	r.core.WorkSeen(r.epoch, o)
}

// The hub.

func (r *realm) put(o *workv1.ManifestWork) *workv1.ManifestWork {
	r.hub.rv++
	o.ResourceVersion = fmt.Sprint(r.hub.rv)
	key := o.Namespace + "/" + o.Name
	gone := o.DeletionTimestamp != nil && len(o.Finalizers) == 0
	if gone {
		delete(r.hub.works, key)
		r.dead[o.UID] = true
		delete(r.lostWorks, o.UID)
	} else {
		r.hub.works[key] = o
	}
	r.events = append(r.events, hubEvent{o, gone})
	return o
}

func (r *realm) create(cluster, name string) {
	if r.hub.works[cluster+"/"+name] == nil {
		r.put(&workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: cluster, Name: name, UID: types.UID("uid-" + r.id()), Generation: 1}})
	}
}

func (r *realm) change(key string, f func(*workv1.ManifestWork)) *workv1.ManifestWork {
	o := r.hub.works[key].DeepCopy()
	f(o)
	return r.put(o)
}

func (r *realm) write(old *workv1.ManifestWork, f func(*workv1.ManifestWork)) Result {
	key := old.Namespace + "/" + old.Name
	live := r.hub.works[key]
	switch {
	case !r.hubUp:
		return Result{Err: errHubDown()}
	case live == nil:
		return Result{Err: errNotFound()}
	case live.UID != old.UID || live.ResourceVersion != old.ResourceVersion:
		return Result{Err: errConflict()}
	}
	return Result{Work: r.change(key, f)}
}

func (r *realm) get(namespace, name string) Result {
	o := r.hub.works[namespace+"/"+name]
	switch {
	case !r.hubUp:
		return Result{Err: errHubDown()}
	case o == nil:
		return Result{Err: errNotFound()}
	}
	return Result{Work: o}
}

// present lists the works of a namespace.
func (r *realm) present(namespace string) Result {
	if !r.hubUp {
		return Result{Err: errHubDown()}
	}
	present := Present{}
	for _, o := range r.hub.works {
		if o.Namespace == namespace {
			present[o.UID] = o.ResourceVersion
		}
	}
	return Result{Present: present}
}

// restore restores a backup of the hub. While the source runs, its informer lists everything again, unless the
// source restarts too.
func (r *realm) restore(b hubState, bump, running bool) {
	// Only the works show a restore with higher resource versions. It takes longer than a Lease, so no process
	// outlives it.
	running = running && !bump
	for len(r.inFlight) > 0 { // no request outlives the hub that received it
		r.finish(0, true)
	}
	before := r.hub
	r.hub = b.clone()
	if bump {
		r.hub.rv = before.rv + 1000
		for key, o := range r.hub.works { // as after a restore with --bump-revision
			o = o.DeepCopy()
			o.ResourceVersion = fmt.Sprint(r.hub.rv)
			r.hub.works[key] = o
		}
	}
	live := map[types.UID]bool{}
	for _, o := range r.hub.works {
		live[o.UID] = true
		delete(r.dead, o.UID)
		delete(r.lostWorks, o.UID)
	}
	for _, o := range before.works {
		if !live[o.UID] {
			r.lostWorks[o.UID] = true
		}
	}
	reported := r.notified()
	known := reported // a position below this version shows the restore
	if running {
		known = max(known, r.shown)
	}
	switch {
	case r.suspected(): // an earlier restore was noticed
	case bump || known <= b.rv:
		r.suspicious = true
	default:
		r.unnoticed = max(r.unnoticed, known)
	}
	r.t.Logf("restored to %d, reported %d, shown %d, suspicious %v", b.rv, reported, r.shown, r.suspicious)
	if !running {
		r.start()
		return
	}
	r.events = nil
	for _, uid := range slices.Sorted(maps.Keys(r.core.index.works)) {
		if w := r.core.index.works[uid]; w.hub.object != nil && w.hub.ended == alive && !live[uid] {
			r.core.WorkMissing(r.epoch, uid)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.hub.works)) {
		r.show(r.hub.works[key])
	}
}

// suspected reports whether the hub has a saved rollback suspicion.
func (r *realm) suspected() bool {
	return len(r.hub.state.Withheld) > 0 && r.hub.state.Withheld[0] == everywhere
}

// notified returns the position of the hub that the broker knows.
func (r *realm) notified() int64 {
	n, _ := strconv.ParseInt(string(r.store.Bookmarks("hub")["hub"]), 10, 64)
	return n // 0 if there is none
}

// The broker.

var errGone = &transport.Error{Code: transport.CodeUnavailable}

func (r *realm) commit(op store.Op) store.Outcome {
	op.At = r.now
	o, err := r.store.Commit(context.Background(), []store.Op{op})
	if err != nil {
		r.t.Fatal(err)
	}
	return o[0]
}

// publish is the broker's handling of a spec event.
func (r *realm) publish(e codec.Event, err error) Result {
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := codec.Marshal(e)
	if err != nil {
		r.t.Fatal(err)
	}
	env, incoming, err := codec.Ingest(b)
	if err != nil {
		r.t.Fatal(err)
	}
	normal, err := incoming.Normalized()
	if err != nil {
		r.t.Fatal(err)
	}
	op := store.Op{
		Kind: store.PutSpec, Key: store.Key{DataType: manifestBundles, Cluster: env.Cluster, ResourceID: env.ResourceID},
		Owner: "hub", Name: env.ObjectName, Action: env.Type.Action, Version: env.Version,
		Tag: codec.TagOf(env.Deleting, env.Version, env.RawMetadata, env.Data), Deleting: env.Deleting, DeletedAt: env.DeletedAt,
		Supersedes: env.Supersedes, IfRevision: env.IfRevision, Event: normal, At: r.now,
	}
	if env.Deleting {
		r.checkDeletion(*env)
		if len(env.Data) == 0 {
			op.Event = nil
		}
	}
	o := r.commit(op)
	if o.Result == store.Accepted || o.Result == store.Confirmed || o.Result == store.Queued {
		r.written++
	}
	r.t.Logf("  %s %s v%d supersedes %d if %d: result %d %s", env.Type.Action, env.ResourceID, env.Version, env.Supersedes, env.IfRevision, o.Result, o.Detail)
	switch o.Result {
	case store.Accepted:
		return Result{Receipt: transport.Receipt{Outcome: codec.OutcomeAccepted, Revision: o.Head}}
	case store.Confirmed:
		return Result{Receipt: transport.Receipt{Outcome: codec.OutcomeConfirmed, Revision: o.Head}}
	case store.Queued:
		return Result{Receipt: transport.Receipt{Outcome: codec.OutcomeQueued, Revision: o.Head}}
	case store.Unchanged:
		return Result{Receipt: transport.Receipt{Outcome: codec.OutcomeUnchanged, Revision: o.Head}}
	case store.Stale:
		return Result{Receipt: transport.Receipt{Outcome: codec.OutcomeStale, Revision: o.Head}}
	case store.ConditionFailed:
		return Result{Err: &transport.Error{Code: transport.CodeConflict, Next: transport.NextResync}}
	case store.NameConflict:
		return Result{Err: &transport.Error{Code: transport.CodeAlreadyExists, Next: transport.NextStop}}
	}
	r.t.Fatalf("result %d", o.Result)
	return Result{}
}

// checkDeletion fails if a work is deleted that was not deleted on the hub.
func (r *realm) checkDeletion(env codec.Envelope) {
	uid := types.UID(env.ResourceID)
	live := r.hub.works[env.Cluster+"/"+env.ObjectName]
	switch {
	case live != nil && live.UID == uid && live.DeletionTimestamp == nil && !r.suspicious:
		r.t.Fatalf("deletion of %s, which lives", uid)
	case r.lostWorks[uid] && !r.suspicious:
		r.t.Fatalf("a deletion of %s, which a restore removed from the hub", uid)
	}
}

func (r *realm) connect() {
	h := r.core.Hello()
	s := &modelStream{sent: map[store.Key]uint64{}, routed: r.store.Head().Revision, grace: r.now.Add(30 * time.Second)}
	a := transport.Accepted{Protocol: transport.Protocol, Resync: codec.ResyncList}
	if cursor, err := codec.ParseCursor(h.Cursor); err == nil && r.store.ValidCursor(cursor) {
		a.Resync, s.established, s.reported = codec.ResyncCursor, true, cursor.Revision
		r.since(s, cursor.Revision)
		r.confirmUpTo(cursor.Revision)
	}
	r.t.Logf("connect with %q: %s", h.Cursor, a.Resync)
	r.stream = s
	r.core.Connected(a)
	for _, k := range r.core.NextInitialSync(1 << 20) {
		r.Wake(BrokerQueue, k, 0)
	}
}

func (r *realm) since(s *modelStream, after uint64) {
	err := r.store.Since(context.Background(), store.Scope{DataType: manifestBundles, Owner: "hub"}, store.StatusPart, after, func(m store.Meta) error {
		s.sent[m.Key] = m.StatusRevision
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *realm) confirmUpTo(upTo uint64) {
	keys, err := r.store.ConfirmedTombstones(context.Background(), manifestBundles, "hub", upTo, 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, k := range keys {
		r.commit(store.Op{Kind: store.CollectTombstone, Key: k, Owner: "hub", IfRevision: upTo})
	}
}

func (r *realm) disconnect() {
	r.stream = nil
	r.core.Disconnected()
}

// route puts changes into the delivery queue.
func (r *realm) route() {
	s := r.stream
	r.since(s, s.routed)
	s.routed = r.store.Head().Revision
}

// muteAgents ends the waiting time for a source that lists nothing.
func (r *realm) muteAgents() {
	r.since(r.stream, 0)
	r.stream.established, r.stream.reported = true, 0
}

// compareList answers a list of hashes.
func (r *realm) compareList() {
	s := r.stream
	e := s.lists[0]
	s.lists = s.lists[1:]
	cluster, _, _ := codec.StringExtension(e, codec.ExtClusterName)
	hashes, err := codec.DecodeHashes(e.Data())
	if err != nil {
		r.t.Fatal(err)
	}
	plan := resync.NewStatuses(hashes)
	r.scan(cluster, func(m store.Meta) {
		final := m.State == store.ConfirmedTombstone
		if (m.StatusRevision != 0 || final) && plan.Needs(resync.Status{ID: m.ResourceID, Hash: m.StatusHash, Final: final}) {
			s.sent[m.Key] = m.StatusRevision
		}
	})
	s.answered++
	s.established, s.reported = true, 0
}

func (r *realm) scan(cluster string, f func(store.Meta)) {
	err := r.store.Scan(context.Background(), store.Scope{DataType: manifestBundles, Cluster: cluster, Owner: "hub"}, func(m store.Meta) error {
		f(m)
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// answerPage sends a page of few rows.
func (r *realm) answerPage() {
	s := r.stream
	e := s.pages[0]
	s.pages = s.pages[1:]
	req, err := codec.ParseInventoryRequest(e)
	if err != nil {
		r.t.Fatal(err)
	}
	page := codec.Inventory{Revision: r.store.Head().Revision}
	page.RequestID = e.ID()
	from := 0
	if req.PageToken == "" {
		if v, has := r.store.Bookmarks("hub")["hub"]; has {
			page.LastPosition = &codec.HubPosition{UID: "hub", ResourceVersion: string(v)}
		}
	} else if from, err = strconv.Atoi(req.PageToken); err != nil {
		r.t.Fatal(err)
	}
	const size = 2
	if len(req.Clusters) == 0 {
		all := r.store.Digests(manifestBundles, "hub")
		end := min(len(all), from+size)
		page.Clusters = all[min(from, end):end]
		if end < len(all) {
			page.NextPageToken = fmt.Sprint(end)
		}
	} else {
		var all []codec.InventoryRecord
		for _, cluster := range req.Clusters {
			r.scan(cluster, func(m store.Meta) { all = append(all, inventoryOf(m)...) })
		}
		end := min(len(all), from+size)
		page.Records = all[min(from, end):end]
		if end < len(all) {
			page.NextPageToken = fmt.Sprint(end)
		}
	}
	answer, err := codec.NewInventory(codec.SyncParams{ID: r.id(), Time: r.now, Source: "broker", Owner: "hub"}, page)
	if err != nil {
		r.t.Fatal(err)
	}
	s.inbox = append(s.inbox, answer)
}

// inventoryOf is a record in the broker's inventory.
func inventoryOf(m store.Meta) []codec.InventoryRecord {
	if m.State == store.ConfirmedTombstone && m.DeletedAt.IsZero() {
		return nil
	}
	row := codec.InventoryRecord{Cluster: m.Cluster, ResourceID: m.ResourceID, Name: m.Name, Version: m.Version, Tag: m.Tag, Revision: m.SpecRevision, Tombstone: m.State != store.Live}
	w := m.Queued
	if w == nil {
		return []codec.InventoryRecord{row}
	}
	waiting := codec.InventoryRecord{Cluster: m.Cluster, ResourceID: w.ResourceID, Name: w.Name, Version: w.Version, Tag: w.Tag, Tombstone: w.Deleting}
	if w.ResourceID == m.ResourceID {
		waiting.Revision = m.SpecRevision
		return []codec.InventoryRecord{waiting}
	}
	return []codec.InventoryRecord{row, waiting}
}

// send takes a status out of the delivery queue.
func (r *realm) send() {
	s := r.stream
	keys := slices.SortedFunc(maps.Keys(s.sent), func(a, b store.Key) int { return strings.Compare(a.ResourceID, b.ResourceID) })
	k := keys[rapid.IntRange(0, len(keys)-1).Draw(r.t, "status")]
	delete(s.sent, k)
	rec, err := r.store.Get(context.Background(), k)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && rec.StatusRevision == 0:
		return
	case err != nil:
		r.t.Fatal(err)
	}
	e, err := codec.Unmarshal(rec.Status)
	if rec.Status == nil {
		e, err = r.status(rec.Meta, "0", true)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	s.inbox = append(s.inbox, e)
}

// mayCheckpoint reports whether nothing is left to send.
func (r *realm) mayCheckpoint() bool {
	s := r.stream
	return s != nil && s.established && len(s.sent) == 0 && len(s.lists) == 0 && s.routed == r.store.Head().Revision && s.reported < s.routed
}

func (r *realm) checkpoint() {
	s, head := r.stream, r.store.Head()
	s.reported = s.routed
	e, err := codec.NewCheckpoint(codec.SyncParams{ID: r.id(), Time: r.now, Source: "broker", Owner: "hub"}, codec.Checkpoint{
		Cursor: codec.Cursor{StoreID: head.StoreID, Incarnation: head.Incarnation, Revision: head.Revision}, AnsweredStatusRequests: s.answered,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	s.inbox = append(s.inbox, e)
}

func (r *realm) deliver() {
	s := r.stream
	e := s.inbox[0]
	s.inbox = s.inbox[1:]
	switch e.Type() {
	case codec.TypeCheckpoint:
		cp, err := codec.ParseCheckpoint(e)
		if err != nil {
			r.t.Fatal(err)
		}
		r.core.Checkpoint(cp)
	case codec.TypeInventory:
		page, err := codec.ParseInventory(e)
		if err != nil {
			r.t.Fatal(err)
		}
		r.core.Inventory(page)
	default:
		report, err := ReportOf(e)
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Logf("  report of %s v%d: %s", report.UID, report.Version, r.core.Report(report))
	}
}

// replaceStore replaces the broker's store by an older copy, or by a new one.
func (r *realm) replaceStore(b *mem.Backup) {
	if r.stream != nil {
		r.disconnect()
	}
	if b == nil {
		r.store = mem.Open(mem.Options{NewID: r.id})
	} else {
		r.store = mem.Open(mem.Options{NewID: r.id, From: b})
	}
	r.subscribeAgents()
	r.agents = map[store.Key]uint64{}
	r.withheld = map[string][]codec.WithheldDeletion{}
	r.storeReplaced = true
	if len(r.lostWorks) > 0 {
		r.suspicious = true // what the store knows of the hub is from an earlier time
	}
}
