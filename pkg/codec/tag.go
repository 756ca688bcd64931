package codec

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
)

// Tag identifies the content of a spec; equal tags mean equal specs. It is the first 16 bytes of SHA-256 over
// deletion bit, version, metadata and data as published.
type Tag [16]byte

// TagOf computes the tag of a spec. The input of the hash is
//
//	1 byte   1 when the spec is a deletion, else 0
//	8 bytes  version, big endian
//	8 bytes  length of metadata, big endian
//	         metadata, the text of the extension as published ("" when absent)
//	8 bytes  length of data, big endian
//	         data (nothing when absent)
//
// so that no two different specs have the same input.
func TagOf(deleting bool, version int64, metadata string, data []byte) Tag {
	head := make([]byte, 0, 512)
	if deleting {
		head = append(head, 1)
	} else {
		head = append(head, 0)
	}
	head = binary.BigEndian.AppendUint64(head, uint64(version)) // two's complement is what is hashed
	head = binary.BigEndian.AppendUint64(head, uint64(len(metadata)))
	head = append(head, metadata...)
	head = binary.BigEndian.AppendUint64(head, uint64(len(data)))
	h := sha256.New()
	h.Write(head)
	h.Write(data)
	return Tag(h.Sum(head[:0])[:len(Tag{})])
}

// String returns 32 lower-case hex digits, the form of the hawsertag attribute.
func (t Tag) String() string { return hex.EncodeToString(t[:]) }

// ParseTag parses 32 lower-case hex digits. The error is an *AttributeError
// about "hawsertag".
func ParseTag(s string) (Tag, error) {
	var t Tag
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != len(t) || hex.EncodeToString(raw) != s {
		return Tag{}, attributeError(ExtTag, s, "must be 32 lower-case hex digits")
	}
	return Tag(raw), nil
}

// RecordHash returns the part of one record in a digest. It is the first 16 bytes of SHA-256 over the length of
// the resource id (8 bytes, big endian), the id and the tag.
func RecordHash(resourceID string, tag Tag) [16]byte {
	b := make([]byte, 0, 128)
	b = binary.BigEndian.AppendUint64(b, uint64(len(resourceID)))
	b = append(b, resourceID...)
	b = append(b, tag[:]...)
	sum := sha256.Sum256(b)
	return [16]byte(sum[:16])
}

// DigestSum is a sum of record hashes modulo 2^128, big endian. The order of additions and subtractions is
// irrelevant.
type DigestSum [16]byte

// Add returns s + h modulo 2^128.
func (s DigestSum) Add(h DigestSum) DigestSum {
	hi, lo := s.words()
	hhi, hlo := h.words()
	lo, carry := bits.Add64(lo, hlo, 0)
	hi, _ = bits.Add64(hi, hhi, carry) // modulo drops the last carry
	return digestSum(hi, lo)
}

// Sub returns s - h modulo 2^128.
func (s DigestSum) Sub(h DigestSum) DigestSum {
	hi, lo := s.words()
	hhi, hlo := h.words()
	lo, borrow := bits.Sub64(lo, hlo, 0)
	hi, _ = bits.Sub64(hi, hhi, borrow)
	return digestSum(hi, lo)
}

// String returns 32 lower-case hex digits.
func (s DigestSum) String() string { return hex.EncodeToString(s[:]) }

func (s DigestSum) words() (hi, lo uint64) {
	return binary.BigEndian.Uint64(s[:8]), binary.BigEndian.Uint64(s[8:])
}

func digestSum(hi, lo uint64) (s DigestSum) {
	binary.BigEndian.PutUint64(s[:8], hi)
	binary.BigEndian.PutUint64(s[8:], lo)
	return s
}

// Digest describes a client's records without listing them: count and sum over the live records. Tombstones and
// confirmed tombstones are excluded. Equal digests prove equal sets of (resource id, tag).
type Digest struct {
	Count uint64
	Sum   DigestSum
}

// Add adds a record to the digest.
func (d *Digest) Add(hash DigestSum) {
	d.Count++
	d.Sum = d.Sum.Add(hash)
}

// Remove removes a record from the digest.
func (d *Digest) Remove(hash DigestSum) {
	d.Count--
	d.Sum = d.Sum.Sub(hash)
}
