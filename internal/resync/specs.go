package resync

import (
	"encoding/hex"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
)

// State is what a record is.
type State uint8

// The states. The zero value is none of them, so that a forgotten field shows.
const (
	// Live: the work exists at its source.
	Live State = iota + 1
	// Deleted: the source deleted the work and the cluster has not confirmed.
	Deleted
	// Confirmed: the source deleted the work and the cluster confirmed; only
	// the version is left.
	Confirmed
	// GivenUp: an operator gave a live record up; nothing may be told to the
	// cluster about it.
	GivenUp
)

// Spec is what the broker keeps of one work, as far as a comparison needs it.
type Spec struct {
	ID      string
	State   State
	Version int64 // 0 is unversioned
	Tag     codec.Tag
	// Supersedes: the spec replaced a newer version on its source's word, so
	// versions say nothing about which of two specs is the later one.
	Supersedes bool
	// Reported: the cluster sent a status at some time; ReportedVersion is the
	// spec version it was about.
	Reported        bool
	ReportedVersion int64
}

// SendAction says what an agent needs of one record.
type SendAction uint8

// The decisions.
const (
	// Skip: the agent has it, or there is nothing to tell.
	Skip SendAction = iota + 1
	// Ahead: the agent holds a newer version than the record, live or deleted:
	// the broker's store, or the source, went back in time. Only the source
	// knows what is true.
	Ahead
	// Send: the record in its present form, which for a deletion is the
	// deletion.
	Send
	// SpecThenDeletion: the record is a deletion, and the agent may never have
	// seen the last spec, which says what deletion means (an Orphan rule). A
	// party that gets a deletion together with its data needs only that.
	SpecThenDeletion
)

// listedSpec is one entry of an agent's list.
type listedSpec struct {
	version int64
	tag     string // as listed; "" when the agent lists none
	seen    bool
}

// Specs compares the version list of one agent with the records of its
// cluster: [NewSpecs], then [Specs.Decide] once per record, then
// [Specs.Orphans]. It is for one goroutine.
type Specs struct {
	held map[string]listedSpec
}

// NewSpecs begins a comparison with what an agent lists. An empty list is an
// agent that holds nothing. An id listed twice counts with its lowest version.
func NewSpecs(list []codec.ResourceVersion) *Specs {
	s := &Specs{held: make(map[string]listedSpec, len(list))}
	for _, v := range list {
		h := listedSpec{version: v.ResourceVersion, tag: v.Tag}
		if old, twice := s.held[v.ResourceID]; twice && old.version < h.version {
			h = old
		}
		s.held[v.ResourceID] = h
	}
	return s
}

// Decide says what the agent needs of this record, and takes the id out of the
// orphans.
func (s *Specs) Decide(r Spec) SendAction {
	h, has := s.held[r.ID]
	s.MarkKnown(r.ID)
	switch r.State {
	case Live:
		return decideLive(r, h, has)
	case Deleted:
		return decideDeleted(r, h, has)
	case Confirmed:
		// The agent confirmed and lists the id all the same: its memory went
		// back in time, or the confirmation overtook the list. A deletion that
		// comes twice does no harm.
		switch {
		case has && Newer(h.version, r.Version, r.Supersedes):
			return Ahead
		case has:
			return Send
		}
	case GivenUp:
	}
	return Skip
}

// Newer reports whether a version that an agent lists is newer than a record's. 0 is
// unversioned, and a record that supersedes a newer version is not ordered by versions.
func Newer(listed, version int64, supersedes bool) bool {
	return version != 0 && !supersedes && listed > version
}

func decideLive(r Spec, h listedSpec, has bool) SendAction {
	switch {
	case !has:
		return Send
	case h.tag != "" && h.tag == hex.EncodeToString(r.Tag[:]):
		return Skip
	case Newer(h.version, r.Version, r.Supersedes):
		return Ahead
	case r.Version == 0 || r.Supersedes || h.version < r.Version:
		return Send
	case h.tag != "":
		return Send // same version, another spec
	}
	return Skip
}

func decideDeleted(r Spec, h listedSpec, has bool) SendAction {
	if has && Newer(h.version, r.Version, r.Supersedes) {
		return Ahead // it may have been undone, in a history that the broker lost
	}
	behind, reported := h.version, has
	if !has && r.Reported {
		// An agent that restarted lists nothing and still has the objects of
		// the version it last reported.
		behind, reported = r.ReportedVersion, true
	}
	if reported && (behind < r.Version || r.Version == 0 || r.Supersedes) {
		return SpecThenDeletion
	}
	return Send
}

// MarkKnown takes an id out of the orphans that belongs to no record of its own.
func (s *Specs) MarkKnown(id string) {
	if h, has := s.held[id]; has {
		h.seen = true
		s.held[id] = h
	}
}

// Lists reports whether the agent lists the id.
func (s *Specs) Lists(id string) bool {
	_, has := s.held[id]
	return has
}

// Version returns the version that the agent lists of an id, the lowest one
// when there are several, 0 when it does not list the id.
func (s *Specs) Version(id string) int64 { return s.held[id].version }

// Orphans returns, sorted, the ids that the agent lists and that no record
// given to Decide, nor Explain, explained.
func (s *Specs) Orphans() []string {
	var ids []string
	for id, h := range s.held {
		if !h.seen {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
