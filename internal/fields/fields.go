// Package fields encodes values for a disk. A value is a sequence of fields without names: numbers are varints,
// strings have their length, times are presence, seconds and nanoseconds.
package fields

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"
)

// Castagnoli is the table of CRC-32C.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC-32C over a name and a value. With the name, a value under a wrong name counts as
// damaged.
func Checksum(name, v []byte) uint32 {
	return crc32.Update(crc32.Checksum(name, Castagnoli), Castagnoli, v)
}

// AppendString appends a string.
func AppendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// AppendTime appends a time.
func AppendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, 0)
	}
	b = binary.AppendVarint(append(b, 1), t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()))
}

// AppendBool appends a bool.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// Reader reads fields; the first invalid field ends the reading.
type Reader struct {
	b    []byte
	what string // the problem, "" if there is none
}

const (
	shortBody  = "it ends in the middle of a field"
	outOfRange = "a field is out of range"
	longBody   = "it has more bytes after the last field"
)

// NewReader returns a reader of a value.
func NewReader(b []byte) *Reader { return &Reader{b: b} }

// Fail ends the reading because of a problem. Only the first one counts.
func (r *Reader) Fail(what string) {
	r.what = cmp.Or(r.what, what)
	r.b = nil
}

// End returns the problem with the value, "" if there is none. A rest that was not read is one.
func (r *Reader) End() string {
	if r.More() {
		r.Fail(longBody)
	}
	return r.what
}

// More reports whether there is another field.
func (r *Reader) More() bool { return len(r.b) > 0 }

// Next reads n bytes, nil if the value is too short. They alias the value.
func (r *Reader) Next(n uint64) []byte {
	if uint64(len(r.b)) < n {
		r.Fail(shortBody)
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

// Rest reads all that is left. It aliases the value.
func (r *Reader) Rest() []byte { return r.Next(uint64(len(r.b))) }

// Byte reads a byte.
func (r *Reader) Byte() byte {
	if b := r.Next(1); b != nil {
		return b[0]
	}
	return 0
}

// Bool reads a bool.
func (r *Reader) Bool() bool {
	b := r.Byte()
	if b > 1 {
		r.Fail(outOfRange)
	}
	return b == 1
}

// Uint64 reads a number from [binary.AppendUvarint].
func (r *Reader) Uint64() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.Fail(shortBody)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Int64 reads a number from [binary.AppendVarint].
func (r *Reader) Int64() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.Fail(shortBody)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Size reads the size of another value.
func (r *Reader) Size() int {
	n := r.Uint64()
	if n > math.MaxInt32 {
		r.Fail(outOfRange)
		return 0
	}
	return int(n)
}

// String reads a string.
func (r *Reader) String() string { return string(r.Next(r.Uint64())) }

// Time reads a time.
func (r *Reader) Time() time.Time {
	if !r.Bool() {
		return time.Time{}
	}
	sec, nsec := r.Int64(), r.Uint64()
	if nsec >= uint64(time.Second) || sec > math.MaxInt64/4 || sec < math.MinInt64/4 {
		r.Fail(outOfRange)
		return time.Time{}
	}
	return time.Unix(sec, int64(nsec)).UTC()
}
