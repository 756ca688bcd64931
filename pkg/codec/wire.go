package codec

import (
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the CloudEvent message, its map entries and its values.
const (
	fieldID          = 1
	fieldSource      = 2
	fieldSpecVersion = 3
	fieldType        = 4
	fieldAttributes  = 5
	fieldBinaryData  = 6
	fieldTextData    = 7
	fieldProtoData   = 8

	fieldMapKey   = 1
	fieldMapValue = 2

	fieldBoolean   = 1
	fieldInteger   = 2
	fieldString    = 3
	fieldBytes     = 4
	fieldURI       = 5
	fieldURIRef    = 6
	fieldTimestamp = 7

	fieldSeconds = 1
	fieldNanos   = 2
)

// Keys of the attributes map: "ce-" before each name, except the content type.
const (
	keyPrefix      = "ce-"
	keyContentType = "contenttype"
)

// value is one attribute value. kind is the field number that holds it, 0 if the value is empty.
type value struct {
	kind  protowire.Number
	bytes []byte // string, bytes, URI, URI reference
	num   int64  // boolean, integer, seconds of a timestamp
	nanos int32
}

func stringValue(s []byte) value { return value{kind: fieldString, bytes: s} }

func integerValue(n int32) value { return value{kind: fieldInteger, num: int64(n)} }

func booleanValue(b bool) value {
	v := value{kind: fieldBoolean}
	if b {
		v.num = 1
	}
	return v
}

func timestampValue(t time.Time) value {
	return value{kind: fieldTimestamp, num: t.Unix(), nanos: int32(t.Nanosecond())} // below 1e9
}

// attribute is one entry of the attributes map, without the "ce-" of its key.
type attribute struct {
	name  []byte
	value value
}

// wireEvent is the common form that all forms of an event are read into and written from. Its slices alias the
// input. After resolve, context attributes have their own fields, attributes holds the extensions, and all is
// valid.
type wireEvent struct {
	id, source, specVersion, typ []byte

	hasAttributes bool // the map was present
	contentType   value
	attributes    []attribute

	subject, dataSchema []byte // set by resolve, nil when absent
	time                value  // set by resolve, a timestamp; kind 0 when absent

	data []byte

	inline [16]attribute // initial storage of attributes; events rarely have more
}

// scan reads the protobuf bytes of a CloudEvent exactly as a protobuf library does. Unknown fields are skipped,
// the last value of a singular field or map key wins, strings must be UTF-8. It differs on purpose in one case:
// it rejects text_data and proto_data, because ignoring them would lose data.
func (w *wireEvent) scan(b []byte) error {
	entries := 0
	w.attributes = w.inline[:0]
	for len(b) > 0 {
		num, payload, n, err := nextField(b)
		if err != nil {
			return err
		}
		b = b[n:]
		if payload == nil {
			continue
		}
		switch num {
		case fieldID, fieldSource, fieldSpecVersion, fieldType:
			if !utf8.Valid(payload) {
				return malformed("field %d of the message is not UTF-8", num)
			}
			*w.stringField(num) = payload
		case fieldAttributes:
			if entries++; entries > MaxAttributes {
				return malformed("more than %d attributes", MaxAttributes)
			}
			if err := w.scanEntry(payload); err != nil {
				return err
			}
		case fieldBinaryData:
			w.data = payload
		case fieldTextData:
			return errTextData()
		case fieldProtoData:
			return errProtoData()
		}
	}
	return nil
}

func (w *wireEvent) stringField(num protowire.Number) *[]byte {
	switch num {
	case fieldID:
		return &w.id
	case fieldSource:
		return &w.source
	case fieldSpecVersion:
		return &w.specVersion
	default:
		return &w.typ
	}
}

// nextField reads one field and returns its length n. payload is non-nil only for the length-delimited wire
// type. The messages above the values use only this type.
func nextField(b []byte) (num protowire.Number, payload []byte, n int, err error) {
	num, typ, tagLen := protowire.ConsumeTag(b)
	if tagLen < 0 || num > protowire.MaxValidNumber {
		return 0, nil, 0, malformed("the protobuf bytes are broken")
	}
	if typ == protowire.BytesType {
		v, m := protowire.ConsumeBytes(b[tagLen:])
		if m < 0 {
			return 0, nil, 0, malformed("the protobuf bytes are broken")
		}
		if v == nil {
			v = []byte{}
		}
		return num, v, tagLen + m, nil
	}
	m := protowire.ConsumeFieldValue(num, typ, b[tagLen:])
	if m < 0 {
		return 0, nil, 0, malformed("the protobuf bytes are broken")
	}
	return num, nil, tagLen + m, nil
}

func (w *wireEvent) scanEntry(b []byte) error {
	var key []byte
	var v value
	for len(b) > 0 {
		num, payload, n, err := nextField(b)
		if err != nil {
			return err
		}
		b = b[n:]
		switch {
		case payload == nil:
		case num == fieldMapKey:
			if !utf8.Valid(payload) {
				return malformed("the key of an attribute is not UTF-8")
			}
			key = payload
		case num == fieldMapValue:
			if err := v.scan(payload); err != nil {
				return err
			}
		}
	}
	w.set(key, v)
	return nil
}

// set stores the entry; a later one replaces an earlier one of the same key.
func (w *wireEvent) set(key []byte, v value) {
	w.hasAttributes = true
	if string(key) == keyContentType {
		w.contentType = v
		if v.kind == 0 {
			w.contentType.kind = kindEmpty
		}
		return
	}
	if len(key) < len(keyPrefix) || string(key[:len(keyPrefix)]) != keyPrefix {
		return
	}
	name := key[len(keyPrefix):]
	for i := range w.attributes {
		if string(w.attributes[i].name) == string(name) {
			w.attributes[i].value = v
			return
		}
	}
	w.attributes = append(w.attributes, attribute{name: name, value: v})
}

// kindEmpty marks a content type that is present without a value.
const kindEmpty protowire.Number = -1

// scan merges the bytes of one value message into v.
func (v *value) scan(b []byte) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return errBrokenValue()
		}
		m, err := v.scanField(num, typ, b[n:])
		if err != nil {
			return err
		}
		if m < 0 {
			return errBrokenValue()
		}
		b = b[n+m:]
	}
	return nil
}

