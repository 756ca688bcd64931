// Package wire shows CloudEvents as JSON that a test can read and write. It also lets a test observe the events
// that pass the codecs of the OCM clients.
package wire

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic/types"
)

// Event is a CloudEvent. Extensions hold strings and integers. Times are in RFC 3339, and become timestamps
// again if the protocol requires one.
type Event struct {
	ID          string         `json:"id,omitempty"`
	Source      string         `json:"source,omitempty"`
	Type        string         `json:"type"`
	Extensions  map[string]any `json:"extensions,omitempty"`
	ContentType string         `json:"contentType,omitempty"`
	Data        string         `json:"data,omitempty"`
}

// Show returns e in readable form.
func Show(e *cloudevents.Event) *Event {
	return &Event{
		ID: e.ID(), Source: e.Source(), Type: e.Type(), Extensions: e.Extensions(),
		ContentType: e.DataContentType(), Data: string(e.Data()),
	}
}

// CloudEvent is the reverse of [Show]. It generates a missing id.
func (e *Event) CloudEvent() (*cloudevents.Event, error) {
	out := cloudevents.NewEvent()
	out.SetID(e.ID)
	if e.ID == "" {
		out.SetID(uuid.NewString())
	}
	out.SetSource(e.Source)
	out.SetType(e.Type)
	out.SetTime(time.Now())
	for name, v := range e.Extensions {
		switch v := v.(type) {
		case string:
			if name != types.ExtensionDeletionTimestamp {
				out.SetExtension(name, v)
				continue
			}
			at, err := time.Parse(time.RFC3339Nano, v)
			if err != nil {
				return nil, fmt.Errorf("extension %s: %w", name, err)
			}
			out.SetExtension(name, at)
		case float64: // what JSON has for integers
			out.SetExtension(name, int64(v))
		default:
			return nil, fmt.Errorf("extension %s: neither a string nor a number", name)
		}
	}
	if e.ContentType != "" {
		if err := out.SetData(e.ContentType, []byte(e.Data)); err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
	}
	return &out, nil
}

// Numbered returns a copy of e in which the number n replaces every "%d" of id, extensions and data.
func (e *Event) Numbered(n int) *Event {
	number := func(s string) string { return strings.ReplaceAll(s, "%d", strconv.Itoa(n)) }
	out := *e
	out.ID, out.Data, out.Extensions = number(e.ID), number(e.Data), map[string]any{}
	for name, v := range e.Extensions {
		if s, ok := v.(string); ok {
			v = number(s)
		}
		out.Extensions[name] = v
	}
	return &out
}

// Codec is a codec of the OCM clients that reports the events that pass it.
type Codec[T generic.ResourceObject] struct {
	generic.Codec[T]
	// Sent receives every encoded event before it is sent. Received receives every event for this client, with the
	// error if it cannot be decoded.
	Sent     func(*Event)
	Received func(*Event, error)
}

// Encode implements [generic.Codec].
func (c Codec[T]) Encode(source string, eventType types.CloudEventsType, obj T) (*cloudevents.Event, error) {
	e, err := c.Codec.Encode(source, eventType, obj)
	if err == nil {
		c.Sent(Show(e))
	}
	return e, err
}

// Decode implements [generic.Codec].
func (c Codec[T]) Decode(e *cloudevents.Event) (T, error) {
	obj, err := c.Codec.Decode(e)
	c.Received(Show(e), err)
	return obj, err
}
