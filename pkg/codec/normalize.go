package codec

import (
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Normalize returns the event as a broker stores it. It is in binary mode, with the same bytes for the same
// event. Attributes have their protocol type; text forms of numbers and times are converted. Unknown keys and
// all Hawser attributes are removed: only the broker sets these, and ParseEnvelope has read those of a source.
//
// Normalizing twice gives the same result. The errors are those of ParseEnvelope about types.
func Normalize(b []byte) ([]byte, error) {
	w, err := parse(b)
	if err != nil {
		return nil, err
	}
	return w.normalized()
}

// normalized must be the last use of w, because it rewrites the attributes.
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

// Attr is an attribute for AppendAttributes.
type Attr struct {
	name  string // without "ce-"
	value value
}

// StringAttr returns the text attribute name, which has no "ce-".
func StringAttr(name, text string) Attr {
	return Attr{name: name, value: stringValue([]byte(text))}
}

// IntegerAttr returns the integer attribute name, which has no "ce-".
func IntegerAttr(name string, n int32) Attr {
	return Attr{name: name, value: integerValue(n)}
}

// TimestampAttr returns the timestamp attribute name, which has no "ce-". The year must be between 1 and 9999.
func TimestampAttr(name string, t time.Time) Attr {
	return Attr{name: name, value: timestampValue(t)}
}

// AppendAttributes appends the protobuf bytes of attributes to dst. Appended to an event, they add these
// attributes or replace those of the same name. Protobuf concatenates maps, and the last value of a key wins.
func AppendAttributes(dst []byte, attrs ...Attr) []byte {
	for i := range attrs {
		dst = appendEntry(dst, keyPrefix, []byte(attrs[i].name), attrs[i].value)
	}
	return dst
}

// AppendType appends the protobuf bytes of a type attribute to dst. Appended to an event, they replace its
// type: the last value of a singular field wins.
func AppendType(dst []byte, t EventType) []byte {
	dst = protowire.AppendTag(dst, fieldType, protowire.BytesType)
	return protowire.AppendString(dst, t.String())
}
