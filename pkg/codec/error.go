package codec

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// ErrMalformed is in the chain of each error about bytes that are no CloudEvent of this protocol. All other
// decoding errors are *AttributeError.
var ErrMalformed = errors.New("not a CloudEvent of this protocol")

// AttributeError names an invalid context attribute of an event and its problem. It never holds a payload:
// Value is cut to 64 bytes, and is empty for the attributes that carry objects.
type AttributeError struct {
	// Attribute is the name without "ce-"; "data" is the event's data.
	Attribute string
	// Value is the printable part of the value; it may be empty.
	Value string
	// Problem describes the error and the expected value.
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
