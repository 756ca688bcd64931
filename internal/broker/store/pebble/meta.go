package pebble

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/resident"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Bodies are sequences of fields without names: numbers as varints, strings
// with their length, times as presence, seconds and nanoseconds.

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

// encodeMeta is the body of a meta; the key is not in it.
func encodeMeta(m *store.Meta) []byte {
	b := make([]byte, 0, 192)
	b = append(b, byte(m.State))
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
	b = appendTime(b, m.Buried)
	b = appendBool(b, m.Waiting != nil)
	if w := m.Waiting; w != nil {
		b = appendString(b, w.ResourceID)
		b = appendString(b, w.Owner)
		b = appendString(b, w.Name)
		b = binary.AppendVarint(b, w.Version)
		b = append(b, w.Tag[:]...)
		b = appendBool(b, w.Deleting)
		b = appendTime(b, w.DeletedAt)
	}
	return b
}

// decodeMeta is the inverse of encodeMeta. The error says what is wrong with
// the body.
func decodeMeta(k store.Key, body []byte) (*store.Meta, error) {
	r := reader{b: body}
	m := &store.Meta{Key: k, State: store.State(r.byte())}
	m.Owner, m.Name = r.string(), r.string()
	m.Version, m.Tag = r.int64(), r.tag()
	m.SpecRevision, m.Superseded = r.uint64(), r.int64()
	m.SpecSupersedes = m.Superseded != 0
	m.StatusRevision, m.StatusVersion = r.uint64(), r.int64()
	m.Sequence, m.StatusHash = r.string(), r.string()
	m.DeletedAt, m.Buried = r.time(), r.time()
	if r.bool() {
		w := &store.Waiting{ResourceID: r.string(), Owner: r.string(), Name: r.string()}
		w.Version, w.Tag = r.int64(), r.tag()
		w.Deleting, w.DeletedAt = r.bool(), r.time()
		m.Waiting = w
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	if m.State < store.Live || m.State > store.Grave {
		return nil, errors.New("the state is unknown")
	}
	return m, nil
}

// encodeChange is the body of an entry of the feed.
func encodeChange(c *store.Change) []byte {
	b := make([]byte, 0, 128)
	b = append(b, byte(c.Part), byte(c.State))
	for _, s := range []string{c.Owner, c.Key.DataType.Group, c.Key.DataType.Version, c.Key.DataType.Resource, c.Key.Cluster, c.Key.ResourceID} {
		b = appendString(b, s)
	}
	return b
}

func decodeChange(revision uint64, body []byte) (store.Change, error) {
	r := reader{b: body}
	c := store.Change{Revision: revision, Part: store.Part(r.byte()), State: store.State(r.byte()), Owner: r.string()}
	c.Key.DataType = codec.DataType{Group: r.string(), Version: r.string(), Resource: r.string()}
	c.Key.Cluster, c.Key.ResourceID = r.string(), r.string()
	if err := r.end(); err != nil {
		return store.Change{}, err
	}
	if c.Part < store.SpecPart || c.Part > store.StatusPart || c.State < store.Live || c.State > store.Grave {
		return store.Change{}, errors.New("the part or the state is unknown")
	}
	return c, nil
}

// parseMeta reads a record from its storage key and its body.
func parseMeta(key, body []byte) (*store.Meta, error) {
	k, err := parseRecordKey(key)
	if err != nil {
		return nil, err
	}
	return metaOf(k, key, body)
}

// metaOf is parseMeta where the record is known, which is quicker.
func metaOf(k store.Key, key, body []byte) (*store.Meta, error) {
	m, err := decodeMeta(k, body)
	if err != nil {
		return nil, damage(key, err.Error())
	}
	return m, nil
}

// parseChange reads an entry of the feed from its storage key and its body.
func parseChange(key, body []byte) (store.Change, error) {
	revision, err := parseNumberKey(key)
	if err != nil {
		return store.Change{}, err
	}
	c, err := decodeChange(revision, body)
	if err != nil {
		return store.Change{}, damage(key, err.Error())
	}
	return c, nil
}

func encodeTerm(t resident.Term) []byte {
	return binary.AppendUvarint(appendString(nil, t.ID), t.First)
}

func decodeTerm(body []byte) (resident.Term, error) {
	r := reader{b: body}
	t := resident.Term{ID: r.string(), First: r.uint64()}
	return t, r.end()
}

func encodeNumber(n uint64) []byte { return binary.AppendUvarint(nil, n) }

func decodeNumber(body []byte) (uint64, error) {
	r := reader{b: body}
	n := r.uint64()
	return n, r.end()
}

// reader reads fields from a body; the first error ends it.
type reader struct {
	b   []byte
	err error
}

var (
	errShort  = errors.New("it ends in the middle of a field")
	errRange  = errors.New("a field is out of range")
	errBeyond = errors.New("it goes on after the last field")
)

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return errBeyond
	}
	return r.err
}

func (r *reader) next(n uint64) []byte {
	if uint64(len(r.b)) < n {
		r.fail(errShort)
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
	switch r.byte() {
	case 0:
		return false
	case 1:
		return true
	default:
		r.fail(errRange)
		return false
	}
}

func (r *reader) uint64() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int64() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail(errShort)
		return 0
	}
	r.b = r.b[n:]
	return v
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
		r.fail(errRange)
		return time.Time{}
	}
	return time.Unix(sec, int64(nsec)).UTC()
}
