// Package request is an [Event] that a client published, and the errors that it is answered
// with. Each error says what to do next, so that no party has to read its text.
package request

import (
	"time"

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
	// User and Groups are who the party is for the API of the hub.
	User   string
	Groups []string
	// Issued is when the certificate of an agent was issued; zero without one.
	Issued time.Time
	// Conn is the connection that it came over.
	Conn uint64
	// Subscription is the id of the subscription that it names, "" for none.
	Subscription string
	// Size is how many bytes arrived.
	Size int
	Env  *codec.Envelope
	// Payload is how much memory its payload takes when it is read; see
	// [codec.Envelope.PayloadBytes].
	Payload int
	// Incoming is the event as it came.
	Incoming codec.Incoming
}

// Stored returns the event as it is stored, if it has at most so many bytes. It may be
// called once.
func (e *Event) Stored(most int) ([]byte, error) {
	if e.Size > most+AddedBytes { // it is not even copied
		return nil, TooLarge(e.Size, most)
	}
	b, err := e.Incoming.Normalized()
	if err != nil {
		return nil, Undecodable(err)
	}
	if len(b) > most {
		return nil, TooLarge(len(b), most)
	}
	return b, nil
}

// Decode reads the payload of a sync event.
func Decode[T any](e *Event, parse func(codec.Event) (T, error)) (T, error) {
	var zero T
	payload, err := parse(e.Env.SyncEvent())
	if err != nil {
		return zero, Undecodable(err)
	}
	return payload, nil
}

// Encode encodes an event that the broker has made.
func Encode(e codec.Event, err error) ([]byte, error) {
	if err != nil {
		return nil, Internal(err)
	}
	event, err := codec.Marshal(e)
	if err != nil {
		return nil, Internal(err)
	}
	return event, nil
}
