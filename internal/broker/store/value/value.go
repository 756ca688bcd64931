// Package value encodes the values of a store, in the form that all engines share. A value names its format, and
// ends with a checksum over its storage key and itself. So damage is found at its key, a newer format is
// rejected, and a copy of a store between engines copies values unchanged.
package value

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/fields"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Kinds of values. The kind is the first byte of a storage key. Zero bytes separate the parts that follow. No part
// contains a zero byte, so keys sort as their parts do. An engine may have kinds of its own.
const (
	Meta        = 'm' // data type, cluster, resource id: the record without payloads
	Spec        = 's' // the same: its spec
	Status      = 't' // the same: its status
	Queued      = 'w' // the same: the event queued behind it
	Bookmark    = 'f' // name: the revision and the value
	Revision    = 'r' // revision, 8 bytes big endian: the change
	Removal     = 'g' // revision, 8 bytes big endian: the change that removed a record or a bookmark
	Incarnation = 'e' // number of the opening, 8 bytes big endian: the incarnation
	Log         = 'l' // number of the commit, 8 bytes big endian: its effects
)

// Stored is a sealed value under its storage key.
type Stored struct{ Key, Value []byte }

// Separator separates the parts of a storage key.
const Separator = 0

// Key returns the storage key of one value of a record.
func Key(kind byte, k store.Key) []byte {
	size := 6 + len(k.DataType.Group) + len(k.DataType.Version) + len(k.DataType.Resource) + len(k.Cluster) + len(k.ResourceID)
	return AppendKey(make([]byte, 0, size), kind, k)
}

// AppendKey appends the storage key of one value of a record.
func AppendKey(b []byte, kind byte, k store.Key) []byte {
	return AppendParts(append(b, kind), k.DataType.Group, k.DataType.Version, k.DataType.Resource, k.Cluster, k.ResourceID)
}

// AppendParts appends the parts of a storage key.
func AppendParts(b []byte, parts ...string) []byte {
	for i, p := range parts {
		if i > 0 {
			b = append(b, Separator)
		}
		b = append(b, p...)
	}
	return b
}

// Parts splits a storage key behind its first byte into n parts.
func Parts(key []byte, n int) ([]string, error) {
	out := strings.Split(string(key[1:]), "\x00")
	if len(out) != n {
		return make([]string, n), Damage(key, fmt.Sprintf("storage key has %d parts, want %d", len(out), n))
	}
	return out, nil
}

// DataTypeOf returns the data type of the three first parts.
func DataTypeOf(p []string) codec.DataType {
	return codec.DataType{Group: p[0], Version: p[1], Resource: p[2]}
}

// ParseKey is the inverse of Key.
func ParseKey(key []byte) (store.Key, error) {
	p, err := Parts(key, 5)
	return store.Key{DataType: DataTypeOf(p), Cluster: p[3], ResourceID: p[4]}, err
}

// BookmarkKey returns the storage key of a bookmark.
func BookmarkKey(name string) []byte { return append([]byte{Bookmark}, name...) }

// NumberKey returns the storage key of a value that has a number.
func NumberKey(kind byte, n uint64) []byte { return AppendNumberKey(make([]byte, 0, 9), kind, n) }

// AppendNumberKey appends the storage key of a value that has a number.
func AppendNumberKey(b []byte, kind byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, kind), n)
}

// ParseNumberKey is the inverse of NumberKey.
func ParseNumberKey(key []byte) (uint64, error) {
	if len(key) != 9 {
		return 0, Damage(key, "storage key has no number of 8 bytes")
	}
	return binary.BigEndian.Uint64(key[1:]), nil
}

// PrintableKey returns the form of a storage key in errors: its kind and parts.
func PrintableKey(key []byte) string {
	if len(key) == 0 {
		return `""`
	}
	kind, rest := string(key[:1]), key[1:]
	switch {
	case strings.ContainsAny(kind, string([]byte{Revision, Removal, Incarnation, Log})) && len(rest) == 8:
		return fmt.Sprintf("%s/%d", kind, binary.BigEndian.Uint64(rest))
	case len(rest) == 0:
		return kind
	default:
		return fmt.Sprintf("%s/%q", kind, strings.ReplaceAll(string(rest), "\x00", "/"))
	}
}

// Format is the format that this release writes, and the newest that it reads. In format 1 a meta has no sizes;
// before format 3 it has no mark of a failing work; before format 4 bookmarks have no revision. A value is
//
//	1 byte   format
//	1 byte   flags, 0 (reserved for compression)
//	1 byte   key id, 0 (reserved for encryption at rest)
//	         body
//	4 bytes  CRC-32C, little endian, over storage key and all before
const (
	Format      = 4
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
	return fmt.Sprintf("store: value at %s has format %d, this release reads up to %d. Run the newer release that wrote it, or restore a backup from before", e.Key, e.Format, Format)
}

// Len returns the length of the value of a body.
func Len(body []byte) int { return valueExtras + len(body) }

// SealTo writes the value of a body to v, which has that length.
func SealTo(v, key, body []byte) {
	v[0], v[1], v[2] = Format, 0, 0
	n := valueHead + copy(v[valueHead:], body)
	binary.LittleEndian.PutUint32(v[n:], fields.Checksum(key, v[:n]))
}

