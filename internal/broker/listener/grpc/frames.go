package grpc

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// frameHeader is what every HTTP/2 frame begins with.
type frameHeader struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

const frameHeaderBytes = 9

// frames finds the headers of frames in what a peer sends, in whatever pieces it
// is read.
type frames struct {
	preface int // bytes of the client's preface that were read
	head    [frameHeaderBytes]byte
	have    int // bytes of head
	rest    int // bytes of the present frame that are still to come
}

// parse calls found for each header that is complete with b.
func (f *frames) parse(b []byte, found func(frameHeader) error) error {
	if n := min(len(http2.ClientPreface)-f.preface, len(b)); n > 0 {
		f.preface += n // what it says is looked at by the library
		b = b[n:]
	}
	for len(b) > 0 {
		if n := min(f.rest, len(b)); n > 0 {
			f.rest -= n
			b = b[n:]
			continue
		}
		n := copy(f.head[f.have:], b)
		f.have += n
		b = b[n:]
		if f.have < frameHeaderBytes {
			return nil
		}
		h := frameHeader{
			length: int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2]),
			kind:   http2.FrameType(f.head[3]),
			flags:  http2.Flags(f.head[4]),
			stream: binary.BigEndian.Uint32(f.head[5:]) & (1<<31 - 1),
		}
		f.have, f.rest = 0, h.length
		if err := found(h); err != nil {
			return err
		}
	}
	return nil
}

const (
	// smallFrame is the largest that gets memory of its own size, poolSizes are what
	// larger ones get, frameOverhead is what the library keeps beside the bytes.
	smallFrame    = 1 << 10
	frameOverhead = 256
)

var poolSizes = [...]int64{4 << 10, 16 << 10}

// cost is how much memory a frame of a body takes until its call is over. Bytes
// that come one by one cost much more than those that come together.
func cost(length int) int64 {
	n := int64(length)
	if n > smallFrame {
		for _, size := range poolSizes {
			if n <= size {
				n = size
				break
			}
		}
	}
	return n + frameOverhead
}
