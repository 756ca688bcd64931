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
