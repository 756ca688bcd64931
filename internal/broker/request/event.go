// Package request has the [Event] that a client published, and the errors in the answers. Each error has the
// next step in a field, so that no client has to parse its text.
package request

import (
	"time"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// AddedBytes is an upper bound for the bytes that the broker or a front adds to an event.
const AddedBytes = 4 << 10

// BrokerSource is the source attribute of events that the broker makes.
const BrokerSource = "hawser-broker"

// Event is an event that a client published and is authorized to publish.
type Event struct {
	From identity.Identity
	// User and Groups are the client's names in the API of the hub.
	User   string
	Groups []string
	// Issued is the issue time of the certificate of an agent, zero without one.
	Issued time.Time
	// Conn is the id of the client's connection.
	Conn uint64
	// Subscription is the id of the subscription that the event names, "" for none.
	Subscription string
	// Size is the number of received bytes.
	Size int
	Env  *codec.Envelope
	// Payload is the memory that the decoded payload needs, in bytes; see [codec.Envelope.PayloadBytes].
	Payload int
	// Incoming is the event as received.
	Incoming codec.Incoming
}

// Stored returns the event in its stored form. It returns an error if that has more than most bytes. It may be
// called once.
func (e *Event) Stored(most int) ([]byte, error) {
	if e.Size > most+AddedBytes { // reject it without a copy
		return nil, TooLarge(e.Size, most)
	}
	b, err := e.Incoming.Normalized()
	if err != nil {
		return nil, transport.Undecodable(err)
	}
	if len(b) > most {
		return nil, TooLarge(len(b), most)
	}
	return b, nil
}

// Decode decodes the payload of a sync event.
func Decode[T any](e *Event, parse func(codec.Event) (T, error)) (T, error) {
	var zero T
	payload, err := parse(e.Env.SyncEvent())
	if err != nil {
		return zero, transport.Undecodable(err)
	}
	return payload, nil
}

// Encode encodes an event that the broker made.
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
