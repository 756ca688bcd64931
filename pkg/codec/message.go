package codec

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxTextBytes is the length limit of a text in an MQTT packet (16 bit length): key or value of a user
// property, content type, topic.
const MaxTextBytes = 65535

// Property is a user property of an MQTT 5 packet.
type Property struct{ Key, Value string }

// Message is an event as an MQTT 5 PUBLISH carries it.
//
// Hawser sends binary mode: each attribute is a user property with the key "ce-" + name and the value as text.
// Numbers are decimal, times are RFC 3339 in UTC, bytes are base64. The content type of the data is the Content
// Type of the packet. Structured mode is accepted too: its content type names it, and the payload is the whole
// event as JSON.
//
// User properties whose keys do not begin with "ce-" belong to the packet, not to the event.
type Message struct {
	ContentType string
	Properties  []Property
	Payload     []byte
}

// ToMessage returns e in binary mode: id, source, specversion, type, dataschema, subject, time, then the
// extensions by name. The payload is that of e, not a copy. It returns the errors of Marshal, and an error for
// a text that MQTT forbids. [Message.CheckLengths] checks lengths.
func ToMessage(e Event) (Message, error) {
	w, err := fromEvent(e)
	if err != nil {
		return Message{}, err
	}
	return w.message()
}

// MessageOfProto converts the protobuf bytes of an event to binary mode, as ToMessage does. The payload aliases
// b, except that of a structured event.
func MessageOfProto(b []byte) (Message, error) {
	w, err := parse(b)
	if err != nil {
		return Message{}, err
	}
	return w.message()
}

// FromMessage returns the event of a message in binary or structured mode, in memory of its own. Attributes
// with a protocol type have that type: a resourceversion "7" is the integer 7. The error is an *AttributeError
// or wraps ErrMalformed.
func FromMessage(m Message) (Event, error) {
	w, err := m.wire()
	if err != nil {
		return Event{}, err
	}
	return w.event(), nil
}

// Proto returns the protobuf bytes of the event, the same as Marshal of FromMessage. A broker passes them to
// Ingest.
func (m Message) Proto() ([]byte, error) {
	w, err := m.wire()
	if err != nil {
		return nil, err
	}
	return w.append(make([]byte, 0, w.size())), nil
}

// CheckLengths returns an *AttributeError about a text that is longer than MQTT can carry, or nil.
func (m Message) CheckLengths() error {
	if len(m.ContentType) > MaxTextBytes {
		return tooLong("datacontenttype", m.ContentType)
	}
	for _, p := range m.Properties {
		if len(p.Value) > MaxTextBytes || len(p.Key) > MaxTextBytes {
			return tooLong(strings.TrimPrefix(p.Key, keyPrefix), p.Value)
		}
	}
	return nil
}

func tooLong(name, value string) error {
	return attributeError(name, "", fmt.Sprintf("has %d bytes, and over MQTT an attribute has at most %d: make it shorter", len(value), MaxTextBytes))
}

// message must be the last use of w, because it rewrites the attributes.
func (w *wireEvent) message() (Message, error) {
	m := Message{ContentType: string(w.contentType.bytes), Payload: w.data}
	rest := w.sorted()
	slices.SortStableFunc(rest, func(a, b attribute) int { return a.rank() - b.rank() })
	m.Properties = append(make([]Property, 0, len(rest)+4),
		Property{keyPrefix + "id", string(w.id)}, Property{keyPrefix + "source", string(w.source)},
		Property{keyPrefix + "specversion", string(w.specVersion)}, Property{keyPrefix + "type", string(w.typ)})
	for _, a := range rest {
		m.Properties = append(m.Properties, Property{keyPrefix + string(a.name), a.value.text()})
	}
	return m, m.checkZero()
}

// rank orders the attributes of CloudEvents before the extensions.
func (a *attribute) rank() int {
	switch string(a.name) {
	case "dataschema", "subject", "time":
		return 0
	}
	return 1
}

// checkZero rejects the character U+0000, which MQTT forbids: receivers end the connection.
func (m Message) checkZero() error {
	const problem = "must not contain the character U+0000, which MQTT forbids"
	if strings.Contains(m.ContentType, "\x00") {
		return attributeError("datacontenttype", "", problem)
	}
	for _, p := range m.Properties {
		if strings.Contains(p.Value, "\x00") {
			return attributeError(strings.TrimPrefix(p.Key, keyPrefix), "", problem)
		}
	}
	return nil
}

// text returns the text form of a value.
func (v *value) text() string {
	switch v.kind {
	case fieldBoolean:
		return strconv.FormatBool(v.num != 0)
	case fieldInteger:
		return strconv.FormatInt(v.num, 10)
	case fieldBytes:
		return base64.StdEncoding.EncodeToString(v.bytes)
	case fieldTimestamp:
		return v.time().Format(time.RFC3339Nano)
	default:
		return string(v.bytes)
	}
}

// wire reads a message into a valid event. It rejects a duplicate attribute, because two receivers could read
// different values.
func (m Message) wire() (*wireEvent, error) {
	w := &wireEvent{data: m.Payload}
	w.attributes = w.inline[:0]
	if m.ContentType != "" {
		w.contentType = stringValue([]byte(m.ContentType))
	}
	structured := mediaType(w.contentType.bytes) == mediaTypeStructured
	for _, p := range m.Properties {
		name, ok := strings.CutPrefix(p.Key, keyPrefix)
		if !ok {
			continue
		}
		if err := w.addText(name, p.Value); err != nil {
			return nil, err
		}
	}
	w.hasAttributes = structured || len(w.specVersion) > 0
	if !w.hasAttributes {
		return nil, malformed("it has neither the user property %q nor the content type %q", keyPrefix+"specversion", mediaTypeStructured)
	}
	if err := w.checkText(); err != nil {
		return nil, err
	}
	if err := w.resolve(); err != nil {
		return nil, err
	}
	return w, w.giveTypes()
}

// addText adds the attribute of a user property.
func (w *wireEvent) addText(name, text string) error {
	var field *[]byte
	switch name {
	case "id":
		field = &w.id
	case "source":
		field = &w.source
	case "specversion":
		field = &w.specVersion
	case "type":
		field = &w.typ
	}
	twice := field != nil && *field != nil
	for i := range w.attributes {
		twice = twice || string(w.attributes[i].name) == name
	}
	switch {
	case twice:
		return attributeError(name, "", "is given twice")
	case len(w.attributes) == MaxAttributes:
		return malformed("more than %d attributes", MaxAttributes)
	case field != nil:
		*field = append([]byte{}, text...)
	default:
		w.attributes = append(w.attributes, attribute{name: []byte(name), value: stringValue([]byte(text))})
	}
	return nil
}

// giveTypes converts texts to the types of the protocol.
func (w *wireEvent) giveTypes() error {
	t, err := ParseEventType(string(w.typ))
	if err != nil {
		t = EventType{} // outside the grammar: such an event has no version
	}
	for i := range w.attributes {
		if err := w.attributes[i].normalize(t.DataType); err != nil {
			return err
		}
	}
	return nil
}
