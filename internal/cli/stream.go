package cli

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/taskgroup"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// paged calls f with each message of a list, page by page; list requests the page behind a token. timeout
// bounds each page, including the delay that an overloaded broker requests.
func paged[T any](ctx context.Context, timeout time.Duration, list func(ctx context.Context, token string) (grpc.ServerStreamingClient[T], error), f func(*T) error) error {
	for token := ""; ; {
		next := ""
		err := bounded(ctx, timeout, func(ctx context.Context) error {
			s, err := list(ctx, token)
			return received(s, err, func(m *T) error {
				if l, ok := any(m).(interface{ GetNextPageToken() string }); ok && l.GetNextPageToken() != "" {
					next = l.GetNextPageToken()
					return nil
				}
				return f(m)
			})
		})
		if err != nil || next == "" {
			return err
		}
		token = next
	}
}

// bounded calls f with a timeout, and again if the broker is overloaded: it reports that before it sends
// anything.
func bounded(ctx context.Context, timeout time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil || status.Code(err) != codes.ResourceExhausted {
			return err
		}
		if !taskgroup.Sleep(ctx, max(transportgrpc.FromStatus(err).Delay, 100*time.Millisecond)) {
			return err
		}
	}
}

// received calls f with each message of a stream.
func received[T any](s grpc.ServerStreamingClient[T], err error, f func(*T) error) error {
	if err != nil {
		return err
	}
	for {
		m, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := f(m); err != nil {
			return err
		}
	}
}
