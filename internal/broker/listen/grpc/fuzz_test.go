package grpc

import (
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// FuzzPublishRequest: the event is found where the protobuf library finds it,
// whatever surrounds it.
func FuzzPublishRequest(f *testing.F) {
	event := &cloudeventsv1.CloudEvent{Id: "e1", Source: "src1", SpecVersion: "1.0", Type: "t"}
	whole, err := proto.Marshal(&cloudeventsv1.PublishRequest{Event: event})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(append(whole, whole...))                                            // in two pieces
	f.Add(append([]byte{0x10, 0x01}, whole...))                               // behind an unknown field
	f.Add(append([]byte{0x08, 0x01}, whole...))                               // and behind one of another wire type
	f.Add(append([]byte{0x13, 0x0a, 0x00}, whole...))                         // within a group that does not end
	f.Add([]byte{0x0a, 0x05, 0x01})                                           // longer than the message
	f.Add([]byte{0x0a, 0x00})                                                 // empty
	f.Add([]byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02}) // field number beyond 64 bits
	f.Fuzz(func(t *testing.T, b []byte) {
		var got publishRequest
		// As the library of gRPC hands it over: in pieces.
		half := len(b) / 2
		err := rawCodec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b[:half]), mem.SliceBuffer(b[half:])}, &got)
		var want cloudeventsv1.PublishRequest
		if wantErr := proto.Unmarshal(b, &want); wantErr != nil {
			return // an event that is refused later, or a request that is refused here
		}
		if err != nil {
			t.Fatalf("the library takes it: %v", err)
		}
		if (got.event != nil) != (want.GetEvent() != nil) {
			t.Fatalf("event %x, the library has %v", got.event, want.GetEvent())
		}
		var e cloudeventsv1.CloudEvent
		if err := proto.Unmarshal(got.event, &e); err != nil || want.GetEvent() != nil && !proto.Equal(&e, want.GetEvent()) {
			t.Fatalf("event %v, %v; the library has %v", &e, err, want.GetEvent())
		}
	})
}
