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

// TestJournal_AnyCrash plays agents that come and go on one directory, with
// failures of the file system at any operation, crashes in the middle of any
// operation, power losses and flipped bits. What is loaded then is compared with
// what may be there:
//
//   - of each work a spec that was put, at least as new as the last one that is
//     sure to have survived; none that was removed before; none if a file was
//     damaged, and then the cursor is gone too;
//   - a cursor that was given to Checkpoint, and of each work what the agent had
//     then, or what came after;
//   - nothing of another binding.
func TestJournal_AnyCrash(t *testing.T) {
	t.Parallel()
	// One check of rapid is a hundred sequences.
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
		"report":     m.act(m.report),
		"restart":    m.act(m.restart),
		"power loss": func(t *rapid.T) { m.t = t; m.losePower() },
		"bit flip":   m.flip,
	})
	m.t = t
	m.heal()
}

// owners are bindings that take turns, seldom.
var owners = []Binding{testBinding, {ClusterUID: "uid-2", Cluster: "cluster1", HubHash: "hub", AgentID: "agent"}}

// track is what one binding did with one work: 0 stands for no work, another
// number for a spec. Every attempt counts.
type track struct {
	states []int32
	// visible is the index of the latest state that survives the end of the
	// process, stable that of the latest that survives a power loss.
	visible, stable int
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
	// given are the calls of Checkpoint: cursor n is about given[n-1]. kept is the
	// cursor that must be there, or a later one; 0: none.
	given []attempt
	kept  int
	saved []Reported
	// reserved is the last sequence id that was certainly reserved; flipped: its
	// file may have been damaged.
	reserved int
	flipped  bool
	// hurt: since the last start a file was damaged, or could not be read. lossy:
	// there was a power loss.
	hurt, lossy bool
	// wounded: a damaged file may still be there.
	wounded bool
}

// attempt is a call of Checkpoint: by whom, and how long each track was. Once it
// is void its cursor may not be there any more.
type attempt struct {
	owner int
	has   map[work]int
	void  bool
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

// act runs an action with a fault somewhere in it, perhaps.
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
			if kind == full && op != "write" && op != "mkdir" {
				return well // what needs no space
			}
			if kind != well && kind != full && (op == "read" || op == "list" || op == "lock") {
				m.hurt = true
			}
			return kind
		}
		defer func() { m.disk.fault = nil }()
		if m.survive(f) {
			return
		}
		m.disk.fault = nil
		if rapid.Bool().Draw(t, "and power loss") {
			m.losePower()
			return
		}
		m.disk.endProcess()
		m.again()
	}
}

// survive reports whether the process did.
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

// bound is told that the directory certainly is this owner's.
func (m *model) bound() {
	for w, other := range m.tracks {
		if w.owner != m.owner && other.latest() == 0 {
			other.visible, other.stable = len(other.states)-1, len(other.states)-1
		}
	}
	m.void(func(a attempt) bool { return a.owner != m.owner })
}

