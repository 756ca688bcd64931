package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// fdatasync appends 4 KiB and syncs, 500 times. It returns the median: the duration of one durable write on this
// disk.
func fdatasync(dir string) (p50 time.Duration, err error) {
	f, err := os.CreateTemp(dir, "fdatasync-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, payloadBytes)
	var took []time.Duration
	for range 500 {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	return percentile(took, 50), nil
}

// echo is a gRPC service that accepts 4 KiB and does nothing with it.
type echo struct {
	cloudeventsv1.UnimplementedCloudEventServiceServer
}

func (echo) Publish(context.Context, *cloudeventsv1.PublishRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// serveEcho is the main function of the child process with the echo service, which is the limit for the broker.
func serveEcho(ctx context.Context, dir, addr string) error {
	d := pki.Dir(dir)
	creds, err := identity.Files{CA: d.CACert(), Cert: d.Cert(pki.Broker, "broker"), Key: d.Key(pki.Broker, "broker")}.
		Server(func(err error) { fmt.Fprintln(os.Stderr, err) })
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.Creds(creds))
	cloudeventsv1.RegisterCloudEventServiceServer(s, echo{})
	context.AfterFunc(ctx, s.Stop)
	return s.Serve(l)
}

// publishRate lets n callers publish without a pause for a while. It returns calls per second and the duration of
// each call.
func publishRate(ctx context.Context, cs []cloudeventsv1.CloudEventServiceClient, n int, next func(worker, i int) *cloudeventsv1.PublishRequest) (rate float64, all []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*cellTime)
	defer cancel()
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	took := make([][]time.Duration, n)
	began := time.Now()
	for w := range n {
		wg.Go(func() {
			c := cs[w%len(cs)]
			for i := 0; time.Since(began) < cellTime; i++ {
				start := time.Now()
				if _, err := c.Publish(ctx, next(w, i)); err != nil {
					failed.Store(&err)
					return
				}
				took[w] = append(took[w], time.Since(start))
				done.Add(1)
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	if e := failed.Load(); e != nil {
		return 0, nil, *e
	}
	for _, t := range took {
		all = append(all, t...)
	}
	return float64(done.Load()) / elapsed.Seconds(), all, nil
}

func echoLog(dir string) string { return filepath.Join(dir, "echo.log") }
