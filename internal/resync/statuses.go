package resync

import (
	"iter"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Status is the status of one work that a client holds.
type Status struct {
	ID string
	// Hash is the statushash attribute of the status, "" without one.
	Hash string
	// Final: the status reports the end of the work. It is sent again for any listed hash, until the requesting
	// client no longer lists the id.
	Final bool
}

type heldHash struct {
	hash      string
	ambiguous bool
	seen      bool
}

// Statuses compares a list of status hashes with the statuses that this side holds. Call [NewStatuses], then
// [Statuses.Needs] once per status, then [Statuses.Unknown]. It is for one goroutine.
type Statuses struct {
	held map[string]heldHash
}

// NewStatuses begins a comparison with a list of hashes. The empty list requests every status.
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

// Needs reports whether the client that listed the hashes needs this status. It does not need ids that it does
// not list.
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

// Unknown returns, sorted, the listed ids that were not passed to Needs.
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

// Limits of one status resync request, for [Chunks]: other implementations accept this much.
const (
	MaxHashes     = 1000
	MaxHashesSize = 256 << 10 // bytes of JSON
)

// Chunks splits a list of hashes into requests of at most [MaxHashes] entries and about [MaxHashesSize] bytes
// of JSON. A larger entry gets its own request. An empty list gives no chunk, because an empty request would
// request every status.
func Chunks(hashes []codec.StatusHash) iter.Seq[[]codec.StatusHash] { return ChunksOf(hashes, 0) }

// ChunksOf is Chunks with a maximum size of the event in bytes, 0 if it is unknown. The list may use half of
// it.
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

// jsonSize returns an upper bound of the bytes of one entry and its comma.
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
