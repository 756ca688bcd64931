package pebble

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"strings"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/fields"
	"github.com/hawser-io/hawser/pkg/codec"
)

// The first byte of a storage key is its kind. Zero bytes separate the parts that follow. No part contains a
// zero byte, so keys sort as their parts do.
const (
	keyMeta        = 'm' // data type, cluster, resource id: the record without payloads
	keySpec        = 's' // the same: its spec
	keyStatus      = 't' // the same: its status
	keyQueued      = 'w' // the same: the event queued behind it
	keyName        = 'n' // data type, cluster, name: the resource id that has it
	keyOwner       = 'o' // owner, data type, cluster, resource id: nothing
	keyRevision    = 'r' // revision, 8 bytes big endian: the change
	keyCluster     = 'c' // cluster, data type: the uid that its agent sent
	keyBookmark    = 'b' // name: the value
	keyIncarnation = 'e' // number of the opening, 8 bytes big endian: the incarnation
	keyStoreID     = 'i' // alone: the store id
	keyHead        = 'h' // alone: the last revision
)

const separator = 0

func appendParts(b []byte, parts ...string) []byte {
	for i, p := range parts {
		if i > 0 {
			b = append(b, separator)
		}
		b = append(b, p...)
	}
	return b
}

// recordKey returns the storage key of one value of a record.
func recordKey(kind byte, k store.Key) []byte {
	size := 6 + len(k.DataType.Group) + len(k.DataType.Version) + len(k.DataType.Resource) + len(k.Cluster) + len(k.ResourceID)
	return appendRecordKey(make([]byte, 0, size), kind, k)
}

func appendRecordKey(b []byte, kind byte, k store.Key) []byte {
	return appendParts(append(b, kind), k.DataType.Group, k.DataType.Version, k.DataType.Resource, k.Cluster, k.ResourceID)
}

func nameKey(dt codec.DataType, cluster, name string) []byte {
	return recordKey(keyName, store.Key{DataType: dt, Cluster: cluster, ResourceID: name})
}

func appendOwnerKey(b []byte, owner string, k store.Key) []byte {
	return appendParts(append(b, keyOwner), owner, k.DataType.Group, k.DataType.Version, k.DataType.Resource, k.Cluster, k.ResourceID)
}

func clusterKey(dt codec.DataType, cluster string) []byte {
	return appendParts([]byte{keyCluster}, cluster, dt.Group, dt.Version, dt.Resource)
}

func bookmarkKey(name string) []byte { return append([]byte{keyBookmark}, name...) }

func numberKey(kind byte, n uint64) []byte {
	return appendNumberKey(make([]byte, 0, 9), kind, n)
}

func appendNumberKey(b []byte, kind byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, kind), n)
}

