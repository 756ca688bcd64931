package pebble

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"time"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
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

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

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
	binary.LittleEndian.PutUint32(v[n:], checksum(key, v[:n]))
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
	if binary.LittleEndian.Uint32(v[n:]) != checksum(key, v[:n]) {
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

func checksum(key, v []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, v)
}

func damage(key []byte, what string) error {
	return &store.DamageError{Key: printable(key), What: what}
}

// Bodies are sequences of fields without names. Numbers are varints, strings have their length, times are
// presence, seconds and nanoseconds.

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, 0)
	}
	b = binary.AppendVarint(append(b, 1), t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()))
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
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
	b = appendString(b, m.Owner)
	b = appendString(b, m.Name)
	b = binary.AppendVarint(b, m.Version)
	b = append(b, m.Tag[:]...)
	b = binary.AppendUvarint(b, m.SpecRevision)
	b = binary.AppendVarint(b, m.Superseded)
	b = binary.AppendUvarint(b, m.StatusRevision)
	b = binary.AppendVarint(b, m.StatusVersion)
	b = appendString(b, m.Sequence)
	b = appendString(b, m.StatusHash)
	b = appendTime(b, m.DeletedAt)
	b = appendTime(b, m.ConfirmedAt)
	b = appendBool(b, m.Queued != nil)
	if w := m.Queued; w != nil {
		b = appendString(b, w.ResourceID)
		b = appendString(b, w.Owner)
		b = appendString(b, w.Name)
		b = binary.AppendVarint(b, w.Version)
		b = append(b, w.Tag[:]...)
		b = appendBool(b, w.Deleting)
		b = appendTime(b, w.DeletedAt)
	}
	for _, size := range []int{m.Sizes.Spec, m.Sizes.Status, m.Sizes.Queued} {
		b = binary.AppendUvarint(b, uint64(size))
	}
	return b
}

// decodeMeta is the inverse of appendMeta, for the record k under a storage key.
func decodeMeta(k store.Key, key, body []byte) (*store.Meta, error) {
	r := reader{b: body}
	state := r.byte()
	m := &store.Meta{Key: k, State: store.State(state &^ (sized | fails)), Failing: state&fails != 0}
	m.Owner, m.Name = r.string(), r.string()
	m.Version, m.Tag = r.int64(), r.tag()
	m.SpecRevision, m.Superseded = r.uint64(), r.int64()
	m.SpecSupersedes = m.Superseded != 0
	m.StatusRevision, m.StatusVersion = r.uint64(), r.int64()
	m.Sequence, m.StatusHash = r.string(), r.string()
	m.DeletedAt, m.ConfirmedAt = r.time(), r.time()
	if r.bool() {
		w := &store.QueuedSpec{ResourceID: r.string(), Owner: r.string(), Name: r.string()}
		w.Version, w.Tag = r.int64(), r.tag()
		w.Deleting, w.DeletedAt = r.bool(), r.time()
		m.Queued = w
	}
	if state&sized != 0 {
		m.Sizes = store.Sizes{Spec: r.size(), Status: r.size(), Queued: r.size()}
	}
	if m.State < store.Live || m.State > store.ConfirmedTombstone {
		r.fail("the state is unknown")
	}
	return m, r.end(key)
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
		b = appendString(b, s)
	}
	return b
}

// parseChange decodes an entry of the feed from its storage key and its body.
func parseChange(key, body []byte) (store.Change, error) {
	revision, err := parseNumberKey(key)
	if err != nil {
		return store.Change{}, err
	}
	r := reader{b: body}
	c := store.Change{Revision: revision, Part: store.Part(r.byte()), State: store.State(r.byte()), Owner: r.string()}
	c.Key.DataType = codec.DataType{Group: r.string(), Version: r.string(), Resource: r.string()}
	c.Key.Cluster, c.Key.ResourceID = r.string(), r.string()
	if c.Part < store.SpecPart || c.Part > store.StatusPart || c.State < store.Live || c.State > store.ConfirmedTombstone {
		r.fail("the part or the state is unknown")
	}
	return c, r.end(key)
}

func encodeIncarnation(t memindex.Incarnation) []byte {
	return binary.AppendUvarint(appendString(nil, t.ID), t.First)
}

func decodeIncarnation(key, body []byte) (memindex.Incarnation, error) {
	r := reader{b: body}
	t := memindex.Incarnation{ID: r.string(), First: r.uint64()}
	return t, r.end(key)
}

func encodeNumber(n uint64) []byte { return binary.AppendUvarint(nil, n) }

func decodeNumber(key, body []byte) (uint64, error) {
	r := reader{b: body}
	n := r.uint64()
	return n, r.end(key)
}

// reader reads fields from a body; the first invalid field ends the reading.
type reader struct {
	b    []byte
	what string // the problem, "" if there is none
}

const (
	shortBody  = "it ends in the middle of a field"
	outOfRange = "a field is out of range"
	longBody   = "it has more bytes after the last field"
)

func (r *reader) fail(what string) {
	r.what = cmp.Or(r.what, what)
	r.b = nil
}

// end returns the problem with the body of the value under a key, as an error.
func (r *reader) end(key []byte) error {
	if len(r.b) > 0 {
		r.fail(longBody)
	}
	if r.what != "" {
		return damage(key, r.what)
	}
	return nil
}

func (r *reader) next(n uint64) []byte {
	if uint64(len(r.b)) < n {
		r.fail(shortBody)
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte {
	if b := r.next(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) bool() bool {
	b := r.byte()
	if b > 1 {
		r.fail(outOfRange)
	}
	return b == 1
}

func (r *reader) uint64() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(shortBody)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int64() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail(shortBody)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// size reads the size of a payload.
func (r *reader) size() int {
	n := r.uint64()
	if n > math.MaxInt32 {
		r.fail(outOfRange)
		return 0
	}
	return int(n)
}

func (r *reader) string() string { return string(r.next(r.uint64())) }

func (r *reader) tag() (t codec.Tag) {
	copy(t[:], r.next(uint64(len(t))))
	return t
}

func (r *reader) time() time.Time {
	if !r.bool() {
		return time.Time{}
	}
	sec, nsec := r.int64(), r.uint64()
	if nsec >= uint64(time.Second) || sec > math.MaxInt64/4 || sec < math.MinInt64/4 {
		r.fail(outOfRange)
		return time.Time{}
	}
	return time.Unix(sec, int64(nsec)).UTC()
}
