package journal

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/codec"
)

// TestJournal_AnyCrash runs agents one after the other on one directory. It injects failures of the file system
// at any operation, crashes within any operation, power losses and flipped bits. The loaded content is compared
// with the possible content:
//
//   - of each work a spec that was put, at least as new as the last one that certainly survived, and none that
//     was removed before. For a damaged record it is an older spec or none, but none from before a compaction,
//     and the cursor is gone too;
//   - a cursor that was given to Checkpoint, and of each work the spec of that time or a later one;
//   - nothing of another binding.
func TestJournal_AnyCrash(t *testing.T) {
	t.Parallel()
	// Each rapid.Check runs a hundred sequences.
	for n := range 10 {
		t.Run(fmt.Sprint(n), func(t *testing.T) { rapid.Check(t, func(r *rapid.T) { playAny(t, r) }) })
	}
}

func playAny(tb testing.TB, t *rapid.T) {
	m := newModel(tb, t)
	t.Repeat(map[string]func(*rapid.T){
		"put":        m.act(m.put),
		"put again":  m.act(m.put),
		"remove":     m.act(m.remove),
		"checkpoint": m.act(m.checkpoint),
		"drop":       m.act(m.dropCursor),
		"renew":      m.act(m.renew),
		"report":     m.act(m.report),
		"restart":    m.act(m.restart),
		"power loss": func(t *rapid.T) { m.t = t; m.powerLoss() },
		"bit flip":   m.flip,
	})
	m.t = t
	m.heal()
}

// owners are the bindings of the processes; they change rarely.
var owners = []Binding{testBinding, {ClusterUID: "uid-2", Cluster: "cluster1", HubHash: "hub", AgentID: "agent"}}

// track has all states that one binding tried to store of one work: 0 for no work, else the number of a spec.
type track struct {
	states []int32
	// visible is the index of the latest state that survives the end of the process. stable is that of the latest
	// that survives a power loss. first is that of the oldest that may be on disk.
	visible, stable, first int
}

// all records that only the latest state is on disk.
func (w *track) all() {
	w.first = len(w.states) - 1
	w.visible, w.stable = w.first, w.first
}

func (w *track) latest() int32 { return w.states[len(w.states)-1] }

type work struct {
	owner int
	id    string
}

type model struct {
	tb   testing.TB
	t    *rapid.T
	disk *memDisk
	j    *Journal
	// owner is the index of the binding of j.
	owner   int
	version int32
	tracks  map[work]*track
	// given are the calls of Checkpoint: cursor n belongs to given[n-1]. kept is the oldest cursor that may be
	// loaded; 0: the cursor may be missing.
	given []attempt
	kept  int
	saved []Reported
	// known is the value that the agent has in memory.
	known Reported
	// failed: an operation failed since the last Compact.
	failed bool
	// reserved is the last sequence id that was certainly reserved. flipped: its file may have been damaged.
	reserved int
	flipped  bool
	// hurt: a file was damaged or unreadable since the last start. lossy: a power loss occurred.
	hurt, lossy bool
	// wounded: the log may end with a damaged record, or with a part of one. A record that is appended to a part
	// is damaged too.
	wounded bool
}

// attempt is a call of Checkpoint: its owner, and the length of each track. After discarded is set, its cursor
// may be absent.
type attempt struct {
	owner     int
	has       map[work]int
	discarded bool
}

var modelIDs = []string{"a", "b", "c"}

func newModel(tb testing.TB, t *rapid.T) *model {
	m := &model{tb: tb, t: t, disk: newMemDisk(), tracks: map[work]*track{}}
	for owner := range owners {
		for _, id := range modelIDs {
			m.tracks[work{owner, id}] = &track{states: []int32{0}}
		}
	}
	m.start(0)
	return m
}

