// Package desired holds the desired state of one cluster: for every work the latest accepted spec, or its
// deletion until that is confirmed.
//
// It is pure and stores no history. [Set.Accept] decides whether a received spec replaces the held one. A
// Hawser broker numbers specs with revisions. While two revisions are known to be of one history, the higher
// one wins (history.go). An OCM broker has no revisions; its specs are ordered by version.
//
// Works of an earlier process are loaded as unconfirmed: it is unknown whether they are still wanted. They stay
// unconfirmed until they are received, or until [Set.Confirm] is called.
package desired

import (
	"maps"
	"slices"
	"strings"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// Work is a work in the form of its latest accepted spec. It is immutable: another spec creates another Work.
type Work struct {
	manifestwork.Ref
	// Source owns the work.
	Source string
	// Version, Revision and Tag are those of the latest accepted spec.
	Version  int64
	Revision uint64
	Tag      codec.Tag
	// Deleting: the source deleted the work.
	Deleting bool
	// Problem is why the latest spec is unusable; "" if it is usable.
	Problem string
	// InForce is the latest usable spec.
	InForce
}

// InForce is a usable spec. The zero value means none. For a deletion it means that the delete options are
// unknown.
type InForce struct {
	Labels map[string]string
	Spec   *workv1.ManifestWorkSpec
	// SpecGeneration and SpecTag are those of this spec. For a deletion they are those of the last spec in force
	// before it, if known.
	SpecGeneration int64
	SpecTag        codec.Tag
}

// Outcome is the result of a received spec.
type Outcome string

// The outcomes.
const (
	// Accepted: it is the desired state now.
	Accepted Outcome = "accepted"
	// Duplicate: it was the desired state already.
	Duplicate Outcome = "duplicate"
	// Stale: a newer spec is held.
	Stale Outcome = "stale"
	// Foreign: its source does not own the work or its name.
	Foreign Outcome = "foreign"
)

// View is the state of one work name.
type View struct {
	// Live is the work with the name; nil if there is none.
	Live *Work
	// Deleted are the deleted works of that name, in the order of their ids.
	Deleted []*Work
	// Renamed is the id of a work that had the name and now has another; "" if there is none.
	Renamed string
}

// Empty reports whether nothing is desired under the name.
func (v View) Empty() bool { return v.Live == nil && len(v.Deleted) == 0 && v.Renamed == "" }

// Set is the set of works of one cluster. It is not safe for concurrent use.
type Set struct {
	works  map[string]*entry
	names  map[string]*name
	digest codec.Digest // of the live works
	// history numbers the histories of revisions. clock counts received specs.
	history, clock uint64
	hawser         bool
	// lines has the sessions of sources that number their events themselves, because the broker is stateless; see
	// sourceSession.
	lines map[string]sourceSession
}

// entry is a work with its confirmation state.
type entry struct {
	*Work
	// revision is a lower bound: the held spec does not exceed it, and every later spec of the work does.
	revision uint64
	// history is the history of revision. If it differs from the set's, the order of revisions is unknown.
	history uint64
	// received is the clock when the work was last received, 0 if it was loaded.
	received    uint64
	unconfirmed bool
	// finished: the work is deleted, and nothing of it is left.
	finished bool
}

// name has the works that claim a work name.
type name struct {
	live    string // id
	deleted map[string]bool
	renamed string // id
}

// New returns an empty set.
func New() *Set {
	return &Set{works: map[string]*entry{}, names: map[string]*name{}, lines: map[string]sourceSession{}}
}

// AcceptResult is the result of Accept.
type AcceptResult struct {
	Outcome Outcome
	// Names are the work names to reconcile; none unless the spec was accepted or is a known deletion.
	Names []string
	// Replaced is the id of another work that lost its name to this one and is no longer held; "" if there is none.
	Replaced string
}

// Classify returns what Accept would do with a spec. If the result is Accepted, it also returns the work that
// would be held. For a Duplicate it returns the held work with the new revision, or nil. A new revision means
// that the source had another spec in between and needs the status again.
func (s *Set) Classify(spec *manifestwork.Spec, problem string) (Outcome, *Work) {
	held := s.works[spec.ResourceID]
	// A work that an operator gave to another source arrives again unchanged.
	adopted := held != nil && held.Source != spec.Source && (s.hawser || s.isUnconfirmed(held) && !spec.Deleting)
	if held != nil && held.Tag == spec.Tag && held.Deleting == spec.Deleting && !adopted {
		return Duplicate, s.renewed(held, spec)
	}
	if outcome := s.classify(held, spec); outcome != Accepted {
		return outcome, nil
	}
	return Accepted, next(held.work(), spec, problem)
}

// Accept processes a received spec. problem is why the spec is unusable, "" if it is usable.
func (s *Set) Accept(spec *manifestwork.Spec, problem string) AcceptResult {
	held := s.works[spec.ResourceID]
	outcome, w := s.Classify(spec, problem)
	d := AcceptResult{Outcome: outcome}
	switch outcome {
	case Duplicate:
		if w != nil {
			held.Work = w
		}
		// A work of an earlier process must be reconciled now.
		if held.Deleting || held.unconfirmed {
			d.Names = []string{held.Name}
		}
		s.received(held, spec)
	case Accepted:
		if held != nil {
			s.vacate(held.Work)
			if held.Name != w.Name {
				s.name(held.Name).renamed = w.ResourceID
				d.Names = append(d.Names, held.Name)
			}
		}
		d.Replaced = s.claim(w)
		d.Names = append(d.Names, w.Name)
		e := &entry{Work: w}
		s.put(e)
		s.received(e, spec)
	case Stale, Foreign:
	}
	return d
}

func (e *entry) work() *Work {
	if e == nil {
		return nil
	}
	return e.Work
}

// put adds a work to the set.
func (s *Set) put(e *entry) {
	s.take(e.ResourceID)
	s.works[e.ResourceID] = e
	if !e.Deleting {
		s.digest.Add(codec.RecordHash(e.ResourceID, e.Tag))
	}
}

func (s *Set) drop(id string) {
	if e := s.works[id]; e != nil {
		s.forgotten(e, 0)
		s.take(id)
	}
}

func (s *Set) take(id string) {
	e := s.works[id]
	if e == nil {
		return
	}
	delete(s.works, id)
	if !e.Deleting {
		s.digest.Remove(codec.RecordHash(e.ResourceID, e.Tag))
	}
}

// next builds the work that replaces held.
func next(held *Work, spec *manifestwork.Spec, problem string) *Work {
	w := &Work{
		Ref: spec.Ref, Source: spec.Source, Version: spec.Version, Revision: spec.Revision, Tag: spec.Tag,
		Deleting: spec.Deleting,
	}
	if !spec.Deleting {
		w.Problem = problem
	}
	usable := spec.HasData && (problem == "" || spec.Deleting)
	if usable {
		w.InForce = InForce{Labels: spec.Work.Labels, Spec: &spec.Work.Spec, SpecGeneration: spec.Generation, SpecTag: spec.Tag}
	}
	if held == nil {
		return w
	}
	switch {
	case !usable && (!held.Deleting || spec.Deleting): // a work that was created again inherits nothing
		w.InForce = held.InForce
	case spec.Deleting && held.Spec != nil:
		w.SpecGeneration, w.SpecTag = held.SpecGeneration, held.SpecTag
	}
	if spec.Deleting || problem != "" {
		w.Name = held.Name // metadata may be missing or unreadable
	}
	return w
}

func (s *Set) name(n string) *name {
	if s.names[n] == nil {
		s.names[n] = &name{deleted: map[string]bool{}}
	}
	return s.names[n]
}

// claim registers a work under its name. A live work takes the name from another one. That work is thereby
// dropped: its source has only the new one.
func (s *Set) claim(w *Work) (replaced string) {
	n := s.name(w.Name)
	if w.Deleting {
		n.deleted[w.ResourceID] = true
		return ""
	}
	if replaced = n.live; replaced != "" {
		s.forgotten(s.works[replaced], w.Revision)
		s.drop(replaced)
	}
	n.live, n.renamed = w.ResourceID, ""
	return replaced
}

// vacate removes a work from its name.
func (s *Set) vacate(w *Work) {
	n := s.names[w.Name]
	if n == nil {
		return
	}
	delete(n.deleted, w.ResourceID)
	if n.live == w.ResourceID {
		n.live = ""
	}
	s.sweep(w.Name)
}

func (s *Set) sweep(name string) {
	if n := s.names[name]; n != nil && n.live == "" && n.renamed == "" && len(n.deleted) == 0 {
		delete(s.names, name)
	}
}

// Forget drops a deleted work whose deletion was confirmed, unless it was replaced in the meantime.
func (s *Set) Forget(w *Work) {
	if held := s.works[w.ResourceID]; held != nil && held.Tag == w.Tag && held.Deleting {
		s.Drop(w.ResourceID)
	}
}

// Drop drops a work in any state.
func (s *Set) Drop(id string) {
	if held := s.works[id]; held != nil {
		s.vacate(held.Work)
		s.drop(id)
	}
}

// ForgetName drops the entry that a work had this name before.
func (s *Set) ForgetName(name string) {
	if n := s.names[name]; n != nil {
		n.renamed = ""
		s.sweep(name)
	}
}

// Get returns the work with this id; nil if none is held.
func (s *Set) Get(id string) *Work { return s.works[id].work() }

// ByName returns the desired state of a name.
func (s *Set) ByName(n string) View {
	e := s.names[n]
	if e == nil {
		return View{}
	}
	v := View{Live: s.Get(e.live), Renamed: e.renamed}
	for _, id := range slices.Sorted(maps.Keys(e.deleted)) {
		v.Deleted = append(v.Deleted, s.Get(id))
	}
	return v
}

// All returns every work, in the order of their ids.
func (s *Set) All() []*Work {
	list := make([]*Work, 0, len(s.works))
	for _, e := range s.works {
		list = append(list, e.Work)
	}
	slices.SortFunc(list, func(a, b *Work) int { return strings.Compare(a.ResourceID, b.ResourceID) })
	return list
}

// Each calls f with every work, in no order, and whether it is unconfirmed.
func (s *Set) Each(f func(w *Work, unconfirmed bool)) {
	for _, e := range s.works {
		f(e.Work, e.unconfirmed)
	}
}

// Versions returns the content of a spec resync request: all held works. An OCM broker does not confirm listed
// works. Unconfirmed works are omitted for it, so that it sends them; otherwise they would stay unconfirmed. A
// Hawser broker repeats a loaded deletion, which is listed without its version.
func (s *Set) Versions() []codec.ResourceVersion {
	list := make([]codec.ResourceVersion, 0, len(s.works))
	for _, w := range s.All() {
		e := s.works[w.ResourceID]
		if e.unconfirmed && !s.hawser {
			continue
		}
		v := codec.ResourceVersion{ResourceID: w.ResourceID, ResourceVersion: w.Version, Tag: w.Tag.String()}
		if e.loadedDeletion() {
			v.ResourceVersion = 0
		}
		list = append(list, v)
	}
	return list
}
