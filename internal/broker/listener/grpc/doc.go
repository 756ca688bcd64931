// Package grpc serves gRPC at the broker's port: io.cloudevents.v1.CloudEventService for sources and agents,
// health and reflection. It passes every call to a [transport.Server].
//
// Events stay encoded: no event is ever decoded into a protobuf struct. The identity of the peer is read once
// per connection, from its verified client certificate.
package grpc
