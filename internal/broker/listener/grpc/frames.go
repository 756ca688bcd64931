package grpc

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// frameHeader is the header of an HTTP/2 frame.
type frameHeader struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

const frameHeaderBytes = 9

// frames finds the frame headers in a byte stream that arrives in pieces.
type frames struct {
	preface int // bytes of the client's preface that were read
	head    [frameHeaderBytes]byte
	have    int // bytes of head that were read
	rest    int // bytes of the current frame that are missing
}

// parse calls found for each header that is complete after b.
func (f *frames) parse(b []byte, found func(frameHeader) error) error {
	if n := min(len(http2.ClientPreface)-f.preface, len(b)); n > 0 {
		f.preface += n // the library checks the preface
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
	// smallFrame is the largest frame that gets a buffer of its own size. poolSizes are the buffers of larger ones.
	// frameOverhead is what the library keeps in addition. All are in bytes.
	smallFrame    = 1 << 10
	frameOverhead = 256
)

var poolSizes = [...]int64{4 << 10, 16 << 10}

// cost returns the memory of a body's frame until its call ends, in bytes. Many small frames take much more
// memory than one large frame.
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
