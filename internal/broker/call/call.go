// Package call is what the rooms of the broker have in common: an [Event] that a
// party published, and the errors that a caller is told. Each error says what to do
// next, so that no party has to read its text.
package call

import (
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
)

// AddedBytes is more than a broker or a front ever adds to an event.
const AddedBytes = 4 << 10

// BrokerSource is the source attribute of events that the broker itself makes.
const BrokerSource = "hawser-broker"

// Event is an event that a party published, and may publish.
type Event struct {
	From identity.Identity
	// Conn is the connection that it came over.
	Conn uint64
	// Subscription is the id of the subscription that it names, "" for none.
	Subscription string
	// Size is how many bytes arrived.
	Size int
	Env  *codec.Envelope
	// Bytes is the event as it is stored.
	Bytes []byte
}

// Decode reads the payload of a sync event.
func Decode[T any](e *Event, parse func(codec.Event) (T, error)) (T, error) {
	var zero T
	event, err := codec.Unmarshal(e.Bytes)
	if err != nil {
		return zero, Undecodable(err)
	}
	payload, err := parse(event)
	if err != nil {
		return zero, Undecodable(err)
	}
	return payload, nil
}
