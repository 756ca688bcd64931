package grpc

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// FuzzPublishRequest checks that the event is the one that the protobuf library finds, in any context.
func FuzzPublishRequest(f *testing.F) {
	event := &cloudeventsv1.CloudEvent{Id: "e1", Source: "src1", SpecVersion: "1.0", Type: "t"}
	whole, err := proto.Marshal(&cloudeventsv1.PublishRequest{Event: event})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(append(whole, whole...))                                            // in two pieces
	f.Add(append([]byte{0x10, 0x01}, whole...))                               // behind an unknown field
	f.Add(append([]byte{0x08, 0x01}, whole...))                               // behind an unknown field of another wire type
	f.Add(append([]byte{0x13, 0x0a, 0x00}, whole...))                         // within a group that does not end
	f.Add([]byte{0x0a, 0x05, 0x01})                                           // longer than the message
	f.Add([]byte{0x0a, 0x00})                                                 // empty
	f.Add([]byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02}) // field number beyond 64 bits
	f.Fuzz(func(t *testing.T, b []byte) {
		var got publishRequest
		// The gRPC library passes a message in pieces.
		half := len(b) / 2
		err := rawCodec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b[:half]), mem.SliceBuffer(b[half:])}, &got)
		var want cloudeventsv1.PublishRequest
		if wantErr := proto.Unmarshal(b, &want); wantErr != nil {
			return // either the request is rejected here, or its event is rejected later
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

// FuzzFrames checks that frame headers are found where the library finds them, for any split of the stream.
func FuzzFrames(f *testing.F) {
	var some bytes.Buffer
	w := http2.NewFramer(&some, nil)
	for _, err := range []error{
		w.WriteSettings(), w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndHeaders: true}),
		w.WriteData(1, false, []byte("body")), w.WriteData(1, true, nil), w.WriteRSTStream(3, http2.ErrCodeCancel),
	} {
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Add(some.Bytes(), 1)
	f.Add(some.Bytes(), 9)
	f.Add(some.Bytes()[:20], 1000)
	f.Add([]byte{0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff}, 4)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		var want []frameHeader
		for rest := b; len(rest) >= frameHeaderBytes; {
			h, err := http2.ReadFrameHeader(bytes.NewReader(rest))
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, frameHeader{int(h.Length), h.Type, h.Flags, h.StreamID})
			rest = rest[min(frameHeaderBytes+int(h.Length), len(rest)):]
		}
		var got []frameHeader
		parser := frames{}
		piece = max(1, piece&0xffff)
		for rest := append([]byte(http2.ClientPreface), b...); len(rest) > 0; {
			n := min(piece, len(rest))
			if err := parser.parse(rest[:n], func(h frameHeader) error { got = append(got, h); return nil }); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, the library has %v", got, want)
		}
	})
}