// Seal returns the value of a body.
func Seal(key, body []byte) []byte {
	v := make([]byte, Len(body))
	SealTo(v, key, body)
	return v
}

// Unseal returns the body, which aliases v.
func Unseal(key, v []byte) ([]byte, error) {
	if len(v) < valueExtras {
		return nil, Damage(key, "it is too short")
	}
	n := len(v) - valueTail
	if binary.LittleEndian.Uint32(v[n:]) != fields.Checksum(key, v[:n]) {
		return nil, Damage(key, "the checksum is wrong")
	}
	switch {
	case v[0] > Format:
		return nil, &FormatError{Key: PrintableKey(key), Format: v[0]}
	case v[0] == 0:
		return nil, Damage(key, fmt.Sprintf("no release wrote format %d", v[0]))
	case v[1] != 0 || v[2] != 0:
		return nil, Damage(key, fmt.Sprintf("format %d has no flags %#x and no key id %d", v[0], v[1], v[2]))
	}
	return v[valueHead:n], nil
}

// Damage is the error about a value that is not as this package wrote it.
func Damage(key []byte, what string) error {
	return &store.DamageError{Key: PrintableKey(key), What: what}
}

// Flags in the state of a meta.
const (
	// sized: the meta ends with the sizes of its payloads; since format 2.
	sized = 0x80
	// fails: the status reports that the work is not applied, or not available; since format 3.
	fails = 0x40
)

// AppendMeta appends the body of a meta; the key is not in it.
func AppendMeta(b []byte, m *store.Meta) []byte {
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

// ParseMeta decodes a record from its storage key and its body.
func ParseMeta(key, body []byte) (*store.Meta, error) {
	k, err := ParseKey(key)
	if err != nil {
		return nil, err
	}
	return DecodeMeta(k, key, body)
}

// DecodeMeta is the inverse of AppendMeta, for the record k under a storage key.
func DecodeMeta(k store.Key, key, body []byte) (*store.Meta, error) {
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
	return m, End(r, key)
}

// AppendBookmark appends the body of a bookmark.
func AppendBookmark(b []byte, v store.Bookmark) []byte {
	return append(binary.AppendUvarint(b, v.Revision), v.Value...)
}

// DecodeBookmark is the inverse of AppendBookmark.
func DecodeBookmark(key, body []byte) (store.Bookmark, error) {
	revision, n := binary.Uvarint(body)
	if n <= 0 || revision == 0 {
		return store.Bookmark{}, Damage(key, "it has no revision")
	}
	return store.Bookmark{Value: append([]byte{}, body[n:]...), Revision: revision}, nil
}

// EncodeIncarnation returns the body of an incarnation; its number is in the key.
func EncodeIncarnation(i memindex.Incarnation) []byte {
	return binary.AppendUvarint(fields.AppendString(nil, i.ID), i.First)
}

// DecodeIncarnation is the inverse of EncodeIncarnation.
func DecodeIncarnation(key, body []byte) (memindex.Incarnation, error) {
	r := fields.NewReader(body)
	i := memindex.Incarnation{ID: r.String(), First: r.Uint64()}
	return i, End(r, key)
}

// AppendChange appends the body of an entry of the feed. The revision and the kind are in its key, and the value of a
// bookmark is that of the bookmark.
func AppendChange(b []byte, c *store.Change) []byte {
	b = append(b, byte(c.Part), byte(c.State))
	for _, s := range [...]string{c.Owner, c.Key.DataType.Group, c.Key.DataType.Version, c.Key.DataType.Resource, c.Key.Cluster, c.Key.ResourceID} {
		b = fields.AppendString(b, s)
	}
	return b
}

// DecodeChange decodes an entry of the feed, or a removal, from its storage key and its body.
func DecodeChange(key, body []byte) (store.Change, error) {
	revision, err := ParseNumberKey(key)
	if err != nil {
		return store.Change{}, err
	}
	r := fields.NewReader(body)
	c := ReadChange(r, key[0] == Removal)
	c.Revision = revision
	return c, End(r, key)
}

// ReadChange reads what AppendChange wrote, of a removal or of another entry.
func ReadChange(r *fields.Reader, gone bool) store.Change {
	c := store.Change{Part: store.Part(r.Byte()), State: store.State(r.Byte()), Owner: r.String(), Gone: gone}
	c.Key.DataType = codec.DataType{Group: r.String(), Version: r.String(), Resource: r.String()}
	c.Key.Cluster, c.Key.ResourceID = r.String(), r.String()
	known := c.State >= store.Live && c.State <= store.ConfirmedTombstone
	if gone {
		known = c.State == 0
	}
	if c.Part < store.SpecPart || c.Part > store.BookmarkPart || !known {
		r.Fail("the part or the state is unknown")
	}
	return c
}

// End returns the problem with the body of the value under a key, as an error.
func End(r *fields.Reader, key []byte) error {
	if what := r.End(); what != "" {
		return Damage(key, what)
	}
	return nil
}

func tag(r *fields.Reader) (t codec.Tag) {
	copy(t[:], r.Next(uint64(len(t))))
	return t
}
