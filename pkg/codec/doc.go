// Package codec is the wire form of all Hawser events. It contains the CloudEvents in the attribute layout of
// Open Cluster Management, the grammar of their types, and the table of data types. It also has the payloads of
// resync and sync events.
//
// There are two views of an event:
//
//   - [Event] is for sources and agents. [Marshal] and [Unmarshal] convert it to and from protobuf bytes,
//     [ToMessage] and [FromMessage] to and from an MQTT 5 message.
//   - [Envelope] is for brokers: the fields to route, order and authorize an event without its data.
//     [ParseEnvelope] reads it from the protobuf bytes.
//
// The package is pure: no clock, socket, lock or logger. Each error names its attribute (see [AttributeError]).
package codec
