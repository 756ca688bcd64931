package grpc

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-io/hawser/pkg/codec"
)

// raw is the codec of the calls. It passes events as bytes, which package codec decodes and encodes. Generated
// messages in between would cost an allocation per attribute and a copy of the data for each event.
type raw struct{}

// Name returns the name of the protobuf codec, because the wire form is the same.
func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case publishRequest:
		return mem.BufferSlice{mem.SliceBuffer(v.head()), mem.SliceBuffer(v)}, nil
	case proto.Message:
		b, err := proto.Marshal(v)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	return nil, fmt.Errorf("grpc: no way to send a %T", v)
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *received:
		v.buffer = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	case proto.Message:
		return proto.Unmarshal(data.Materialize(), v)
	}
	return fmt.Errorf("grpc: no way to receive a %T", v)
}

// publishRequest is a PublishRequest, given as the bytes of its event.
type publishRequest []byte

// fieldEvent is the number of PublishRequest's only field.
const fieldEvent = 1

func (p publishRequest) head() []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, fieldEvent, protowire.BytesType), uint64(len(p)))
}

// received is one message of a stream, in the library's memory until next decodes it.
type received struct{ buffer mem.Buffer }

// next decodes the message and frees its memory. heartbeat: there is no event.
func (r *received) next() (e codec.Event, heartbeat bool, err error) {
	defer func() {
		r.buffer.Free()
		r.buffer = nil
	}()
	b := r.buffer.ReadOnlyData()
	if codec.IsHeartbeat(b) {
		return codec.Event{}, true, nil
	}
	e, err = codec.Unmarshal(b)
	return e, false, err
}
