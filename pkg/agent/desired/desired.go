// Package desired holds what the sources want on one cluster: for every work
// the latest spec that was accepted, or its deletion until that is confirmed.
//
// It is pure and keeps no history; [Set.Accept] decides whether a received spec
// replaces what is held. A Hawser broker numbers specs with revisions, and
// within one subscription the higher revision wins. A stock broker does not,
// and its specs are ordered by version.
package desired

import (
	"maps"
	"slices"
	"strings"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// Work is one work as its latest accepted spec has it. It is never modified:
// another spec makes another Work.
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
	// Problem is why the latest spec cannot be used; "" if it can.
	Problem string
	// InForce is the latest spec that can be used.
	InForce

	subscription uint64
}

// InForce is a spec that can be used. The zero value is none; of a deletion, it
// means that its delete options are not known.
type InForce struct {
	Labels map[string]string
	Spec   *workv1.ManifestWorkSpec
	// SpecGeneration and SpecTag are those of this spec.
	SpecGeneration int64
	SpecTag        codec.Tag
}

// Outcome is what became of a received spec.
type Outcome string

// The outcomes.
const (
	// Accepted: it is what is wanted now.
	Accepted Outcome = "accepted"
	// Duplicate: it is what was wanted already.
	Duplicate Outcome = "duplicate"
	// Stale: something newer is held.
	Stale Outcome = "stale"
	// Foreign: it comes from a source that does not own the work or its name.
	Foreign Outcome = "foreign"
)

// View is everything that concerns one work name.
type View struct {
	// Live is the work that has the name; nil if there is none.
	Live *Work
	// Deleted are works of that name that their sources deleted, in the order of
	// their ids.
	Deleted []*Work
	// Renamed is the id of a work that had the name and goes on under another;
	// "" if there is none.
	Renamed string
}

// Empty reports whether nothing is wanted under the name.
func (v View) Empty() bool { return v.Live == nil && len(v.Deleted) == 0 && v.Renamed == "" }

// Set is the set of works of one cluster. It is not safe for concurrent use.
type Set struct {
	works        map[string]*Work
	names        map[string]*name
	subscription uint64
	hawser       bool
}

// name is who lays claim to a work name.
type name struct {
	live    string // id
	deleted map[string]bool
	renamed string // id
}

// New returns an empty set.
func New() *Set { return &Set{works: map[string]*Work{}, names: map[string]*name{}} }

// Subscribed begins a subscription. hawser says that the broker is a Hawser
// broker, whose revisions order the specs of the subscription.
func (s *Set) Subscribed(hawser bool) {
	s.subscription++
	s.hawser = hawser
}

// Decision is the answer of Accept.
type Decision struct {
	Outcome Outcome
	// Names are the work names for which something is to be done; none unless
	// the spec was accepted, or is a deletion that is known already.
	Names []string
	// Replaced is the id of another work that lost its name to this one and is
	// no longer held; "" if there is none.
	Replaced string
}

// Accept takes a received spec. problem is why the spec cannot be used, "" if
// it can.
func (s *Set) Accept(spec *manifestwork.Spec, problem string) Decision {
	held := s.works[spec.ResourceID]
	if held != nil && held.Tag == spec.Tag && held.Deleting == spec.Deleting {
		again := *held
		again.Revision, again.subscription = max(held.Revision, spec.Revision), s.subscription
		s.works[spec.ResourceID] = &again
		if held.Deleting {
			return Decision{Outcome: Duplicate, Names: []string{held.Name}}
		}
		return Decision{Outcome: Duplicate}
	}
	if outcome := s.judge(held, spec); outcome != Accepted {
		return Decision{Outcome: outcome}
	}
	d := Decision{Outcome: Accepted}
	w := s.next(held, spec, problem)
	if held != nil {
		s.release(held)
		if held.Name != w.Name {
			s.name(held.Name).renamed = w.ResourceID
			d.Names = append(d.Names, held.Name)
		}
	}
	d.Replaced = s.claim(w)
	s.works[w.ResourceID] = w
	d.Names = append(d.Names, w.Name)
	return d
}

