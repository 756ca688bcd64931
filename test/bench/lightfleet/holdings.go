package main

import (
	"github.com/hawser-io/hawser/pkg/codec"
)

// holdings are the works that an agent holds: versions and tags, and their digest.
type holdings struct {
	works  map[string]codec.ResourceVersion
	digest codec.Digest
}

// put stores a work. It replaces an older version of the work.
func (h *holdings) put(id string, version int64, tag codec.Tag) {
	if h.works == nil {
		h.works = map[string]codec.ResourceVersion{}
	}
	if old, ok := h.works[id]; ok {
		oldTag, _ := codec.ParseTag(old.Tag) // put formatted it
		h.digest.Count--
		h.digest.Sum = h.digest.Sum.Sub(codec.RecordHash(id, oldTag))
	}
	h.works[id] = codec.ResourceVersion{ResourceID: id, ResourceVersion: version, Tag: tag.String()}
	h.digest.Count++
	h.digest.Sum = h.digest.Sum.Add(codec.RecordHash(id, tag))
}

// list returns all works, in any order.
func (h *holdings) list() []codec.ResourceVersion {
	all := make([]codec.ResourceVersion, 0, len(h.works))
	for _, w := range h.works {
		all = append(all, w)
	}
	return all
}

// answer is what an agent publishes after a checkpoint.
type answer uint8

// The answers.
const (
	ackCursor answer = iota + 1 // a partial checkpoint: only the cursor is acknowledged
	ackInSync                   // the digests are equal
	sendList                    // they differ, and no list was sent on this subscription
	ackOther                    // they differ also after a list
)

// decide returns the answer to a checkpoint, as P-50 of the protocol requires. broker is the digest in the
// checkpoint, nil in a partial one.
func decide(own codec.Digest, broker *codec.Digest, listed bool) answer {
	switch {
	case broker == nil:
		return ackCursor
	case *broker == own:
		return ackInSync
	case !listed:
		return sendList
	}
	return ackOther
}
