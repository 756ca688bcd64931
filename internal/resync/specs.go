package resync

import (
	"encoding/hex"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
)

// State is the state of a record.
type State uint8

// The states. The zero value is none of them, so that a forgotten field shows.
const (
	// Live: the work exists at its source.
	Live State = iota + 1
	// Deleted: the source has deleted the work, and the cluster has not confirmed.
	Deleted
	// Confirmed: the source has deleted the work, and the cluster has confirmed. Only the version is left.
	Confirmed
	// GivenUp: an operator removed a live record. Nothing about it may be sent to the cluster.
	GivenUp
)

// Spec is the part of a record that a comparison needs.
type Spec struct {
	ID      string
	State   State
	Version int64 // 0: no version
	Tag     codec.Tag
	// Supersedes: the source replaced a newer version with this spec, so versions do not show which of two specs is
	// later.
	Supersedes bool
	// Reported: the cluster has sent a status; ReportedVersion is the spec version of the last one.
	Reported        bool
	ReportedVersion int64
}

// SendAction is what to send to an agent for one record.
type SendAction uint8

// The actions.
const (
	// Skip: the agent has it, or there is nothing to send.
	Skip SendAction = iota + 1
	// Ahead: the agent holds a newer version than the record, live or deleted. The broker's store, or the source,
	// went back in time. Only the source knows which is right.
	Ahead
	// Send: the record in its present form; for a deletion that is the deletion.
	Send
	// SpecThenDeletion: the record is a deletion, and the agent may never have received the last spec. That spec
	// defines the effect of the deletion (an Orphan rule). A client that gets a deletion together with its data
	// needs only the deletion.
	SpecThenDeletion
)

// listedSpec is one entry of an agent's list.
type listedSpec struct {
	version int64
	tag     string // as listed; "" without one
	seen    bool
}

// Specs compares the version list of one agent with the records of its cluster. Call [NewSpecs], then
// [Specs.Decide] once per record, then [Specs.Orphans]. It is for one goroutine.
type Specs struct {
	held map[string]listedSpec
}

// NewSpecs begins a comparison with the list of an agent. An empty list means that the agent holds nothing. If
// an id is listed twice, its lowest version counts.
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

// Decide returns what the agent needs of this record, and removes the id from the orphans.
func (s *Specs) Decide(r Spec) SendAction {
	h, has := s.held[r.ID]
	s.MarkKnown(r.ID)
	switch r.State {
	case Live:
		return decideLive(r, h, has)
	case Deleted:
		return decideDeleted(r, h, has)
	case Confirmed:
		// The agent has confirmed, but still lists the id. Its memory went back in time, or the confirmation overtook
		// the list. A second deletion does no harm.
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

// Newer reports whether a listed version is newer than that of the record. A record without a version (0), or
// one that supersedes a newer version, is not ordered by versions.
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
		return Ahead // the source may have undone the deletion in a history that the broker lost
	}
	behind, reported := h.version, has
	if !has && r.Reported {
		// An agent that restarted lists nothing, but still has the objects of the last reported version.
		behind, reported = r.ReportedVersion, true
	}
	if reported && (behind < r.Version || r.Version == 0 || r.Supersedes) {
		return SpecThenDeletion
	}
	return Send
}

// MarkKnown removes an id from the orphans that has no record of its own.
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

// Version returns the listed version of an id: the lowest one of several, 0 if the id is not listed.
func (s *Specs) Version(id string) int64 { return s.held[id].version }

// Orphans returns, sorted, the listed ids that were passed neither to Decide nor to MarkKnown.
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
