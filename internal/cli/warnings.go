package cli

import (
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// warner prints each warning of a broker once, as kubectl does with those of a kube-apiserver. It is for one
// command, which makes its calls one after the other.
type warner struct {
	grpc.ClientConnInterface
	out     io.Writer
	printed map[string]bool
}

// NewStream implements [grpc.ClientConnInterface].
func (w *warner) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := w.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &warnedStream{ClientStream: s, by: w}, nil
}

type warnedStream struct {
	grpc.ClientStream
	by *warner
}

// RecvMsg implements [grpc.ClientStream].
func (s *warnedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	header, no := s.Header()
	if no != nil { // the stream had failed already, and err is the reason
		return err
	}
	if no := s.by.write(header); no != nil {
		return no
	}
	return err
}

func (w *warner) write(header metadata.MD) error {
	for _, line := range header.Get(transportgrpc.WarningHeader) {
		if w.printed[line] {
			continue
		}
		w.printed[line] = true
		if err := printf(w.out, "Warning: %s\n", line); err != nil {
			return err
		}
	}
	return nil
}