// judge compares a spec with what is held of the same work, or of its name.
func (s *Set) judge(held *Work, spec *manifestwork.Spec) Outcome {
	if !s.hawser {
		return s.judgeByVersion(held, spec)
	}
	notOlder := held != nil && (spec.Version == 0 || spec.Version >= held.Version)
	switch {
	case held == nil, spec.Revision > held.Revision:
		return Accepted
	case held.subscription != s.subscription && notOlder:
		return Accepted // another store, with revisions of its own
	}
	return Stale
}

func (s *Set) judgeByVersion(held *Work, spec *manifestwork.Spec) Outcome {
	if held == nil {
		if n := s.names[spec.Name]; n != nil && n.live != "" && !spec.Deleting && s.works[n.live].Source != spec.Source {
			return Foreign
		}
		return Accepted
	}
	switch {
	case held.Source != spec.Source:
		return Foreign
	case spec.Deleting:
		return Accepted
	case held.Deleting && spec.Action != codec.CreateRequest && spec.Version <= held.Version:
		return Stale // sent before the deletion
	case !held.Deleting && spec.Version != 0 && spec.Version < held.Version:
		return Stale
	}
	return Accepted
}

// next builds the work that replaces held.
func (s *Set) next(held *Work, spec *manifestwork.Spec, problem string) *Work {
	w := &Work{
		Ref: spec.Ref, Source: spec.Source, Version: spec.Version, Revision: spec.Revision, Tag: spec.Tag,
		Deleting: spec.Deleting, subscription: s.subscription,
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
	if !usable && (!held.Deleting || spec.Deleting) { // what is made anew inherits nothing
		w.InForce = held.InForce
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

// claim enters a work under its name. A live work takes the name from another,
// which is thereby forgotten: its source has only the new one.
func (s *Set) claim(w *Work) (replaced string) {
	n := s.name(w.Name)
	if w.Deleting {
		n.deleted[w.ResourceID] = true
		return ""
	}
	if replaced = n.live; replaced != "" {
		delete(s.works, replaced)
	}
	n.live, n.renamed = w.ResourceID, ""
	return replaced
}

// release takes a work from its name.
func (s *Set) release(w *Work) {
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

// Forget drops a deleted work whose deletion was confirmed, unless it was
// replaced meanwhile.
func (s *Set) Forget(w *Work) {
	held := s.works[w.ResourceID]
	if held == nil || held.Tag != w.Tag || !held.Deleting {
		return
	}
	s.release(held)
	delete(s.works, w.ResourceID)
}

// ForgetName drops the memory that a work had this name before.
func (s *Set) ForgetName(name string) {
	if n := s.names[name]; n != nil {
		n.renamed = ""
		s.sweep(name)
	}
}

// Get returns the work with this id; nil if none is held.
func (s *Set) Get(id string) *Work { return s.works[id] }

// ByName returns what is wanted under a name.
func (s *Set) ByName(n string) View {
	e := s.names[n]
	if e == nil {
		return View{}
	}
	v := View{Live: s.works[e.live], Renamed: e.renamed}
	for _, id := range slices.Sorted(maps.Keys(e.deleted)) {
		v.Deleted = append(v.Deleted, s.works[id])
	}
	return v
}

// All returns every work, in the order of their ids.
func (s *Set) All() []*Work {
	return slices.SortedFunc(maps.Values(s.works), func(a, b *Work) int { return strings.Compare(a.ResourceID, b.ResourceID) })
}

// Versions is the content of a spec resync request: everything that is held.
func (s *Set) Versions() []codec.ResourceVersion {
	list := make([]codec.ResourceVersion, 0, len(s.works))
	for _, w := range s.All() {
		list = append(list, codec.ResourceVersion{ResourceID: w.ResourceID, ResourceVersion: w.Version, Tag: w.Tag.String()})
	}
	return list
}
