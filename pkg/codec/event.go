package codec

import (
	"bytes"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// Marshal returns the protobuf bytes of e; the same event gives the same bytes. It returns an *AttributeError
// if e lacks a required attribute, or if one of its setters failed, for instance for a number outside of int32.
// It returns ErrMalformed if e has only the required attributes, because receivers reject such an event.
func Marshal(e Event) ([]byte, error) {
	w, err := fromEvent(e)
	if err != nil {
		return nil, err
	}
	return w.append(make([]byte, 0, w.size())), nil
}

// Unmarshal reads the protobuf bytes of an event in binary or structured mode. The event shares no memory with
// b. The error is an *AttributeError or wraps ErrMalformed. A heartbeat is not an event here: check IsHeartbeat
// first.
func Unmarshal(b []byte) (Event, error) {
	w, err := parse(b)
	if err != nil {
		return Event{}, err
	}
	return w.event(), nil
}

// ToProto returns e as a message; see Marshal.
func ToProto(e Event) (*cloudeventsv1.CloudEvent, error) {
	w, err := fromEvent(e)
	if err != nil {
		return nil, err
	}
	p := &cloudeventsv1.CloudEvent{
		Id:          string(w.id),
		Source:      string(w.source),
		SpecVersion: string(w.specVersion),
		Type:        string(w.typ),
		Attributes:  make(map[string]*cloudeventsv1.CloudEvent_CloudEventAttributeValue, len(w.attributes)+2),
	}
	for _, a := range w.sorted() {
		p.Attributes[keyPrefix+string(a.name)] = a.value.proto()
	}
	if w.contentType.kind != 0 {
		p.Attributes[keyContentType] = w.contentType.proto()
	}
	if len(w.data) > 0 {
		p.Data = &cloudeventsv1.CloudEvent_BinaryData{BinaryData: bytes.Clone(w.data)}
	}
	return p, nil
}

// FromProto returns the event of a message; see Unmarshal.
func FromProto(p *cloudeventsv1.CloudEvent) (Event, error) {
	if p == nil {
		return Event{}, malformed("the event is absent")
	}
	if len(p.GetAttributes()) > MaxAttributes {
		return Event{}, malformed("more than %d attributes", MaxAttributes)
	}
	w := &wireEvent{
		id:            []byte(p.GetId()),
		source:        []byte(p.GetSource()),
		specVersion:   []byte(p.GetSpecVersion()),
		typ:           []byte(p.GetType()),
		hasAttributes: p.GetAttributes() != nil,
	}
	switch d := p.GetData().(type) {
	case nil:
	case *cloudeventsv1.CloudEvent_BinaryData:
		w.data = d.BinaryData
	case *cloudeventsv1.CloudEvent_TextData:
		return Event{}, errTextData()
	case *cloudeventsv1.CloudEvent_ProtoData:
		return Event{}, errProtoData()
	}
	for _, key := range slices.Sorted(maps.Keys(p.GetAttributes())) {
		w.set([]byte(key), protoValue(p.GetAttributes()[key]))
	}
	if err := w.checkText(); err != nil {
		return Event{}, err
	}
	if err := w.resolve(); err != nil {
		return Event{}, err
	}
	return w.event(), nil
}

// parse is scan followed by resolve.
func parse(b []byte) (*wireEvent, error) {
	w := &wireEvent{}
	if err := w.scan(b); err != nil {
		return nil, err
	}
	if err := w.resolve(); err != nil {
		return nil, err
	}
	return w, nil
}

// event builds the Event without its setters, because they would trim values.
func (w *wireEvent) event() Event {
	c := &event.EventContextV1{
		ID:     string(w.id),
		Source: types.URIRef{URL: mustURL(w.source)},
		Type:   string(w.typ),
	}
	if w.contentType.kind != 0 {
		s := string(w.contentType.bytes)
		c.DataContentType = &s
	}
	if len(w.subject) > 0 {
		s := string(w.subject)
		c.Subject = &s
	}
	if len(w.dataSchema) > 0 {
		c.DataSchema = &types.URI{URL: mustURL(w.dataSchema)}
	}
	if w.time.kind != 0 {
		c.Time = &types.Timestamp{Time: w.time.time()}
	}
	if len(w.attributes) > 0 {
		c.Extensions = make(map[string]any, len(w.attributes))
		for _, a := range w.attributes {
			c.Extensions[string(a.name)] = a.value.goValue()
		}
	}
	e := Event{Context: c}
	if len(w.data) > 0 {
		e.DataEncoded = bytes.Clone(w.data)
		e.DataBase64 = !isJSON(mediaType(w.contentType.bytes))
	}
	return e
}

// mustURL parses a URL that resolve has already validated.
func mustURL(b []byte) url.URL {
	u, err := url.Parse(string(b))
	if err != nil {
		panic("codec: URI was not validated: " + err.Error())
	}
	return *u
}

func fromEvent(e Event) (*wireEvent, error) {
	if failed := slices.Sorted(maps.Keys(e.FieldErrors)); len(failed) > 0 {
		return nil, attributeError(strings.TrimPrefix(failed[0], "extension:"), "", "could not be set: "+e.FieldErrors[failed[0]].Error())
	}
	if e.Context == nil {
		return nil, attributeError("specversion", "", "is required: "+SpecVersion)
	}
	if v := e.Context.GetSpecVersion(); v != SpecVersion {
		return nil, attributeError("specversion", v, "must be "+SpecVersion)
	}
	c := e.Context.AsV1()
	w := &wireEvent{
		id:          []byte(c.ID),
		source:      []byte(c.Source.String()),
		specVersion: []byte(SpecVersion),
		typ:         []byte(c.Type),
		data:        e.DataEncoded,
	}
	w.add("datacontenttype", c.DataContentType)
	w.add("subject", c.Subject)
	if c.DataSchema != nil {
		s := c.DataSchema.String()
		w.add("dataschema", &s)
	}
	if c.Time != nil {
		w.attributes = append(w.attributes, attribute{name: []byte("time"), value: timestampValue(c.Time.Time)})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Extensions)) {
		v, err := extensionValue(c.Extensions[name])
		if err != nil {
			return nil, attributeError(name, "", err.Error())
		}
		w.attributes = append(w.attributes, attribute{name: []byte(name), value: v})
	}
	if len(w.attributes) > MaxAttributes {
		return nil, malformed("more than %d attributes", MaxAttributes)
	}
	w.hasAttributes = len(w.attributes) > 0
	return w.checked()
}

