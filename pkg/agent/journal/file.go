package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/hawser-io/hawser/pkg/codec"
)

// format is what this release writes and the newest it reads. In all formats the
// first byte is the format and the last four are the checksum, so that a newer
// format is told from damage.
//
//	1 byte   format
//	1 byte   flags, 0
//	         body
//	4 bytes  CRC-32C, little endian, over the file's name and all before
const (
	format   = 1
	fileHead = 2
	fileTail = 4
)

// The longest files that are read: more than any of ours.
const (
	maxEntry    = 64 << 20
	maxReported = 1 << 30
	maxSmall    = 64 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal returns the content of a file with this body. name is the last part of
// its path.
func seal(name string, body []byte) []byte {
	b := make([]byte, fileHead, fileHead+len(body)+fileTail)
	b[0] = format
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, checksum(name, b))
}

// unseal returns the body, which aliases b. The error is a damage, or a
// *FormatError without its path.
func unseal(name string, b []byte) ([]byte, error) {
	if len(b) < fileHead+fileTail {
		return nil, damage("it is too short")
	}
	n := len(b) - fileTail
	if binary.LittleEndian.Uint32(b[n:]) != checksum(name, b[:n]) {
		return nil, damage("the checksum is wrong")
	}
	switch {
	case b[0] > format:
		return nil, &FormatError{Format: b[0]}
	case b[0] != format || b[1] != 0:
		return nil, damage("no release wrote it")
	}
	return b[fileHead:n], nil
}

func checksum(name string, b []byte) uint32 {
	return crc32.Update(crc32.Checksum([]byte(name), castagnoli), castagnoli, b)
}

// entryName is the name of the file of a work.
func entryName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])
}

func isEntryName(name string) bool {
	b, err := hex.DecodeString(name)
	return err == nil && len(b) == sha256.Size && hex.EncodeToString(b) == name
}

// resourceID is the id of the work that an event is about.
func resourceID(e codec.Event) (string, error) {
	id, ok, err := codec.StringExtension(e, codec.ExtResourceID)
	if err == nil && (!ok || id == "") {
		err = damage("the event names no work")
	}
	return id, err
}

func decodeEntry(name string, b []byte) (id string, e codec.Event, err error) {
	body, err := unseal(name, b)
	if err != nil {
		return "", e, err
	}
	if e, err = codec.Unmarshal(body); err != nil {
		return "", e, damage(err.Error())
	}
	if id, err = resourceID(e); err != nil {
		return "", e, damage(err.Error())
	}
	if entryName(id) != name {
		return "", e, damage("it is about another work")
	}
	return id, e, nil
}

func encodeBinding(b Binding) []byte {
	var body []byte
	for _, s := range b.fields() {
		body = appendText(body, *s)
	}
	return seal(bindingFile, body)
}

func decodeBinding(b []byte) (Binding, error) {
	body, err := unseal(bindingFile, b)
	if err != nil {
		return Binding{}, err
	}
	var out Binding
	r := reader{rest: body}
	for _, s := range out.fields() {
		*s = r.text()
	}
	if !r.complete() {
		return Binding{}, damage("no binding is in it")
	}
	return out, nil
}

func encodeCursor(c codec.Cursor) []byte { return seal(cursorFile, []byte(c.String())) }

func decodeCursor(b []byte) (codec.Cursor, error) {
	body, err := unseal(cursorFile, b)
	if err != nil {
		return codec.Cursor{}, err
	}
	c, err := codec.ParseCursor(string(body))
	if err != nil || c.String() != string(body) {
		return codec.Cursor{}, damage("no cursor is in it")
	}
	return c, nil
}

func encodeInstance(instance string) []byte { return seal(instanceFile, []byte(instance)) }

// maxInstance is more than any instance id has, and fits into a Lease with the
// name of a host.
const maxInstance = 64

func decodeInstance(b []byte) (string, error) {
	body, err := unseal(instanceFile, b)
	if err != nil {
		return "", err
	}
	strange := func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') }
	if len(body) == 0 || len(body) > maxInstance || bytes.ContainsFunc(body, strange) {
		return "", damage("no instance id is in it")
	}
	return string(body), nil
}

func encodeReported(r Reported) []byte {
	return seal(reportedFile, appendPairs(appendText(nil, r.Sequence), r.Accepted))
}

func decodeReported(b []byte) (Reported, error) {
	body, err := unseal(reportedFile, b)
	if err != nil {
		return Reported{}, err
	}
	r := reader{rest: body}
	out := Reported{Sequence: r.text(), Accepted: r.pairs()}
	if !r.complete() {
		return Reported{}, damage("no statuses are in it")
	}
	return out, nil
}

func encodeLeft(left map[string]string) []byte { return seal(leftFile, appendPairs(nil, left)) }

func decodeLeft(b []byte) (map[string]string, error) {
	body, err := unseal(leftFile, b)
	if err != nil {
		return nil, err
	}
	r := reader{rest: body}
	left := r.pairs()
	if !r.complete() {
		return nil, damage("nothing about objects is in it")
	}
	return left, nil
}

func encodeSequence(sequence string) []byte { return seal(sequenceFile, []byte(sequence)) }

func decodeSequence(b []byte) (string, error) {
	body, err := unseal(sequenceFile, b)
	if err != nil {
		return "", err
	}
	if _, err := codec.CompareSequence("", string(body)); err != nil {
		return "", damage("no sequence id is in it")
	}
	return string(body), nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendPairs appends texts and their names, in the order of the names.
func appendPairs(b []byte, pairs map[string]string) []byte {
	b = binary.AppendUvarint(b, uint64(len(pairs)))
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		b = appendText(appendText(b, name), pairs[name])
	}
	return b
}

// reader takes a body apart. After the first mistake it returns nothing.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) number() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || r.bad {
		r.bad = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) text() string {
	n := r.number()
	if n > uint64(len(r.rest)) {
		r.bad = true
	}
	if r.bad {
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

// pairs reads what appendPairs wrote.
func (r *reader) pairs() map[string]string {
	pairs := map[string]string{}
	last := ""
	for n := r.number(); n > 0 && !r.bad; n-- {
		name := r.text()
		if name <= last {
			r.bad = true // in this order they were not written
		}
		pairs[name], last = r.text(), name
	}
	return pairs
}

// complete reports whether everything was read, and was right.
func (r *reader) complete() bool { return !r.bad && len(r.rest) == 0 }
