package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-io/hawser/internal/pki"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// heartbeat is the type of the only event on a stream that is no delivery.
const heartbeat = "io.open-cluster-management.cloudevents.heartbeat"

// session is one agent's subscription to its own cluster.
type session struct {
	cluster string
	conn    *grpc.ClientConn
	// arrived gets the time of each delivery. Its capacity is one, because the bench waits for a delivery before
	// it publishes the next.
	arrived chan time.Time
}

// client connects with a newly issued certificate.
func client(ca *pki.Authority, addr string, role pki.Role, name string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	pair, err := ca.Issue(pki.Request{Role: role, Name: name, Valid: pki.Starting(time.Now(), time.Hour)})
	if err != nil {
		return nil, err
	}
	cert, err := pair.TLS()
	if err != nil {
		return nil, err
	}
	creds := credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Pool(), Certificates: []tls.Certificate{cert}})
	return grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(creds))...)
}

// openSessions subscribes n agents, a few at a time. It returns when every agent would receive the next event.
func openSessions(ctx context.Context, ca *pki.Authority, addr string, n int) ([]*session, error) {
	const atOnce = 16
	sessions := make([]*session, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range atOnce {
		wg.Go(func() {
			for i := int(next.Add(1) - 1); i < n; i = int(next.Add(1) - 1) {
				sessions[i], errs[i] = openSession(ctx, ca, addr, clusterName(i))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		closeSessions(sessions)
		return nil, err
	}
	return sessions, nil
}

func clusterName(i int) string { return fmt.Sprintf("bench-%d", i) }

func openSession(ctx context.Context, ca *pki.Authority, addr, cluster string) (*session, error) {
	// Agents of Hawser use these windows too, and do not measure the bandwidth.
	conn, err := client(ca, addr, pki.Agent, cluster, grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(1<<20))
	if err != nil {
		return nil, err
	}
	s := &session{cluster: cluster, conn: conn, arrived: make(chan time.Time, 1)}
	c := cloudeventsv1.NewCloudEventServiceClient(conn)
	stream, err := c.Subscribe(ctx, &cloudeventsv1.SubscriptionRequest{ClusterName: cluster, DataType: bundles})
	if err == nil {
		_, err = stream.Header()
	}
	if err == nil {
		_, err = c.Publish(ctx, resyncRequest(cluster))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("session of %s: %w", cluster, err), conn.Close())
	}
	go s.read(stream) // ends when the connection is closed
	return s, nil
}

func (s *session) read(stream grpc.ServerStreamingClient[cloudeventsv1.CloudEvent]) {
	for {
		e, err := stream.Recv()
		if err != nil {
			return
		}
		if e.Type != heartbeat && e.Type != bundles+".status.resync_request" {
			select {
			case s.arrived <- time.Now():
			default: // the delivery of an earlier run
			}
		}
	}
}

func closeSessions(sessions []*session) {
	for _, s := range sessions {
		if s != nil {
			_ = s.conn.Close() // fails only if it is closed already
		}
	}
}

// drain drops deliveries without a waiter.
func (s *session) drain() {
	select {
	case <-s.arrived:
	default:
	}
}

// deliver publishes a new version of the session's work and waits for its delivery. It returns the time until
// then.
func (s *session) deliver(ctx context.Context, c cloudeventsv1.CloudEventServiceClient, version int32) (time.Duration, error) {
	s.drain()
	began := time.Now()
	if _, err := c.Publish(ctx, spec(s.cluster, "work", version)); err != nil {
		return 0, err
	}
	select {
	case at := <-s.arrived:
		return at.Sub(began), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s: version %d was not delivered: %w", s.cluster, version, ctx.Err())
	}
}

// warmUp delivers once to every session. So the first costs of a session, such as the resync, are not measured.
func warmUp(ctx context.Context, cs []cloudeventsv1.CloudEventServiceClient, sessions []*session, version *atomic.Int32) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	const workers = 16
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(sessions) && errs[w] == nil; i += workers {
				_, errs[w] = sessions[i].deliver(ctx, cs[w%len(cs)], version.Add(1))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// deliveryRate keeps 64 deliveries in flight, each to another session. It returns the deliveries per second.
func deliveryRate(ctx context.Context, cs []cloudeventsv1.CloudEventServiceClient, sessions []*session, version *atomic.Int32) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*cellTime)
	defer cancel()
	const workers = 64
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for w := range workers {
		wg.Go(func() {
			for i := w; time.Since(began) < cellTime; i += workers {
				// Each worker has sessions of its own.
				if i >= len(sessions) {
					i = w
				}
				if _, err := sessions[i].deliver(ctx, cs[w%len(cs)], version.Add(1)); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		return 0, *e
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}
