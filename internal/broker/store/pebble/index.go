package pebble

import (
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/value"
)

// entry is one value on disk that leads to a record, by its name, its owner, or the revision of one of its
// parts.
type entry struct {
	kind     byte   // keyName, keyOwner or value.Revision
	text     string // name or owner
	revision uint64
	part     store.Part
}

// maxEntries is the maximum number of entries of a record.
const maxEntries = 5

// entries appends all index entries of m, which may be nil. No other function defines indexes. A commit writes
// the difference between the entries before and after; a check compares those of all records with the disk.
func entries(to []entry, m *store.Meta) []entry {
	if m == nil {
		return to
	}
	for _, name := range store.ReservedNames(m) {
		to = append(to, entry{kind: keyName, text: name})
	}
	to = append(to, entry{kind: keyOwner, text: m.Owner})
	spec, status := store.Entries(m)
	if spec != 0 {
		to = append(to, entry{kind: value.Revision, revision: spec, part: store.SpecPart})
	}
	if status != 0 {
		to = append(to, entry{kind: value.Revision, revision: status, part: store.StatusPart})
	}
	return to
}

// appendKey appends the storage key of an entry of the record k.
func (e entry) appendKey(b []byte, k store.Key) []byte {
	switch e.kind {
	case keyName:
		return value.AppendKey(b, keyName, k.Beside(e.text))
	case keyOwner:
		return appendOwnerKey(b, e.text, k)
	default:
		return value.AppendNumberKey(b, value.Revision, e.revision)
	}
}

// appendBody appends the body of an entry of m.
func (e entry) appendBody(b []byte, m *store.Meta) []byte {
	switch e.kind {
	case keyName:
		return append(b, m.ResourceID...)
	case keyOwner:
		return b
	default:
		return value.AppendChange(b, &store.Change{Key: m.Key, Owner: m.Owner, Part: e.part, State: m.State})
	}
}

// leadsTo returns the storage key of the value to which an index entry or a payload belongs: the meta of a
// record, or a bookmark.
func leadsTo(key, body []byte) ([]byte, error) {
	var k store.Key
	var err error
	switch key[0] {
	case keyOwner:
		k, err = parseOwnerKey(key)
	case value.Revision:
		var c store.Change
		if c, err = value.DecodeChange(key, body); c.Part == store.BookmarkPart {
			return value.BookmarkKey(c.Key.ResourceID), err
		}
		k = c.Key
	case keyName:
		k, err = value.ParseKey(key)
		k.ResourceID = string(body)
	default:
		k, err = value.ParseKey(key)
	}
	return value.Key(value.Meta, k), err
}

// payloads are the kinds of values of a record besides its meta.
var payloads = [...]byte{value.Spec, value.Status, value.Queued}

// presence is whether a record has a payload.
type presence uint8

const (
	never presence = iota
	maybe
	always
)

// payloadOf returns whether m has a payload of one kind.
func payloadOf(kind byte, m *store.Meta) presence {
	has, must := m.State != store.ConfirmedTombstone, m.State == store.Live // a tombstone keeps the last spec, if there was one
	switch kind {
	case value.Status:
		has, must = m.StatusRevision != 0, m.State != store.ConfirmedTombstone // a confirmed tombstone that an operator made may have no status
	case value.Queued:
		has, must = m.Queued != nil, m.Queued != nil && !m.Queued.Deleting
	}
	switch {
	case !has:
		return never
	case must:
		return always
	default:
		return maybe
	}
}
