package codec

import (
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/types"
)

// StringExtension returns a string extension attribute. ok is false if it is absent; an empty string counts as
// present. The error is an *AttributeError.
func StringExtension(e Event, name string) (s string, ok bool, err error) {
	v, ok := e.Extensions()[name]
	if !ok {
		return "", false, nil
	}
	if s, ok = v.(string); !ok {
		return "", false, attributeError(name, "", "must be a string")
	}
	return s, true, nil
}

// IntegerExtension returns an extension attribute that is an integer or its text form; a fraction in the text
// is cut off. ok is false if it is absent. The error is an *AttributeError.
func IntegerExtension(e Event, name string) (n int32, ok bool, err error) {
	v, ok := e.Extensions()[name]
	if !ok {
		return 0, false, nil
	}
	switch v := v.(type) {
	case int32:
		return v, true, nil
	case string:
		n, err := parseInteger(name, v)
		return n, err == nil, err
	}
	return 0, false, attributeError(name, "", "must be an integer")
}

// TimeExtension returns an extension attribute that is a timestamp or its RFC 3339 text. ok is false if it is
// absent. The error is an *AttributeError.
func TimeExtension(e Event, name string) (t time.Time, ok bool, err error) {
	v, ok := e.Extensions()[name]
	if !ok {
		return time.Time{}, false, nil
	}
	switch v := v.(type) {
	case types.Timestamp:
		return v.Time, true, nil
	case string:
		t, err := parseTime(name, v)
		return t, err == nil, err
	}
	return time.Time{}, false, attributeError(name, "", "must be a timestamp")
}

// RevisionExtension returns one of Hawser's revision attributes, or 0 if it is absent. The error is an
// *AttributeError.
func RevisionExtension(e Event, name string) (uint64, error) {
	s, ok, err := StringExtension(e, name)
	if err != nil || !ok {
		return 0, err
	}
	a := attribute{name: []byte(name), value: stringValue([]byte(s))}
	return a.revision()
}

// TagExtension returns the hawsertag of an event. ok is false if it is absent. The error is an *AttributeError.
func TagExtension(e Event) (t Tag, ok bool, err error) {
	s, ok, err := StringExtension(e, ExtTag)
	if err != nil || !ok {
		return Tag{}, false, err
	}
	t, err = ParseTag(s)
	return t, err == nil, err
}

// VersionExtension returns the resourceversion of an event whose data type has the integer form. ok is false if
// it is absent; 0 means unversioned. It is never negative. The error is an *AttributeError.
func VersionExtension(e Event) (v int64, ok bool, err error) {
	n, ok, err := IntegerExtension(e, ExtResourceVersion)
	if err == nil && n < 0 {
		err = attributeError(ExtResourceVersion, strconv.Itoa(int(n)), "must not be negative")
	}
	if err != nil {
		return 0, false, err
	}
	return int64(n), ok, nil
}

// FormatRevision returns the text form of a revision or fencing token for Hawser's own attributes.
func FormatRevision(revision uint64) string { return strconv.FormatUint(revision, 10) }
