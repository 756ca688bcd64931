package pebble

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// The first byte of a storage key says what it leads to. Parts that follow are
// separated by zero bytes, which no part contains, so that keys sort as their
// parts do.
const (
	keyMeta     = 'm' // data type, cluster, resource id: the record without payloads
	keySpec     = 's' // the same: its spec
	keyStatus   = 't' // the same: its status
	keyWaiting  = 'w' // the same: the event that waits behind it
	keyName     = 'n' // data type, cluster, name: the resource id that holds it
	keyOwner    = 'o' // owner, data type, cluster, resource id: nothing
	keyRevision = 'r' // revision, 8 bytes big endian: the change
	keyCluster  = 'c' // cluster, data type: the uid its agent gave
	keyBookmark = 'b' // name: the value
	keyTerm     = 'e' // number of the opening, 8 bytes big endian: the term
	keyEpoch    = 'i' // alone: the epoch
	keyHead     = 'h' // alone: the last revision
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

// recordKey is the storage key of one value of a record.
func recordKey(kind byte, k store.Key) []byte {
	b := make([]byte, 1, 6+len(k.DataType.Group)+len(k.DataType.Version)+len(k.DataType.Resource)+len(k.Cluster)+len(k.ResourceID))
	b[0] = kind
	return appendParts(b, k.DataType.Group, k.DataType.Version, k.DataType.Resource, k.Cluster, k.ResourceID)
}

func nameKey(dt codec.DataType, cluster, name string) []byte {
	return recordKey(keyName, store.Key{DataType: dt, Cluster: cluster, ResourceID: name})
}

func ownerKey(owner string, k store.Key) []byte {
	return appendParts([]byte{keyOwner}, owner, k.DataType.Group, k.DataType.Version, k.DataType.Resource, k.Cluster, k.ResourceID)
}

func clusterKey(dt codec.DataType, cluster string) []byte {
	return appendParts([]byte{keyCluster}, cluster, dt.Group, dt.Version, dt.Resource)
}

func bookmarkKey(name string) []byte { return append([]byte{keyBookmark}, name...) }

func numberKey(kind byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{kind}, n)
}

// prefix returns a key that all keys with these leading parts start with.
func prefix(kind byte, parts ...string) []byte {
	b := []byte{kind}
	for _, p := range parts {
		b = append(append(b, p...), separator)
	}
	return b
}

// after returns the first key behind all that start with a prefix.
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

// parseOwnerKey returns the record that an entry of the owner index is about.
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

// printable is the form of a storage key in errors: its kind and parts.
func printable(key []byte) string {
	if len(key) == 0 {
		return `""`
	}
	kind, rest := string(key[:1]), key[1:]
	switch {
	case key[0] == keyRevision && len(rest) == 8, key[0] == keyTerm && len(rest) == 8:
		return fmt.Sprintf("%s/%d", kind, binary.BigEndian.Uint64(rest))
	case len(rest) == 0:
		return kind
	default:
		return fmt.Sprintf("%s/%q", kind, strings.ReplaceAll(string(rest), "\x00", "/"))
	}
}
