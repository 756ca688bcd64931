package codec

import (
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// Builder is the common part of all events. Every event of this protocol
// carries clustername and originalsource, even when they are empty.
type Builder struct {
	ID             string    // unique per source; required
	Time           time.Time // required
	Source         string    // source id or agent id; required
	Type           string    // required
	Cluster        string
	OriginalSource string
	Extensions     map[string]any // further extension attributes
	ContentType    string         // of Data; left out when there is none
	Data           []byte
}

// Event returns the event, valid to be marshalled, or an *AttributeError.
func (b Builder) Event() (Event, error) {
	e := event.New(SpecVersion)
	e.SetID(b.ID)
	e.SetTime(b.Time)
	e.SetSource(b.Source)
	e.SetType(b.Type)
	e.SetExtension(ExtClusterName, b.Cluster)
	e.SetExtension(ExtOriginalSource, b.OriginalSource)
	for name, v := range b.Extensions {
		e.SetExtension(name, v)
	}
	if len(b.Data) > 0 {
		e.SetDataContentType(b.ContentType)
		e.DataEncoded = b.Data
		e.DataBase64 = !isJSON(b.ContentType)
	}
	if b.Time.IsZero() {
		return Event{}, attributeError("time", "", "is required")
	}
	if _, err := fromEvent(e); err != nil {
		return Event{}, err
	}
	return e, nil
}

// Marshal returns the bytes of Marshal for the event. It builds no SDK event.
func (b Builder) Marshal() ([]byte, error) {
	w, err := b.wire()
	if err != nil {
		return nil, err
	}
	return w.append(make([]byte, 0, w.size())), nil
}

func (b Builder) wire() (*wireEvent, error) {
	if b.Time.IsZero() {
		return nil, attributeError("time", "", "is required")
	}
	w := &wireEvent{
		id: []byte(b.ID), source: []byte(b.Source), specVersion: []byte(SpecVersion), typ: []byte(b.Type),
		hasAttributes: true, time: timestampValue(b.Time),
	}
	w.attributes = append(w.inline[:0],
		attribute{name: []byte(ExtClusterName), value: stringValue([]byte(b.Cluster))},
		attribute{name: []byte(ExtOriginalSource), value: stringValue([]byte(b.OriginalSource))})
	for name, v := range b.Extensions {
		v, err := extensionValue(v)
		if err != nil {
			return nil, attributeError(name, "", err.Error())
		}
		w.attributes = append(w.attributes, attribute{name: []byte(name), value: v})
	}
	if len(b.Data) > 0 {
		w.contentType, w.data = stringValue([]byte(b.ContentType)), b.Data
	}
	return w.checked()
}