// checked returns w after its checks, or an error.
func (w *wireEvent) checked() (*wireEvent, error) {
	if err := w.checkText(); err != nil {
		return nil, err
	}
	if err := w.resolve(); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *wireEvent) add(name string, s *string) {
	if s != nil && *s != "" {
		w.attributes = append(w.attributes, attribute{name: []byte(name), value: stringValue([]byte(*s))})
	}
}

// extensionValue converts a CloudEvents value of the Event type to the wire form.
func extensionValue(x any) (value, error) {
	x, err := types.Validate(x)
	if err != nil {
		return value{}, err
	}
	switch x := x.(type) {
	case bool:
		return booleanValue(x), nil
	case int32:
		return integerValue(x), nil
	case string:
		return stringValue([]byte(x)), nil
	case []byte:
		return value{kind: fieldBytes, bytes: x}, nil
	case types.URI:
		return value{kind: fieldURI, bytes: []byte(x.String())}, nil
	case types.URIRef:
		return value{kind: fieldURIRef, bytes: []byte(x.String())}, nil
	case types.Timestamp:
		return timestampValue(x.Time), nil
	}
	return value{}, nil // Validate turned a nil pointer into nil: no value
}

func (v *value) goValue() any {
	switch v.kind {
	case fieldBoolean:
		return v.num != 0
	case fieldInteger:
		return int32(v.num) // was read as int32
	case fieldBytes:
		return bytes.Clone(v.bytes)
	case fieldURI:
		return types.URI{URL: mustURL(v.bytes)}
	case fieldURIRef:
		return types.URIRef{URL: mustURL(v.bytes)}
	case fieldTimestamp:
		return types.Timestamp{Time: v.time()}
	default:
		return string(v.bytes)
	}
}

func (v *value) proto() *cloudeventsv1.CloudEvent_CloudEventAttributeValue {
	p := &cloudeventsv1.CloudEvent_CloudEventAttributeValue{}
	switch v.kind {
	case fieldBoolean:
		p.Attr = &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeBoolean{CeBoolean: v.num != 0}
	case fieldInteger:
		p.Attr = &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeInteger{CeInteger: int32(v.num)} // was read as int32
	case fieldString:
		p.Attr = &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeString{CeString: string(v.bytes)}
	case fieldBytes:
		p.Attr = &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeBytes{CeBytes: bytes.Clone(v.bytes)}
	case fieldURI:
		p.Attr = &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeUri{CeUri: string(v.bytes)}
	case fieldURIRef:
		p.Attr = &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeUriRef{CeUriRef: string(v.bytes)}
	case fieldTimestamp:
		p.Attr = &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeTimestamp{CeTimestamp: &timestamppb.Timestamp{Seconds: v.num, Nanos: v.nanos}}
	}
	return p
}

func protoValue(p *cloudeventsv1.CloudEvent_CloudEventAttributeValue) value {
	switch a := p.GetAttr().(type) {
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeBoolean:
		return booleanValue(a.CeBoolean)
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeInteger:
		return integerValue(a.CeInteger)
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeString:
		return stringValue([]byte(a.CeString))
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeBytes:
		return value{kind: fieldBytes, bytes: a.CeBytes}
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeUri:
		return value{kind: fieldURI, bytes: []byte(a.CeUri)}
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeUriRef:
		return value{kind: fieldURIRef, bytes: []byte(a.CeUriRef)}
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeTimestamp:
		return value{kind: fieldTimestamp, num: a.CeTimestamp.GetSeconds(), nanos: a.CeTimestamp.GetNanos()}
	}
	return value{}
}
