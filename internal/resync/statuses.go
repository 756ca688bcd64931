package resync

import (
	"iter"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Status is what a party keeps of the status of one work.
type Status struct {
	ID string
	// Hash is the statushash attribute of the status; "" when it has none.
	Hash string
	// Final: the status says that the work is gone. It is sent whatever the
	// asking party lists, until that party stops listing the id.
	Final bool
}

type heldHash struct {
	hash      string
	ambiguous bool
	seen      bool
}

// Statuses compares a list of status hashes with the statuses a party keeps:
// [NewStatuses], then [Statuses.Needs] once per status, then
// [Statuses.Unknown]. It is for one goroutine.
type Statuses struct {
	held map[string]heldHash
}

// NewStatuses begins a comparison with the hashes somebody lists. The empty
// list asks for every status.
func NewStatuses(list []codec.StatusHash) *Statuses {
	s := &Statuses{held: make(map[string]heldHash, len(list))}
	for _, v := range list {
		h := heldHash{hash: v.StatusHash}
		if old, twice := s.held[v.ResourceID]; twice && old.hash != h.hash {
			h.ambiguous = true
		}
		s.held[v.ResourceID] = h
	}
	return s
}

// Needs reports whether the party that listed the hashes needs this status. An
// id it does not list means nothing to it.
func (s *Statuses) Needs(st Status) bool {
	if len(s.held) == 0 {
		return true
	}
	h, has := s.held[st.ID]
	if !has {
		return false
	}
	h.seen = true
	s.held[st.ID] = h
	return st.Final || h.ambiguous || st.Hash == "" || h.hash != st.Hash
}

// Unknown returns, sorted, the listed ids for which Needs was not asked.
func (s *Statuses) Unknown() []string {
	var ids []string
	for id, h := range s.held {
		if !h.seen {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Bounds of one status resync request, for [Chunks]: what other
// implementations take without complaint.
const (
	MaxHashes     = 1000
	MaxHashesSize = 256 << 10 // bytes of JSON
)

// Chunks cuts a list of hashes into requests of at most [MaxHashes] entries and
// about [MaxHashesSize] bytes of JSON; an entry that is larger by itself goes
// alone. Of an empty list there is no chunk: an empty request asks for every
// status, so whoever wants that must say so.
func Chunks(hashes []codec.StatusHash) iter.Seq[[]codec.StatusHash] { return ChunksOf(hashes, 0) }

// ChunksOf does the same where an event may have so many bytes at most, 0 if nobody knows:
// half of that is left for all that is not the list.
func ChunksOf(hashes []codec.StatusHash, event int) iter.Seq[[]codec.StatusHash] {
	most := MaxHashesSize
	if event > 0 {
		most = min(most, event/2)
	}
	return func(yield func([]codec.StatusHash) bool) {
		start, size := 0, 0
		for i, h := range hashes {
			n := jsonSize(h)
			if i > start && (i-start == MaxHashes || size+n > most) {
				if !yield(hashes[start:i:i]) {
					return
				}
				start, size = i, 0
			}
			size += n
		}
		if start < len(hashes) {
			yield(hashes[start:])
		}
	}
}

// jsonSize is an upper bound of the bytes of one entry and its comma.
func jsonSize(h codec.StatusHash) int {
	return len(`{"resourceID":"","statusHash":""},`) + quotedSize(h.ResourceID) + quotedSize(h.StatusHash)
}

func quotedSize(s string) int {
	n := len(s)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			n += len(`\u0000`) - 1
		}
	}
	return n
}
