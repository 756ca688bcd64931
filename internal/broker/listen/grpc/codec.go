package grpc

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec of the other services
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// protobuf is the codec of all messages that are not ours.
var protobuf = encoding.GetCodecV2("proto")

// rawCodec is the server's codec: events stay bytes, everything else is protobuf.
type rawCodec struct{}

var _ encoding.CodecV2 = rawCodec{}

// Name is that of the protobuf codec, for it is the same on the wire.
func (rawCodec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	parts, ok := v.(event)
	if !ok {
		return protobuf.Marshal(v)
	}
	out := make(mem.BufferSlice, len(parts))
	for i, p := range parts {
		out[i] = mem.SliceBuffer(p)
	}
	return out, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*publishRequest)
	if !ok {
		return protobuf.Unmarshal(data, v)
	}
	// The library takes its memory back; the event is kept.
	return r.unmarshal(data.Materialize())
}

// event is one message of a Subscribe stream: the concatenation of the parts.
type event [][]byte

// publishRequest is a PublishRequest whose event stays as it came; nil when the
// message has none.
type publishRequest struct{ event []byte }

// fieldEvent is the number of PublishRequest's only field.
const fieldEvent = 1

// unmarshal reads b as a protobuf library would: unknown fields are skipped, an
// event in several pieces is put together.
func (r *publishRequest) unmarshal(b []byte) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("publish request: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if num != fieldEvent || typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return fmt.Errorf("publish request: %w", protowire.ParseError(n))
			}
			b = b[n:]
			continue
		}
		piece, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return fmt.Errorf("publish request: %w", protowire.ParseError(n))
		}
		if r.event == nil {
			r.event = piece[:len(piece):len(piece)]
		} else {
			r.event = append(r.event, piece...)
		}
		b = b[n:]
	}
	return nil
}
