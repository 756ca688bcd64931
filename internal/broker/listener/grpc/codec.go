package grpc

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec of the other services
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// protobuf is the codec of all other messages.
var protobuf = encoding.GetCodecV2("proto")

// rawCodec is the server's codec: events stay bytes, everything else is protobuf.
type rawCodec struct{}

var _ encoding.CodecV2 = rawCodec{}

// Name is the name of the protobuf codec, because the bytes on the wire are the same.
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
	// A copy, because the library reuses its buffers, which may be several times as large.
	r.message = messages.Get(data.Len())
	data.CopyTo(*r.message)
	return r.unmarshal(*r.message)
}

// messages is the pool for publish requests while they are served. Works are a few KiB. Without a pool their
// requests were a seventh of all allocated bytes.
var messages = mem.NewTieredBufferPool(1<<10, 2<<10, 4<<10, 8<<10, 16<<10, 32<<10, 64<<10, 128<<10, 256<<10, 512<<10, 1<<20)

// event is one message of a Subscribe stream: the concatenation of the parts.
type event [][]byte

// publishRequest is a PublishRequest whose event stays encoded. event is nil if the message has none, and valid
// until free is called.
type publishRequest struct {
	event   []byte
	message *[]byte // nil until the message is read
}

// free returns the memory of the request to the pool.
func (r *publishRequest) free() {
	if r.message != nil {
		messages.Put(r.message)
	}
}

// fieldEvent is the number of PublishRequest's only field.
const fieldEvent = 1

// unmarshal reads b as a protobuf library does: it skips unknown fields, and joins an event in several pieces.
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
