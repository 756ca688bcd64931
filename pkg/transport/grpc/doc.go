// Package grpc implements the transport interface over gRPC. [Dialer] opens connections to a broker that serves
// io.cloudevents.v1.CloudEventService, a Hawser broker or an OCM broker.
//
// [Status] and [FromStatus] are the one table between [transport.Error] and gRPC statuses. The broker's
// listener uses the first, the client here the second. So a client reads exactly the broker's error: the code,
// and the next step in a hawser.v1.ErrorDetail.
package grpc