func (m *model) void(which func(attempt) bool) {
	for i, a := range m.given {
		m.given[i].void = a.void || which(a)
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
	err := m.j.Put(m.event(id, m.version))
	if dirty := slices.Contains(m.j.Dirty(), id); dirty != (err != nil) {
		m.t.Fatalf("Put of %s: error %v, dirty %t", id, err, dirty)
	}
	m.typed(err)
	if err == nil {
		w.visible = len(w.states) - 1
		m.bound()
	}
}

func (m *model) remove() {
	id, w := m.draw()
	w.states = append(w.states, 0)
	err := m.j.Remove(id)
	m.typed(err)
	if slices.Contains(m.j.Dirty(), id) {
		m.t.Fatalf("%s is dirty although it was removed", id)
	}
	if err == nil {
		w.visible = len(w.states) - 1
	}
}

// typed: every failure of the disk is an *Error.
func (m *model) typed(err error) {
	var e *Error
	if err != nil && !errors.As(err, &e) {
		m.t.Fatalf("an error without a type: %v", err)
	}
}

func (m *model) checkpoint() {
	given := map[work]int{}
	for w, tr := range m.tracks {
		given[w] = len(tr.states) - 1
	}
	m.given = append(m.given, attempt{owner: m.owner, has: given})
	dirty := m.j.Dirty()
	err := m.j.Checkpoint(cursor(len(m.given)))
	m.typed(err)
	if err != nil { // the same once more
		if err = m.j.Checkpoint(cursor(len(m.given))); err != nil {
			return
		}
	}
	if len(dirty) > 0 {
		m.t.Fatalf("a checkpoint although %q are not on disk", dirty)
	}
	m.bound()
	m.kept = len(m.given)
	for _, tr := range m.mine() {
		tr.visible, tr.stable = len(tr.states)-1, len(tr.states)-1
	}
}

func (m *model) dropCursor() {
	m.kept = 0
	err := m.j.DropCursor()
	m.typed(err)
	if err == nil {
		m.void(func(attempt) bool { return true })
	}
}

func (m *model) report() {
	r := Reported{Sequence: fmt.Sprint(len(m.saved)), Accepted: map[string]string{"a": fmt.Sprint(m.version), "owner": fmt.Sprint(m.owner)}}
	m.saved = append(m.saved, r)
	m.typed(m.j.SaveReported(r))
	m.typed(m.j.SaveLeft(r.Accepted))
	err := m.j.Reserve(fmt.Sprint(len(m.saved)))
	m.typed(err)
	if err == nil {
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

func (m *model) losePower() {
	m.disk.losePower(func(n int) int { return rapid.IntRange(0, n-1).Draw(m.t, "what remains") })
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

// start begins a process, and compares what it loads.
func (m *model) start(owner int) {
	m.owner = owner
	j, err := Open(Config{Dir: "state", disk: m.disk, width: 1})
	if err != nil {
		if m.disk.fault == nil {
			m.t.Fatalf("open: %v", err)
		}
		m.typed(err)
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
		return found.take(e)
	})
	if err != nil {
		m.t.Fatalf("load: %v", err)
	}
	m.compare(s, found)
}

func (m *model) compare(s State, found holding) {
	if s.Works != len(found) {
		m.t.Fatalf("State.Works is %d, taken were %d", s.Works, len(found))
	}
	m.wounded = m.wounded || m.hurt || m.lossy
	if s.Damaged > 0 && !m.wounded {
		m.t.Fatalf("%d damaged files, but nothing happened to them", s.Damaged)
	}
	if len(s.Reported.Accepted) > 0 && (s.Reported.Accepted["owner"] != fmt.Sprint(m.owner) ||
		!slices.ContainsFunc(m.saved, func(r Reported) bool { return cmp.Equal(r, s.Reported) })) {
		m.t.Fatalf("reported that was never saved here: %v", s.Reported)
	}
	if s.Left != nil && (s.Left["owner"] != fmt.Sprint(m.owner) || !slices.ContainsFunc(m.saved, func(r Reported) bool { return maps.Equal(r.Accepted, s.Left) })) {
		m.t.Fatalf("what was never said here of objects: %v", s.Left)
	}
	if n, err := strconv.Atoi(s.Reserved); s.Reserved != "" && err != nil || n < m.reserved && !m.flipped && !m.hurt {
		m.t.Fatalf("sequence ids up to %d were reserved, and %q is loaded", m.reserved, s.Reserved)
	}
	covered := m.covered(s)
	for _, id := range modelIDs {
		w := work{m.owner, id}
		tr := m.tracks[w]
		from := tr.visible
		if m.lossy {
			from = tr.stable
		}
		got := found[id]
		dropped := got == 0 && covered == nil && (s.Damaged > 0 || m.hurt)
		if covered != nil {
			from = max(from, covered[w])
		}
		if !slices.Contains(tr.states[from:], got) && !dropped {
			m.t.Fatalf("work %s is %d, want one of %v (cursor %v, damaged %d)", id, got, tr.states[from:], s.Cursor, s.Damaged)
		}
		tr.states = append(tr.states, got)
		if !dropped {
			tr.visible = len(tr.states) - 1
		}
	}
	for w, tr := range m.tracks {
		if w.owner != m.owner {
			tr.states = append(tr.states, 0)
		}
	}
	m.hurt, m.lossy = false, false
	if s.Damaged == 0 && s.Works > 0 { // nothing was left unread as another's
		m.wounded = false
	}
}

// covered returns what the cursor that was loaded covers; nil if there is none.
func (m *model) covered(s State) map[work]int {
	if s.Damaged > 0 || m.hurt {
		m.kept = 0
	}
	n := int(s.Cursor.Revision)
	if n < m.kept {
		m.t.Fatalf("the cursor %d was stored, and is lost: %d", m.kept, n)
	}
	if n == 0 {
		return nil
	}
	if n > len(m.given) || m.given[n-1].void || m.given[n-1].owner != m.owner {
		m.t.Fatalf("the cursor %v is not one that may be there", s.Cursor)
	}
	return m.given[n-1].has
}

// heal: when nothing fails any more, everything gets onto the disk.
func (m *model) heal() {
	if rapid.Bool().Draw(m.t, "restart before healing") || m.hurt {
		m.restart()
	}
	for _, id := range m.j.Dirty() {
		m.version++
		w := m.tracks[work{m.owner, id}]
		w.states = append(w.states, m.version)
		if err := m.j.Put(m.event(id, m.version)); err != nil {
			m.t.Fatalf("put: %v", err)
		}
	}
	m.report()
	m.checkpoint()
	if m.kept != len(m.given) {
		m.t.Fatal("nothing fails, but the checkpoint did")
	}
	want := State{Cursor: cursor(m.kept), Reported: m.saved[len(m.saved)-1], Left: m.saved[len(m.saved)-1].Accepted, Reserved: fmt.Sprint(m.reserved)}
	if m.reserved != len(m.saved) {
		m.t.Fatal("nothing fails, but the reservation did")
	}
	last := holding{}
	for _, id := range modelIDs {
		if v := m.tracks[work{m.owner, id}].latest(); v != 0 {
			last[id] = v
			want.Works++
		}
	}
	forgotten := m.disk.forgotten
	m.disk.losePower(func(n int) int { return rapid.IntRange(0, n-1).Draw(m.t, "what remains") })
	j, err := Open(Config{Dir: "state", disk: m.disk, width: 1})
	if err != nil {
		m.t.Fatal(err)
	}
	found := holding{}
	got, err := j.Load(owners[m.owner], found.take)
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