// prefix returns a key that all keys with these leading parts start with.
func prefix(kind byte, parts ...string) []byte {
	b := []byte{kind}
	for _, p := range parts {
		b = append(append(b, p...), separator)
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

// parts splits a storage key behind its first byte into n parts.
func parts(key []byte, n int) ([]string, error) {
	out := strings.Split(string(key[1:]), "\x00")
	if len(out) != n {
		return make([]string, n), damage(key, fmt.Sprintf("storage key has %d parts, want %d", len(out), n))
	}
	return out, nil
}

func dataTypeOf(p []string) codec.DataType {
	return codec.DataType{Group: p[0], Version: p[1], Resource: p[2]}
}

// parseRecordKey is the inverse of recordKey.
func parseRecordKey(key []byte) (store.Key, error) {
	p, err := parts(key, 5)
	return store.Key{DataType: dataTypeOf(p), Cluster: p[3], ResourceID: p[4]}, err
}

// parseOwnerKey returns the record of an entry of the owner index.
func parseOwnerKey(key []byte) (store.Key, error) {
	p, err := parts(key, 6)
	return store.Key{DataType: dataTypeOf(p[1:]), Cluster: p[4], ResourceID: p[5]}, err
}

func parseClusterKey(key []byte) (codec.DataType, string, error) {
	p, err := parts(key, 4)
	return dataTypeOf(p[1:]), p[0], err
}

// parseNumberKey is the inverse of numberKey.
func parseNumberKey(key []byte) (uint64, error) {
	if len(key) != 9 {
		return 0, damage(key, "storage key has no number of 8 bytes")
	}
	return binary.BigEndian.Uint64(key[1:]), nil
}

// printable returns the form of a storage key in errors: its kind and parts.
func printable(key []byte) string {
	if len(key) == 0 {
		return `""`
	}
	kind, rest := string(key[:1]), key[1:]
	switch {
	case key[0] == keyRevision && len(rest) == 8, key[0] == keyIncarnation && len(rest) == 8:
		return fmt.Sprintf("%s/%d", kind, binary.BigEndian.Uint64(rest))
	case len(rest) == 0:
		return kind
	default:
		return fmt.Sprintf("%s/%q", kind, strings.ReplaceAll(string(rest), "\x00", "/"))
	}
}

// format is the format that this release writes, and the newest that it reads. In format 1 a meta has no sizes;
// before format 3 it has no mark of a failing work. A value is
//
//	1 byte   format
//	1 byte   flags, 0 (reserved for compression)
//	1 byte   key id, 0 (reserved for encryption at rest)
//	         body
//	4 bytes  CRC-32C, little endian, over storage key and all before
const (
	format      = 3
	valueHead   = 3
	valueTail   = 4
	valueExtras = valueHead + valueTail
)

// FormatError is the error about a value that a newer release wrote. Run that release again, or restore a
// backup made before the upgrade.
type FormatError struct {
	Key    string // printable form of the storage key
	Format byte
}

// Error names both formats and the remedy.
func (e *FormatError) Error() string {
	return fmt.Sprintf("store: value at %s has format %d, this release reads up to %d. Run the newer release that wrote it, or restore a backup from before", e.Key, e.Format, format)
}

// sealed returns the length of the value of a body.
func sealed(body []byte) int { return valueExtras + len(body) }

// sealTo writes the value of a body to v, which has that length.
func sealTo(v, key, body []byte) {
	v[0], v[1], v[2] = format, 0, 0
	n := valueHead + copy(v[valueHead:], body)
	binary.LittleEndian.PutUint32(v[n:], fields.Checksum(key, v[:n]))
}

// batch collects the writes of one commit.
type batch struct {
	*engine.Batch
	err error // the first error

	// key and body are buffers that the caller may fill for the next write. The batch copies what it writes.
	key, body []byte
}

func (b *batch) set(key, body []byte) {
	d := b.SetDeferred(len(key), sealed(body))
	copy(d.Key, key)
	sealTo(d.Value, key, body)
	b.err = cmp.Or(b.err, d.Finish())
}

// remove deletes a value. Each value is written once, but SingleDelete is not used: a compaction that finds
// damage near a SingleDelete panics.
func (b *batch) remove(key []byte) { b.err = cmp.Or(b.err, b.Delete(key, nil)) }

// unseal returns the body, which aliases v.
func unseal(key, v []byte) ([]byte, error) {
	if len(v) < valueExtras {
		return nil, damage(key, "it is too short")
	}
	n := len(v) - valueTail
	if binary.LittleEndian.Uint32(v[n:]) != fields.Checksum(key, v[:n]) {
		return nil, damage(key, "the checksum is wrong")
	}
	switch {
	case v[0] > format:
		return nil, &FormatError{Key: printable(key), Format: v[0]}
	case v[0] == 0:
		return nil, damage(key, fmt.Sprintf("no release wrote format %d", v[0]))
	case v[1] != 0 || v[2] != 0:
		return nil, damage(key, fmt.Sprintf("format %d has no flags %#x and no key id %d", v[0], v[1], v[2]))
	}
	return v[valueHead:n], nil
}

func damage(key []byte, what string) error {
	return &store.DamageError{Key: printable(key), What: what}
}

// Flags in the state of a meta.
const (
	// sized: the meta ends with the sizes of its payloads; since format 2.
	sized = 0x80
	// fails: the status reports that the work is not applied, or not available; since format 3.
	fails = 0x40
)

// appendMeta appends the body of a meta; the key is not in it.
func appendMeta(b []byte, m *store.Meta) []byte {
	state := byte(m.State) | sized
	if m.Failing {
		state |= fails
	}
	b = append(b, state)
	b = fields.AppendString(b, m.Owner)
	b = fields.AppendString(b, m.Name)
	b = binary.AppendVarint(b, m.Version)
	b = append(b, m.Tag[:]...)
	b = binary.AppendUvarint(b, m.SpecRevision)
	b = binary.AppendVarint(b, m.Superseded)
	b = binary.AppendUvarint(b, m.StatusRevision)
	b = binary.AppendVarint(b, m.StatusVersion)
	b = fields.AppendString(b, m.Sequence)
	b = fields.AppendString(b, m.StatusHash)
	b = fields.AppendTime(b, m.DeletedAt)
	b = fields.AppendTime(b, m.ConfirmedAt)
	b = fields.AppendBool(b, m.Queued != nil)
	if w := m.Queued; w != nil {
		b = fields.AppendString(b, w.ResourceID)
		b = fields.AppendString(b, w.Owner)
		b = fields.AppendString(b, w.Name)
		b = binary.AppendVarint(b, w.Version)
		b = append(b, w.Tag[:]...)
		b = fields.AppendBool(b, w.Deleting)
		b = fields.AppendTime(b, w.DeletedAt)
	}
	for _, size := range []int{m.Sizes.Spec, m.Sizes.Status, m.Sizes.Queued} {
		b = binary.AppendUvarint(b, uint64(size))
	}
	return b
}

// decodeMeta is the inverse of appendMeta, for the record k under a storage key.
func decodeMeta(k store.Key, key, body []byte) (*store.Meta, error) {
	r := fields.NewReader(body)
	state := r.Byte()
	m := &store.Meta{Key: k, State: store.State(state &^ (sized | fails)), Failing: state&fails != 0}
	m.Owner, m.Name = r.String(), r.String()
	m.Version, m.Tag = r.Int64(), tag(r)
	m.SpecRevision, m.Superseded = r.Uint64(), r.Int64()
	m.SpecSupersedes = m.Superseded != 0
	m.StatusRevision, m.StatusVersion = r.Uint64(), r.Int64()
	m.Sequence, m.StatusHash = r.String(), r.String()
	m.DeletedAt, m.ConfirmedAt = r.Time(), r.Time()
	if r.Bool() {
		w := &store.QueuedSpec{ResourceID: r.String(), Owner: r.String(), Name: r.String()}
		w.Version, w.Tag = r.Int64(), tag(r)
		w.Deleting, w.DeletedAt = r.Bool(), r.Time()
		m.Queued = w
	}
	if state&sized != 0 {
		m.Sizes = store.Sizes{Spec: r.Size(), Status: r.Size(), Queued: r.Size()}
	}
	if m.State < store.Live || m.State > store.ConfirmedTombstone {
		r.Fail("the state is unknown")
	}
	return m, end(r, key)
}

// parseMeta decodes a record from its storage key and its body.
func parseMeta(key, body []byte) (*store.Meta, error) {
	k, err := parseRecordKey(key)
	if err != nil {
		return nil, err
	}
	return decodeMeta(k, key, body)
}

// appendChange appends the body of an entry of the feed.
func appendChange(b []byte, c *store.Change) []byte {
	b = append(b, byte(c.Part), byte(c.State))
	for _, s := range [...]string{c.Owner, c.Key.DataType.Group, c.Key.DataType.Version, c.Key.DataType.Resource, c.Key.Cluster, c.Key.ResourceID} {
		b = fields.AppendString(b, s)
	}
	return b
}

// parseChange decodes an entry of the feed from its storage key and its body.
func parseChange(key, body []byte) (store.Change, error) {
	revision, err := parseNumberKey(key)
	if err != nil {
		return store.Change{}, err
	}
	r := fields.NewReader(body)
	c := store.Change{Revision: revision, Part: store.Part(r.Byte()), State: store.State(r.Byte()), Owner: r.String()}
	c.Key.DataType = codec.DataType{Group: r.String(), Version: r.String(), Resource: r.String()}
	c.Key.Cluster, c.Key.ResourceID = r.String(), r.String()
	if c.Part < store.SpecPart || c.Part > store.StatusPart || c.State < store.Live || c.State > store.ConfirmedTombstone {
		r.Fail("the part or the state is unknown")
	}
	return c, end(r, key)
}

func encodeIncarnation(t memindex.Incarnation) []byte {
	return binary.AppendUvarint(fields.AppendString(nil, t.ID), t.First)
}

func decodeIncarnation(key, body []byte) (memindex.Incarnation, error) {
	r := fields.NewReader(body)
	t := memindex.Incarnation{ID: r.String(), First: r.Uint64()}
	return t, end(r, key)
}

func encodeNumber(n uint64) []byte { return binary.AppendUvarint(nil, n) }

func decodeNumber(key, body []byte) (uint64, error) {
	r := fields.NewReader(body)
	n := r.Uint64()
	return n, end(r, key)
}

// end returns the problem with the body of the value under a key, as an error.
func end(r *fields.Reader, key []byte) error {
	if what := r.End(); what != "" {
		return damage(key, what)
	}
	return nil
}

func tag(r *fields.Reader) (t codec.Tag) {
	copy(t[:], r.Next(uint64(len(t))))
	return t
}
