// Package codec is the wire form of everything Hawser sends: CloudEvents in
// the attribute layout of Open Cluster Management, the grammar of their types,
// the table of data types, and the payloads of resync and sync events.
//
// There are two views of an event. An [Event] is what sources and agents work
// with; [Marshal] and [Unmarshal] turn it into its protobuf bytes and back, and
// [ToMessage] and [FromMessage] into what MQTT 5 carries. An
// [Envelope] is what a broker needs to route, order and authorize an event
// without looking into its data; [ParseEnvelope] reads it straight from the
// protobuf bytes.
//
// The package is pure: no clock, socket, lock or logger. Every error names the
// attribute it is about (see [AttributeError]).
package codec
