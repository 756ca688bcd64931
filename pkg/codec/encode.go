package codec

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// append writes the event in binary mode: fields by number, attributes by key, data last. The same event always
// gives the same bytes. The event must be resolved.
func (w *wireEvent) append(dst []byte) []byte {
	dst = appendString(dst, fieldID, w.id)
	dst = appendString(dst, fieldSource, w.source)
	dst = appendString(dst, fieldSpecVersion, w.specVersion)
	dst = appendString(dst, fieldType, w.typ)
	for _, a := range w.sorted() {
		dst = appendEntry(dst, keyPrefix, a.name, a.value)
	}
	if w.contentType.kind != 0 {
		dst = appendEntry(dst, "", []byte(keyContentType), w.contentType)
	}
	if len(w.data) > 0 {
		dst = appendBytes(dst, fieldBinaryData, w.data)
	}
	return dst
}

// size returns an upper bound of the bytes that append writes.
func (w *wireEvent) size() int {
	const perField, perEntry = 12, 48
	n := len(w.id) + len(w.source) + len(w.specVersion) + len(w.typ) + len(w.data) + 5*perField
	n += len(w.contentType.bytes) + len(w.subject) + len(w.dataSchema) + 4*perEntry
	for _, a := range w.attributes {
		n += len(a.name) + len(a.value.bytes) + perEntry
	}
	return n
}

// sorted returns extensions, time, subject and schema by name. It must be the last use of w, because it
// rewrites the attributes.
func (w *wireEvent) sorted() []attribute {
	all := w.attributes
	if w.time.kind != 0 {
		all = append(all, attribute{name: []byte("time"), value: w.time})
	}
	if len(w.subject) > 0 {
		all = append(all, attribute{name: []byte("subject"), value: stringValue(w.subject)})
	}
	if len(w.dataSchema) > 0 {
		all = append(all, attribute{name: []byte("dataschema"), value: stringValue(w.dataSchema)})
	}
	slices.SortFunc(all, func(a, b attribute) int { return bytes.Compare(a.name, b.name) })
	return all
}

func appendBytes(dst []byte, num protowire.Number, b []byte) []byte {
	dst = protowire.AppendTag(dst, num, protowire.BytesType)
	return protowire.AppendBytes(dst, b)
}

// appendString omits an empty string, as proto3 does.
func appendString(dst []byte, num protowire.Number, s []byte) []byte {
	if len(s) == 0 {
		return dst
	}
	return appendBytes(dst, num, s)
}

// appendEntry writes one entry of the attributes map under the key prefix+name.
func appendEntry(dst []byte, prefix string, name []byte, v value) []byte {
	keyLen := len(prefix) + len(name)
	valueLen := v.size()
	dst = protowire.AppendTag(dst, fieldAttributes, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(2+protowire.SizeBytes(keyLen)+protowire.SizeBytes(valueLen))) // a length
	dst = protowire.AppendTag(dst, fieldMapKey, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(keyLen)) // a length
	dst = append(dst, prefix...)
	dst = append(dst, name...)
	dst = protowire.AppendTag(dst, fieldMapValue, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(valueLen)) // a length
	return v.append(dst)
}

// size is the exact length of the value message; each tag in it has one byte.
func (v *value) size() int {
	switch v.kind {
	case fieldBoolean, fieldInteger:
		return 1 + protowire.SizeVarint(uint64(v.num)) // two's complement on the wire
	case fieldTimestamp:
		return 1 + protowire.SizeBytes(v.timestampSize())
	default:
		return 1 + protowire.SizeBytes(len(v.bytes))
	}
}

func (v *value) timestampSize() (n int) {
	if v.num != 0 {
		n += 1 + protowire.SizeVarint(uint64(v.num)) // two's complement on the wire
	}
	if v.nanos != 0 {
		n += 1 + protowire.SizeVarint(uint64(v.nanos)) // validated: not negative
	}
	return n
}

func (v *value) append(dst []byte) []byte {
	switch v.kind {
	case fieldBoolean, fieldInteger:
		dst = protowire.AppendTag(dst, v.kind, protowire.VarintType)
		return protowire.AppendVarint(dst, uint64(v.num)) // two's complement on the wire
	case fieldTimestamp:
		dst = protowire.AppendTag(dst, v.kind, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(v.timestampSize())) // a length
		if v.num != 0 {
			dst = protowire.AppendTag(dst, fieldSeconds, protowire.VarintType)
			dst = protowire.AppendVarint(dst, uint64(v.num)) // two's complement on the wire
		}
		if v.nanos != 0 {
			dst = protowire.AppendTag(dst, fieldNanos, protowire.VarintType)
			dst = protowire.AppendVarint(dst, uint64(v.nanos)) // validated: not negative
		}
		return dst
	default:
		return appendBytes(dst, v.kind, v.bytes)
	}
}