// act returns an action that runs f, possibly with a fault.
func (m *model) act(f func()) func(*rapid.T) {
	return func(t *rapid.T) {
		m.t = t
		at := rapid.IntRange(0, 30).Draw(t, "fault at")
		kind := rapid.SampledFrom([]effect{well, well, refused, full, torn, crashBefore, crashAfter}).Draw(t, "fault")
		lasting := rapid.Bool().Draw(t, "lasting") && kind != torn
		n := 0
		m.disk.fault = func(op, _ string) effect {
			n++
			if n-1 != at && (!lasting || n-1 < at) {
				return well
			}
			if kind == full && op != "write" && op != "append" {
				return well // the operation needs no space
			}
			if kind != well && kind != full && (op == "open" || op == "list" || op == "lock") {
				m.hurt = true
			}
			return kind
		}
		defer func() { m.disk.fault = nil }()
		if m.survive(f) {
			return
		}
		m.disk.fault, m.wounded = nil, true // the last line may be cut off
		if rapid.Bool().Draw(t, "and power loss") {
			m.powerLoss()
			return
		}
		m.disk.endProcess()
		m.again()
	}
}

// survive reports whether the process survives f.
func (m *model) survive(f func()) (alive bool) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(crashed); !ok {
				panic(p)
			}
		}
	}()
	f()
	return true
}

func (m *model) mine() []*track {
	var all []*track
	for _, id := range modelIDs {
		all = append(all, m.tracks[work{m.owner, id}])
	}
	return all
}

func (m *model) draw() (string, *track) {
	id := rapid.SampledFrom(modelIDs).Draw(m.t, "id")
	return id, m.tracks[work{m.owner, id}]
}

// bound records that the directory certainly has the binding of this owner.
func (m *model) bound() {
	for w, other := range m.tracks {
		if w.owner != m.owner && other.latest() == 0 {
			other.all()
		}
	}
	m.discard(func(a attempt) bool { return a.owner != m.owner })
}

func (m *model) discard(which func(attempt) bool) {
	for i, a := range m.given {
		m.given[i].discarded = a.discarded || which(a)
	}
}

func (m *model) event(id string, version int32) codec.Event {
	e := spec(m.tb, id, int(version))
	e.SetSubject(owners[m.owner].ClusterUID)
	return e
}

func (m *model) put() {
	id, w := m.draw()
	m.version++
	w.states = append(w.states, m.version)
	if m.typed(m.j.Put(m.event(id, m.version))) == nil {
		w.visible = len(w.states) - 1
		m.bound()
	}
}

func (m *model) remove() {
	id, w := m.draw()
	w.states = append(w.states, 0)
	if m.typed(m.j.Remove(id)) == nil {
		w.visible = len(w.states) - 1
	}
}

// typed checks that an error of the disk is an *Error. After it the log must be compacted.
func (m *model) typed(err error) error {
	var e *Error
	if err != nil && !errors.As(err, &e) {
		m.t.Fatalf("an error without a type: %v", err)
	}
	m.failed, m.wounded = m.failed || err != nil, m.wounded || err != nil
	if err != nil && !m.j.NeedsCompaction() {
		m.t.Fatalf("something failed, but no compaction is needed: %v", err)
	}
	return err
}

// renew compacts the log with the works in memory.
func (m *model) renew() {
	c := Content{Works: func(yield func(codec.Event, error) bool) {
		for i, tr := range m.mine() {
			if v := tr.latest(); v != 0 && !yield(m.event(modelIDs[i], v), nil) {
				return
			}
		}
	}}
	c.Reported, c.Left = m.known, leftOf(m.known)
	err := m.j.Compact(c)
	if err != nil && m.j.NeedsCompaction() {
		_ = m.typed(err)
	} else if err == nil {
		m.failed, m.wounded = false, false
		m.bound()
		for _, tr := range m.mine() {
			tr.all()
		}
	}
}

func leftOf(r Reported) map[string]map[string]string {
	if r.Accepted == nil {
		return nil
	}
	return map[string]map[string]string{"left": r.Accepted}
}

