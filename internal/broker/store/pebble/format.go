package pebble

import (
	"bytes"
	"cmp"
	"encoding/binary"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/internal/fields"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Kinds of values besides those of package value.
const (
	keyName    = 'n' // data type, cluster, name: the resource id that has it
	keyOwner   = 'o' // owner, data type, cluster, resource id: nothing
	keyStoreID = 'i' // alone: the store id
	keyHead    = 'h' // alone: the last revision

	// Kinds of the formats before 4, in which bookmarks and bindings had no revision. Open replaces them.
	keyFormerBookmark = 'b' // name: the value
	keyFormerCluster  = 'c' // cluster, data type: the uid that its agent sent
)

func nameKey(dt codec.DataType, cluster, name string) []byte {
	return value.Key(keyName, store.Key{DataType: dt, Cluster: cluster, ResourceID: name})
}

func appendOwnerKey(b []byte, owner string, k store.Key) []byte {
	return value.AppendParts(append(b, keyOwner), owner, k.DataType.Group, k.DataType.Version, k.DataType.Resource, k.Cluster, k.ResourceID)
}

// prefix returns a key that all keys with these leading parts start with.
func prefix(kind byte, parts ...string) []byte {
	b := []byte{kind}
	for _, p := range parts {
		b = append(append(b, p...), value.Separator)
	}
	return b
}

// after returns the first key behind all keys that start with a prefix.
func after(prefix []byte) []byte {
	b := bytes.Clone(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return b[:i+1]
		}
	}
	return nil
}

// parseOwnerKey returns the record of an entry of the owner index.
func parseOwnerKey(key []byte) (store.Key, error) {
	p, err := value.Parts(key, 6)
	return store.Key{DataType: value.DataTypeOf(p[1:]), Cluster: p[4], ResourceID: p[5]}, err
}

func parseFormerClusterKey(key []byte) (codec.DataType, string, error) {
	p, err := value.Parts(key, 4)
	return value.DataTypeOf(p[1:]), p[0], err
}

// batch collects the writes of one commit.
type batch struct {
	*engine.Batch
	err error // the first error

	// key and body are buffers that the caller may fill for the next write. The batch copies what it writes.
	key, body []byte
}

func (b *batch) set(key, body []byte) {
	d := b.SetDeferred(len(key), value.Len(body))
	copy(d.Key, key)
	value.SealTo(d.Value, key, body)
	b.err = cmp.Or(b.err, d.Finish())
}

// remove deletes a value. Each value is written once, but SingleDelete is not used: a compaction that finds
// damage near a SingleDelete panics.
func (b *batch) remove(key []byte) { b.err = cmp.Or(b.err, b.Delete(key, nil)) }

// removeRange deletes the values from one key up to another, which stays.
func (b *batch) removeRange(from, to []byte) { b.err = cmp.Or(b.err, b.DeleteRange(from, to, nil)) }

// setBookmark writes a bookmark and its entry in the feed.
func (b *batch) setBookmark(name string, v store.Bookmark) {
	b.set(value.BookmarkKey(name), value.AppendBookmark(nil, v))
	c := bookmarkChange(name, v)
	b.set(value.NumberKey(value.Revision, v.Revision), value.AppendChange(nil, &c))
}

// bookmarkChange returns the entry of a bookmark in the feed.
func bookmarkChange(name string, v store.Bookmark) store.Change {
	return store.Change{Revision: v.Revision, Key: store.Key{ResourceID: name}, Part: store.BookmarkPart, State: store.Live, Value: v.Value}
}

func encodeNumber(n uint64) []byte { return binary.AppendUvarint(nil, n) }

func decodeNumber(key, body []byte) (uint64, error) {
	r := fields.NewReader(body)
	n := r.Uint64()
	return n, value.End(r, key)
}
