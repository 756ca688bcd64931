package codec

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

// Seconds of the first and the last valid timestamp: years 1 to 9999.
const (
	minTimestamp = -62135596800
	maxTimestamp = 253402300799
)

// mediaTypeStructured is the content type of a structured event, which is JSON as a whole.
const mediaTypeStructured = "application/cloudevents+json"

// resolve turns the result of scan into a valid event, or returns an error that names the attribute. A resolved
// event can be converted to an Event and back.
func (w *wireEvent) resolve() error {
	if !w.hasAttributes {
		return errNoAttributes()
	}
	if err := w.checkContentType(); err != nil {
		return err
	}
	if mediaType(w.contentType.bytes) == mediaTypeStructured {
		if err := w.readStructured(); err != nil {
			return err
		}
	}
	extensions := w.attributes[:0]
	for _, a := range w.attributes {
		if err := a.check(); err != nil {
			return err
		}
		isContext, err := w.takeContext(a)
		if err != nil {
			return err
		}
		if !isContext {
			extensions = append(extensions, a)
		}
	}
	w.attributes = extensions
	if err := w.checkRequired(); err != nil {
		return err
	}
	if w.isBare() {
		return errNoAttributes()
	}
	return nil
}

// isBare reports whether no attribute is left for the attributes map. Receivers reject an event without it.
func (w *wireEvent) isBare() bool {
	return len(w.attributes) == 0 && w.time.kind == 0 && w.contentType.kind == 0 && len(w.subject) == 0 && len(w.dataSchema) == 0
}

// checkText rejects text that is not UTF-8. scan has already checked text from protobuf bytes.
func (w *wireEvent) checkText() error {
	for _, f := range []struct {
		name string
		text []byte
	}{{"id", w.id}, {"source", w.source}, {"type", w.typ}, {"specversion", w.specVersion}, {"datacontenttype", w.contentType.bytes}} {
		if !utf8.Valid(f.text) {
			return attributeError(f.name, "", "must be UTF-8")
		}
	}
	for _, a := range w.attributes {
		if a.value.kind != fieldBytes && !utf8.Valid(a.value.bytes) {
			return attributeError(string(a.name), "", "must be UTF-8")
		}
	}
	return nil
}

func (w *wireEvent) checkContentType() error {
	switch w.contentType.kind {
	case 0:
		return nil
	case fieldString:
		if len(w.contentType.bytes) == 0 {
			w.contentType = value{} // absent, as in the Event type
		}
		return nil
	default:
		return attributeError("datacontenttype", "", "must be a string")
	}
}

// mediaType returns the media type in lower case, without parameters.
func mediaType(contentType []byte) string {
	if mt, _, ok := bytes.Cut(contentType, []byte{';'}); ok {
		contentType = mt
	}
	contentType = bytes.TrimSpace(contentType)
	if string(contentType) == ContentTypeJSON {
		return ContentTypeJSON
	}
	return strings.ToLower(string(contentType))
}

// check validates name and value independently of other attributes.
func (a *attribute) check() error {
	if err := checkAttributeName(a.name); err != nil {
		return err
	}
	switch a.value.kind {
	case 0:
		return attributeError(string(a.name), "", "has no value")
	case fieldTimestamp:
		if a.value.num < minTimestamp || a.value.num > maxTimestamp || a.value.nanos < 0 || a.value.nanos >= 1e9 {
			return attributeError(string(a.name), "", "is not a time between the years 1 and 9999")
		}
	case fieldURI, fieldURIRef:
		if !canonicalURIRef(a.value.bytes) {
			return attributeError(string(a.name), string(a.value.bytes), "must be a URI in its normal form")
		}
	}
	return nil
}

func checkAttributeName(name []byte) error {
	if len(name) == 0 {
		return attributeError("ce-", "", "has no name")
	}
	if len(name) > maxAttributeName {
		return attributeError(string(name), "", fmt.Sprintf("the name of an attribute has at most %d bytes", maxAttributeName))
	}
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return attributeError(string(name), "", "the name of an attribute consists of lower-case letters and digits")
		}
	}
	return nil
}

