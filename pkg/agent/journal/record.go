package journal

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/hawser-io/hawser/internal/fields"
	"github.com/hawser-io/hawser/pkg/codec"
)

// format is the format that this version writes, and the newest it reads. In all formats the first byte is the
// format and the last four are the checksum, so that a newer format differs from damage.
const format = 2

// record is a line of the log:
//
//	newline
//	1 byte   format
//	1 byte   kind
//	uvarint  length of the key
//	         key, and then the value
//	4 bytes  CRC-32C, little endian, over all before
//	newline
//
// The content has no other newline: a newline is written as escape and n, an escape as escape and e. So after a
// damaged line the next one is readable, and no work can contain data that looks like a record. The newline at
// both ends covers the case that one of them is damaged.
type record struct {
	kind  byte
	key   string
	value []byte
}

// Kinds of records. The last record of a kind and key is valid.
const (
	recordHead     = 'h' // JSON of a head
	recordWork     = 'w' // an event, under the resource id; empty if the work was removed
	recordReported = 'r' // JSON of a Reported
	recordLeft     = 'l' // JSON of the state in which objects were left
)

var (
	newline, escaped = []byte("\n"), []byte("\x1bn")
	escape, doubled  = []byte("\x1b"), []byte("\x1be")
)

// line returns the record with newlines at both ends.
func (r record) line() []byte {
	b := append(fields.AppendString([]byte{format, r.kind}, r.key), r.value...)
	b = binary.LittleEndian.AppendUint32(b, fields.Checksum(nil, b))
	b = bytes.ReplaceAll(bytes.ReplaceAll(b, escape, doubled), newline, escaped)
	return slices.Concat(newline, b, newline)
}

// decodeRecord decodes a line without its newlines. The error is a damage, or a *FormatError without its path.
func decodeRecord(b []byte) (r record, err error) {
	b = bytes.ReplaceAll(bytes.ReplaceAll(b, escaped, newline), doubled, escape)
	if b, err = unseal("", b, format); err != nil {
		return r, err
	}
	body := fields.NewReader(b)
	r = record{body.Byte(), body.String(), body.Rest()}
	if body.End() != "" {
		return record{}, damage("no record is in it")
	}
	return r, nil
}

// unseal returns the bytes between the format, which must be want, and the checksum; at least one byte. The
// checksum also covers name, which may be empty.
func unseal(name string, b []byte, want byte) ([]byte, error) {
	n := len(b) - crc32.Size
	if n < 2 || binary.LittleEndian.Uint32(b[n:]) != fields.Checksum([]byte(name), b[:n]) {
		return nil, damage("the checksum is wrong")
	}
	switch {
	case b[0] > format:
		return nil, &FormatError{Format: b[0]}
	case b[0] != want:
		return nil, damage("no version wrote it")
	}
	return b[1:n], nil
}

func workRecord(e codec.Event) (record, error) {
	id, _, idErr := codec.StringExtension(e, codec.ExtResourceID)
	event, err := codec.Marshal(e)
	if err = errors.Join(idErr, err); err == nil && id == "" {
		err = damage("the event names no work")
	}
	if err != nil {
		return record{}, fmt.Errorf("journal: %w", err)
	}
	return record{recordWork, id, event}, nil
}

// jsonRecord encodes a value that always marshals.
func jsonRecord(kind byte, v any) record {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return record{kind: kind, value: b}
}