func (m *model) checkpoint() {
	if m.failed {
		if m.renew(); m.failed {
			return
		}
	}
	given := map[work]int{}
	for w, tr := range m.tracks {
		given[w] = len(tr.states) - 1
	}
	m.given = append(m.given, attempt{owner: m.owner, has: given})
	if m.typed(m.j.Checkpoint(cursor(len(m.given)))) != nil {
		return
	}
	m.bound()
	m.kept = len(m.given)
	for _, tr := range m.mine() {
		tr.visible, tr.stable = len(tr.states)-1, len(tr.states)-1
	}
}

func (m *model) dropCursor() {
	m.kept = 0
	if m.typed(m.j.Checkpoint(codec.Cursor{})) == nil {
		m.discard(func(attempt) bool { return true })
	}
}

func (m *model) report() {
	r := Reported{Sequence: fmt.Sprint(len(m.saved)), Accepted: map[string]string{"a": fmt.Sprint(m.version), "owner": fmt.Sprint(m.owner)}}
	m.saved, m.known = append(m.saved, r), r
	_ = m.typed(m.j.Note(r, leftOf(r)))
	if m.typed(m.j.Reserve(fmt.Sprint(len(m.saved)))) == nil {
		m.reserved = len(m.saved)
	}
}

func (m *model) restart() {
	if err := m.j.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.disk.endProcess()
	owner := m.owner
	if rapid.IntRange(0, 5).Draw(m.t, "other binding") == 0 {
		owner, m.kept = 1-owner, 0
	}
	m.start(owner)
}

func (m *model) powerLoss() {
	m.disk.powerLoss(func(n int) int { return rapid.IntRange(0, n-1).Draw(m.t, "what remains") })
	m.lossy = true
	m.again()
}

func (m *model) again() { m.start(m.owner) }

func (m *model) flip(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(m.disk.files))).Draw(t, "file")
	if len(m.disk.files[name].data) > 0 {
		m.disk.flip(name, rapid.IntRange(0, 1000).Draw(t, "byte"))
		m.hurt, m.flipped = true, true
	}
}

// start starts a process and checks the loaded state.
func (m *model) start(owner int) {
	m.owner = owner
	j, err := Open(Config{Dir: "state", disk: m.disk})
	if err != nil {
		if m.disk.fault == nil {
			m.t.Fatalf("open: %v", err)
		}
		var e *Error
		if !errors.As(err, &e) {
			m.t.Fatalf("an error without a type: %v", err)
		}
		m.disk.fault = nil
		m.disk.endProcess()
		m.start(owner)
		return
	}
	m.j = j
	found := holding{}
	s, err := j.Load(owners[owner], func(e codec.Event) error {
		if e.Subject() != owners[owner].ClusterUID {
			m.t.Fatalf("a work of %s is loaded by %s", e.Subject(), owners[owner].ClusterUID)
		}
		return found.put(e)
	}, found.removed)
	if err != nil {
		m.t.Fatalf("load: %v", err)
	}
	m.compare(s, found)
	m.known = s.Reported
	if m.failed = false; m.disk.forgotten {
		// A sync of the previous process failed, which this one cannot know. A persister compacts the log first, which
		// repairs it.
		m.disk.fault, m.disk.forgotten = nil, false
		m.renew()
	} else if rapid.Bool().Draw(m.t, "as a persister does") {
		m.renew()
	}
}

