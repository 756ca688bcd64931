package pebble

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// format is what this release writes and the newest it reads. A value is
//
//	1 byte   format
//	1 byte   flags, 0 (compression, when it comes)
//	1 byte   key id, 0 (encryption at rest, when it comes)
//	         body
//	4 bytes  CRC-32C, little endian, over storage key and all before
const (
	format      = 1
	valueHead   = 3
	valueTail   = 4
	valueExtras = valueHead + valueTail
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FormatError says that a value was written by a newer release. Run that release again,
// or restore a backup made before the upgrade.
type FormatError struct {
	Key    string // printable form of the storage key
	Format byte
}

// Error says what to do.
func (e *FormatError) Error() string {
	return fmt.Sprintf("store: value at %s has format %d, this release knows up to %d: run the newer release that wrote it, or restore a backup from before", e.Key, e.Format, format)
}

// sealed is the length of the value of a body.
func sealed(body []byte) int { return valueExtras + len(body) }

// sealTo writes the value of a body into v, which has that length.
func sealTo(v, key, body []byte) {
	v[0], v[1], v[2] = format, 0, 0
	n := valueHead + copy(v[valueHead:], body)
	binary.LittleEndian.PutUint32(v[n:], checksum(key, v[:n]))
}

// set puts a value into a batch.
func set(b *engine.Batch, key, body []byte) error {
	d := b.SetDeferred(len(key), sealed(body))
	copy(d.Key, key)
	sealTo(d.Value, key, body)
	return d.Finish()
}

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
	case v[0] != format:
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