// scanField reads the field after its tag and returns its length, negative for invalid bytes.
func (v *value) scanField(num protowire.Number, typ protowire.Type, b []byte) (n int, err error) {
	switch {
	case typ == protowire.VarintType && (num == fieldBoolean || num == fieldInteger):
		x, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return n, nil
		}
		*v = integerValue(int32(x)) // protobuf truncates to int32 in the same way
		if num == fieldBoolean {
			*v = booleanValue(x != 0)
		}
		return n, nil
	case typ == protowire.BytesType && num >= fieldString && num <= fieldTimestamp:
		payload, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return n, nil
		}
		return n, v.setBytes(num, payload)
	}
	return protowire.ConsumeFieldValue(num, typ, b), nil
}

func errBrokenValue() error { return malformed("the protobuf bytes of an attribute are broken") }

func (v *value) setBytes(num protowire.Number, payload []byte) error {
	if num == fieldTimestamp {
		return v.scanTimestamp(payload)
	}
	if num != fieldBytes && !utf8.Valid(payload) {
		return malformed("the text of an attribute is not UTF-8")
	}
	*v = value{kind: num, bytes: payload}
	return nil
}

// scanTimestamp merges into v if it already holds a timestamp, as protobuf merges messages.
func (v *value) scanTimestamp(b []byte) error {
	if v.kind != fieldTimestamp {
		*v = value{kind: fieldTimestamp}
	}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return malformed("the protobuf bytes of a timestamp are broken")
		}
		b = b[n:]
		if typ == protowire.VarintType && (num == fieldSeconds || num == fieldNanos) {
			var x uint64
			if x, n = protowire.ConsumeVarint(b); n >= 0 {
				if num == fieldSeconds {
					v.num = int64(x) // int64 on the wire
				} else {
					v.nanos = int32(x) // int32 on the wire
				}
			}
		} else {
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return malformed("the protobuf bytes of a timestamp are broken")
		}
		b = b[n:]
	}
	return nil
}
