package codec

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// ErrMalformed is in the chain of every error about bytes that are not a
// CloudEvent of this protocol at all. All other decoding errors are
// *AttributeError.
var ErrMalformed = errors.New("not a CloudEvent of this protocol")

// AttributeError says which context attribute of an event is wrong, and how.
// It never holds a payload: Value is cut to 64 bytes and left out for the
// attributes that carry objects.
type AttributeError struct {
	// Attribute is the name without "ce-"; "data" is the event's data.
	Attribute string
	// Value as far as it may be shown; empty when it says nothing.
	Value string
	// Problem says what is wrong and what would be right.
	Problem string
}

// Error names attribute, value and problem.
func (e *AttributeError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("attribute %q: %s", e.Attribute, e.Problem)
	}
	return fmt.Sprintf("attribute %q is %q: %s", e.Attribute, e.Value, e.Problem)
}

// maxShownValue is the number of bytes of a value that an error may quote.
const maxShownValue = 64

func attributeError(name, value, problem string) *AttributeError {
	return &AttributeError{Attribute: shorten(name), Value: shorten(value), Problem: problem}
}

func shorten(s string) string {
	if len(s) <= maxShownValue {
		return s
	}
	cut := maxShownValue
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "... (" + strconv.Itoa(len(s)) + " bytes)"
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

func errTextData() error {
	return attributeError("data", "", "is in text_data, which receivers of this protocol drop; send it in binary_data")
}

func errProtoData() error {
	return attributeError("data", "", "is in proto_data, which receivers of this protocol drop; send it in binary_data")
}

func errNoAttributes() error {
	return malformed("it has no attributes in the map; their keys are %q and %q", keyPrefix+"<name>", keyContentType)
}
