// Package grpc is the broker's front for gRPC: it serves
// io.cloudevents.v1.CloudEventService to sources and agents on one port, with
// the health and reflection services beside it, and hands every call to a
// [transport.Server].
//
// Events pass as bytes: neither the message that a publisher sent nor the one
// that a subscriber gets is ever built as a Go value. Who the peer is, is read
// once per connection, from its verified client certificate.
package grpc