func (m *model) compare(s LoadResult, found holding) {
	m.wounded = m.wounded || m.hurt || m.lossy
	if s.Damaged > 0 && !m.wounded {
		m.t.Fatalf("%d damaged records, but nothing happened to them", s.Damaged)
	}
	if len(s.Reported.Accepted) > 0 && (s.Reported.Accepted["owner"] != fmt.Sprint(m.owner) ||
		!slices.ContainsFunc(m.saved, func(r Reported) bool { return cmp.Equal(r, s.Reported) })) {
		m.t.Fatalf("reported that was never saved here: %v", s.Reported)
	}
	if s.Left != nil && (s.Left["left"]["owner"] != fmt.Sprint(m.owner) || !slices.ContainsFunc(m.saved, func(r Reported) bool { return cmp.Equal(leftOf(r), s.Left) })) {
		m.t.Fatalf("orphaned objects that were never saved here: %v", s.Left)
	}
	if n, err := strconv.Atoi(s.Reserved); s.Reserved != "" && err != nil || n < m.reserved && !m.flipped && !m.hurt {
		m.t.Fatalf("sequence ids up to %d were reserved, and %q is loaded", m.reserved, s.Reserved)
	}
	if n, err := strconv.Atoi(s.Reserved); err != nil || n < m.reserved { // a lost reservation does not appear again
		m.reserved = n
	}
	covered := m.covered(s)
	for _, id := range modelIDs {
		w := work{m.owner, id}
		tr := m.tracks[w]
		from := tr.visible
		if m.lossy {
			from = tr.stable
		}
		got, damaged := found[id], covered == nil && (s.Damaged > 0 || m.hurt)
		switch {
		case damaged:
			from = tr.first
		case covered != nil:
			from = max(from, covered[w])
		}
		if !slices.Contains(tr.states[from:], got) && (got != 0 || !damaged) {
			m.t.Fatalf("work %s is %d, want one of %v (cursor %v, damaged %d)", id, got, tr.states[from:], s.Cursor, s.Damaged)
		}
		tr.states = append(tr.states, got)
		if !damaged {
			tr.visible = len(tr.states) - 1
		}
	}
	for w, tr := range m.tracks {
		if w.owner != m.owner {
			tr.states = append(tr.states, 0)
		}
	}
	m.hurt, m.lossy = false, false
}

// covered returns the states that the loaded cursor covers; nil if there is no cursor.
func (m *model) covered(s LoadResult) map[work]int {
	if s.Damaged > 0 || m.hurt {
		m.kept = 0
	}
	n := int(s.Cursor.Revision)
	if n < m.kept {
		m.t.Fatalf("the cursor %d was stored, and %d is read", m.kept, n)
	}
	if n == 0 {
		return nil
	}
	if n > len(m.given) || m.given[n-1].discarded || m.given[n-1].owner != m.owner {
		m.t.Fatalf("the cursor %v is not one that may be there", s.Cursor)
	}
	return m.given[n-1].has
}

// heal checks that everything gets to the disk when no operation fails.
func (m *model) heal() {
	if rapid.Bool().Draw(m.t, "restart before healing") || m.hurt {
		m.restart()
	}
	m.renew()
	m.report()
	m.checkpoint()
	if m.kept != len(m.given) {
		m.t.Fatal("nothing fails, but the checkpoint did")
	}
	want := LoadResult{Cursor: cursor(m.kept), Reported: m.saved[len(m.saved)-1], Left: leftOf(m.saved[len(m.saved)-1]), Reserved: fmt.Sprint(m.reserved)}
	if m.reserved != len(m.saved) {
		m.t.Fatal("nothing fails, but the reservation did")
	}
	last := holding{}
	for _, id := range modelIDs {
		if v := m.tracks[work{m.owner, id}].latest(); v != 0 {
			last[id] = v
		}
	}
	forgotten := m.disk.forgotten
	m.disk.powerLoss(func(n int) int { return rapid.IntRange(0, n-1).Draw(m.t, "what remains") })
	j, err := Open(Config{Dir: "state", disk: m.disk})
	if err != nil {
		m.t.Fatal(err)
	}
	found := holding{}
	got, err := j.Load(owners[m.owner], found.put, found.removed)
	if err != nil {
		m.t.Fatal(err)
	}
	if forgotten && got.Damaged > 0 && got.Cursor == (codec.Cursor{}) {
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		m.t.Fatalf("state after healing (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(last, found); diff != "" {
		m.t.Fatalf("works after healing (-want +got):\n%s", diff)
	}
}
