package codec

import "google.golang.org/protobuf/encoding/protowire"

// WithoutAttribute returns the protobuf bytes of an event without the attribute name, which has no "ce-". name
// is a context attribute or an extension. event must be valid, as Normalize returns it. It is not modified;
// without such an attribute it is returned itself.
func WithoutAttribute(event []byte, name string) []byte {
	var out []byte
	kept := 0 // if out is in use, it already contains event[:kept]
	for at := 0; at < len(event); {
		num, typ, n := protowire.ConsumeTag(event[at:])
		if n < 0 {
			return event
		}
		m := protowire.ConsumeFieldValue(num, typ, event[at+n:])
		if m < 0 {
			return event
		}
		if num == fieldAttributes && typ == protowire.BytesType && isEntryOf(event[at+n:at+n+m], name) {
			if out == nil {
				out = make([]byte, 0, len(event))
			}
			out = append(out, event[kept:at]...)
			kept = at + n + m
		}
		at += n + m
	}
	if out == nil {
		return event
	}
	return append(out, event[kept:]...)
}

// isEntryOf reports whether field, length included, is the map entry of attribute name.
func isEntryOf(field []byte, name string) bool {
	entry, _ := protowire.ConsumeBytes(field)
	for len(entry) > 0 {
		num, typ, n := protowire.ConsumeTag(entry)
		if n < 0 {
			return false
		}
		m := protowire.ConsumeFieldValue(num, typ, entry[n:])
		if m < 0 {
			return false
		}
		if num == fieldMapKey && typ == protowire.BytesType {
			key, _ := protowire.ConsumeBytes(entry[n:])
			return string(key) == keyPrefix+name
		}
		entry = entry[n+m:]
	}
	return false
}
