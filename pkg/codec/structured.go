package codec

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// readStructured replaces w by the event in the JSON of its data. The outer fields may repeat the JSON but not
// contradict it.
func (w *wireEvent) readStructured() error {
	if len(w.attributes) > 0 {
		return attributeError(string(w.attributes[0].name), "", "is given next to a structured event; put it into the JSON")
	}
	outer := *w
	*w = wireEvent{hasAttributes: true}
	data, encoded, err := w.readMembers(outer.data)
	if p := jsonError(""); errors.As(err, &p) {
		return malformed("the structured event is not a JSON object: it %s", string(p))
	}
	if err == nil {
		err = w.setStructuredData(data, encoded)
	}
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name         string
		inner, outer []byte
	}{
		{"id", w.id, outer.id},
		{"source", w.source, outer.source},
		{"type", w.typ, outer.typ},
		{"specversion", w.specVersion, outer.specVersion},
	} {
		if len(f.outer) > 0 && !bytes.Equal(f.inner, f.outer) {
			return attributeError(f.name, string(f.outer), "disagrees with the structured event")
		}
	}
	return nil
}

// readMembers adds the attributes and returns the values of data and data_base64, nil if absent. A null member
// counts as absent.
func (w *wireEvent) readMembers(event []byte) (data, encoded []byte, err error) {
	var seen []string
	r := &jsonReader{b: event}
	err = r.members(func(raw []byte) error {
		name, ok := unquote(raw[:min(len(raw), 6*maxAttributeName)])
		switch {
		case len(seen) == MaxAttributes:
			return atMost(MaxAttributes, "members")
		case !ok || len(raw) > 6*maxAttributeName:
			return jsonError("has a member with a name that is too long")
		case slices.Contains(seen, name):
			return jsonError("has the member " + strconv.Quote(name) + " twice")
		}
		seen = append(seen, name)
		value, err := r.value()
		if err != nil || string(value) == "null" {
			return err
		}
		switch name {
		case "data":
			data = value
		case "data_base64":
			encoded = value
		default:
			return w.setMember(name, value)
		}
		return nil
	})
	if err == nil {
		err = r.end()
	}
	return data, encoded, err
}

func (w *wireEvent) setMember(name string, raw []byte) error {
	if raw[0] == '{' || raw[0] == '[' {
		return attributeError(name, "", "must be a string, a number or a boolean")
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return malformed("member %q of the structured event: %v", shorten(name), err)
	}
	switch v := v.(type) {
	case string:
		switch name {
		case "id":
			w.id = []byte(v)
		case "source":
			w.source = []byte(v)
		case "type":
			w.typ = []byte(v)
		case "specversion":
			w.specVersion = []byte(v)
		default:
			w.attributes = append(w.attributes, attribute{name: []byte(name), value: stringValue([]byte(v))})
		}
		return nil
	case bool:
		w.attributes = append(w.attributes, attribute{name: []byte(name), value: booleanValue(v)})
		return nil
	case json.Number:
		n, err := strconv.ParseInt(v.String(), 10, 32)
		if err != nil {
			return attributeError(name, v.String(), fmt.Sprintf("must be an integer from %d to %d", math.MinInt32, math.MaxInt32))
		}
		w.attributes = append(w.attributes, attribute{name: []byte(name), value: integerValue(int32(n))})
		return nil
	}
	return attributeError(name, "", "must be a string, a number or a boolean")
}

// setStructuredData sets data: raw JSON, or the content of its string if the data is not JSON. data_base64 is
// decoded to bytes.
func (w *wireEvent) setStructuredData(raw, encoded []byte) error {
	simple, binary := raw != nil, encoded != nil
	var text string
	switch {
	case simple && binary:
		return attributeError("data", "", "is given twice: as data and as data_base64")
	case binary:
		if err := json.Unmarshal(encoded, &text); err != nil {
			return attributeError("data", "", "data_base64 must be a string")
		}
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return attributeError("data", "", "data_base64 must be base64")
		}
		w.data = b
	case simple && w.structuredJSON():
		w.data = raw
	case simple:
		if err := json.Unmarshal(raw, &text); err != nil {
			return attributeError("data", "", "must be a string unless the content type is JSON")
		}
		w.data = []byte(text)
	}
	return nil
}

// structuredJSON reports whether the data of a structured event is JSON. Without a content type it is JSON;
// structuredJSON then sets the content type.
func (w *wireEvent) structuredJSON() bool {
	for _, a := range w.attributes {
		if string(a.name) == "datacontenttype" {
			mt := mediaType(a.value.bytes)
			return mt == "" || isJSON(mt)
		}
	}
	w.contentType = stringValue([]byte(ContentTypeJSON))
	return true
}

// isJSON reports whether a media type (lower case, no parameters) is JSON.
func isJSON(mt string) bool {
	return mt == ContentTypeJSON || mt == "text/json" || len(mt) > 5 && mt[len(mt)-5:] == "+json"
}
