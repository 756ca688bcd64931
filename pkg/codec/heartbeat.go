package codec

import "google.golang.org/protobuf/encoding/protowire"

// Heartbeat returns the protobuf bytes of a heartbeat. It has only id, spec version and type; receivers
// recognise it by the type before they decode anything.
func Heartbeat(id string) []byte {
	var b []byte
	b = appendString(b, fieldID, []byte(id))
	b = appendString(b, fieldSpecVersion, []byte(SpecVersion))
	return appendString(b, fieldType, []byte(TypeHeartbeat))
}

// IsHeartbeat reports whether b is the protobuf form of a heartbeat. Only the type is checked. Invalid bytes
// return false; the next decoder returns the error.
func IsHeartbeat(b []byte) bool {
	found := false
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		n = protowire.ConsumeFieldValue(num, typ, b)
		if n < 0 {
			return false
		}
		if num == fieldType && typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			found = string(v) == TypeHeartbeat
		}
		b = b[n:]
	}
	return found
}
