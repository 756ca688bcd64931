package cli

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// warningHeader has what the broker says beside a list: that answers may be out of date, or that
// it does not take what is sent to it.
const warningHeader = "hawser-warning"

// warner tells each warning of a broker once, as kubectl tells those of a kube-apiserver. It is
// for one command, which makes one call after the other.
type warner struct {
	grpc.ClientConnInterface
	out  io.Writer
	told map[string]bool
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
	if no != nil { // the stream failed before it, and err says why
		return err
	}
	if no := s.by.tell(header); no != nil {
		return no
	}
	return err
}

func (w *warner) tell(header metadata.MD) error {
	for _, line := range header.Get(warningHeader) {
		if w.told[line] {
			continue
		}
		w.told[line] = true
		if err := say(w.out, "Warning: %s\n", line); err != nil {
			return err
		}
	}
	return nil
}

// healthy fails where the broker warns of something.
func healthy(ctx context.Context, c transport.Conn) (string, error) {
	over, ok := c.(*transportgrpc.Conn)
	if !ok {
		return "", errOverGRPC
	}
	s, err := hawserv1.NewInspectionServiceClient(over.Calls()).ListDenials(ctx, &hawserv1.ListDenialsRequest{})
	if err := told(received(s, err, func(*hawserv1.ListDenialsResponse) error { return nil })); err != nil {
		return "", err
	}
	header, err := s.Header()
	if err != nil {
		return "", told(err)
	}
	if warnings := header.Get(warningHeader); len(warnings) > 0 {
		return "", errors.New(strings.Join(warnings, "; "))
	}
	return "it takes events, and its sources are connected", nil
}
