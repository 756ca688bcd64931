// Package grpc carries the transport seam over gRPC: [Dialer] opens
// connections to a broker that serves io.cloudevents.v1.CloudEventService, be
// it Hawser's or a stock Open Cluster Management one.
//
// [Status] and [FromStatus] are the one table between [transport.Error] and
// gRPC statuses. The broker's listener uses the first, the client here the
// second, so that what a broker says is what a party reads: the code, and in a
// hawser.v1.ErrorDetail what to do next.
package grpc
