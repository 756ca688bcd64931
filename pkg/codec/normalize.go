package codec

import (
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Normalize returns the event as a broker stores it: binary mode, the same
// bytes for the same event, attributes in the type that the protocol gives
// them (text forms of numbers and times are gone), without keys that mean
// nothing and without any attribute of Hawser's own. Those are the broker's to
// set, and what a source said in them was read by ParseEnvelope.
//
// Normalizing twice changes nothing more. The errors are those of
// ParseEnvelope about types.
func Normalize(b []byte) ([]byte, error) {
	w, err := parse(b)
	if err != nil {
		return nil, err
	}
	return w.normalized()
}

// normalized must be the last use of w: it rewrites the attributes.
func (w *wireEvent) normalized() ([]byte, error) {
	dataType := DataType{}
	if t, err := ParseEventType(string(w.typ)); err == nil {
		dataType = t.DataType
	}
	kept := w.attributes[:0]
	for _, a := range w.attributes {
		if strings.HasPrefix(string(a.name), hawserPrefix) {
			continue
		}
		if err := a.normalize(dataType); err != nil {
			return nil, err
		}
		kept = append(kept, a)
	}
	w.attributes = kept
	if w.isBare() {
		return nil, errNoAttributes()
	}
	return w.append(make([]byte, 0, w.size())), nil
}

// normalize replaces the text form of a typed attribute.
func (a *attribute) normalize(d DataType) error {
	switch string(a.name) {
	case ExtResourceVersion:
		v, ok, err := a.version(d)
		if err != nil {
			return err
		}
		if row, _ := Lookup(d); ok && row.Version == VersionInteger {
			a.value = integerValue(int32(v)) // was parsed as int32
		}
	case ExtDeletionTimestamp:
		t, err := a.time()
		if err != nil {
			return err
		}
		a.value = timestampValue(t)
	}
	return nil
}

// Attr is an attribute to be added by AppendAttributes.
type Attr struct {
	name  string // without "ce-"
	value value
}

// StringAttr is the attribute name (without "ce-") with a text.
func StringAttr(name, text string) Attr {
	return Attr{name: name, value: stringValue([]byte(text))}
}

// IntegerAttr is the attribute name (without "ce-") with a number.
func IntegerAttr(name string, n int32) Attr {
	return Attr{name: name, value: integerValue(n)}
}

// TimestampAttr is the attribute name (without "ce-") with a time between the
// years 1 and 9999.
func TimestampAttr(name string, t time.Time) Attr {
	return Attr{name: name, value: timestampValue(t)}
}

// AppendAttributes appends the protobuf bytes of attributes to dst. Behind the
// bytes of an event they add these attributes to it, and replace those of the
// same name: protobuf concatenates maps, and the last value of a key wins.
func AppendAttributes(dst []byte, attrs ...Attr) []byte {
	for i := range attrs {
		dst = appendEntry(dst, keyPrefix, []byte(attrs[i].name), attrs[i].value)
	}
	return dst
}

// AppendType appends the protobuf bytes of a type attribute to dst. Behind the
// bytes of an event they replace its type: the last value of a singular field
// wins.
func AppendType(dst []byte, t EventType) []byte {
	dst = protowire.AppendTag(dst, fieldType, protowire.BytesType)
	return protowire.AppendString(dst, t.String())
}