// takeContext moves an attribute that has its own field there, and reports whether it was one. If a field is
// given twice, both values must be equal. Otherwise the authorized value could differ from the one a receiver
// reads.
func (w *wireEvent) takeContext(a attribute) (isContext bool, err error) {
	switch string(a.name) {
	case "id":
		return true, a.agree(&w.id)
	case "source":
		return true, a.agree(&w.source)
	case "type":
		return true, a.agree(&w.typ)
	case "specversion":
		return true, a.agree(&w.specVersion)
	case "datacontenttype":
		err := a.agree(&w.contentType.bytes)
		if err == nil && len(w.contentType.bytes) > 0 {
			w.contentType.kind = fieldString
		}
		return true, err
	case "subject":
		return true, a.agree(&w.subject)
	case "dataschema":
		return true, a.agree(&w.dataSchema)
	case "time":
		t, err := a.time()
		if err != nil {
			return true, err
		}
		w.time = timestampValue(t)
		return true, nil
	}
	return false, nil
}

func (a *attribute) agree(field *[]byte) error {
	switch a.value.kind {
	case fieldString, fieldURI, fieldURIRef:
	default:
		return attributeError(string(a.name), "", "must be a string")
	}
	if len(*field) > 0 && !bytes.Equal(*field, a.value.bytes) {
		return attributeError(string(a.name), string(a.value.bytes), "disagrees with "+shorten(string(*field))+", the value outside the attributes map")
	}
	*field = a.value.bytes
	return nil
}

func (w *wireEvent) checkRequired() error {
	if len(w.specVersion) == 0 {
		return attributeError("specversion", "", "is required: "+SpecVersion)
	}
	if string(w.specVersion) != SpecVersion {
		return attributeError("specversion", string(w.specVersion), "must be "+SpecVersion)
	}
	if len(w.id) == 0 {
		return attributeError("id", "", "is required")
	}
	if len(w.typ) == 0 {
		return attributeError("type", "", "is required")
	}
	if len(w.source) == 0 {
		return attributeError("source", "", "is required: the name of the source or agent")
	}
	if !canonicalURIRef(w.source) {
		return attributeError("source", string(w.source), "must be a plain name or a URI reference in its normal form")
	}
	// Written unchanged, such data would make the event a structured one.
	if mt := mediaType(w.contentType.bytes); strings.HasPrefix(mt, "application/cloudevents") {
		return attributeError("datacontenttype", mt, "an event cannot be the data of an event; a structured event is a single one in "+mediaTypeStructured)
	}
	if !canonicalURIRef(w.dataSchema) {
		return attributeError("dataschema", string(w.dataSchema), "must be a URI in its normal form")
	}
	return nil
}

// canonicalURIRef reports whether b stays equal when it is parsed as a URI reference and written again. All
// clients then compare the same text.
func canonicalURIRef(b []byte) bool {
	simple := true
	for _, c := range b {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			simple = false
			break
		}
	}
	if simple {
		return true
	}
	u, err := url.Parse(string(b))
	return err == nil && u.String() == string(b)
}

// time returns the time of a timestamp.
func (v *value) time() time.Time { return time.Unix(v.num, int64(v.nanos)).UTC() }

// time returns a time attribute in either form.
func (a *attribute) time() (time.Time, error) {
	switch a.value.kind {
	case fieldTimestamp:
		return a.value.time(), nil
	case fieldString:
		return parseTime(string(a.name), string(a.value.bytes))
	}
	return time.Time{}, attributeError(string(a.name), "", "must be a timestamp")
}

func parseTime(name, text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Unix() < minTimestamp {
		return time.Time{}, attributeError(name, text, "must be a time in RFC 3339 form")
	}
	return t.UTC(), nil
}
