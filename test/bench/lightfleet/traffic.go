package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/transport"
)

const (
	// publishedWithin is the longest time until a publish is accepted, with all its retries.
	publishedWithin = 30 * time.Second
	// retryWithin is the longest wait before a retry, as of a session that has lost its broker.
	retryWithin = 500 * time.Millisecond
)

// traffic publishes new versions of the first work of all clusters, at a fixed rate until it is ended. Times begin when
// a publish is due, so they contain the wait behind a slow one.
type traffic struct {
	fleet *fleet
	rate  int // per second
	ended chan struct{}
	wg    sync.WaitGroup
	began time.Time

	publishers []publisher
}

// publisher is one goroutine of the traffic. It has clusters of its own, so the versions of one are in order.
type publisher struct {
	conn     transport.Conn // nil before the first publish and after a failed one
	took     []time.Duration
	accepted map[*agent]int32 // the last accepted version
	err      error
}

func (f *fleet) beginTraffic(ctx context.Context, rate int) error {
	dialer, err := f.dialer(pki.Source, source, sourceIP)
	if err != nil {
		return err
	}
	// A source has at most 64 connections at one broker, and several light fleets share them.
	n := min(max(rate/10, 1), publishers)
	f.traffic = &traffic{fleet: f, rate: rate, ended: make(chan struct{}), began: time.Now(), publishers: make([]publisher, n)}
	for n := range f.traffic.publishers {
		f.traffic.wg.Go(func() { f.traffic.run(ctx, dialer, n) })
	}
	return nil
}

// endTraffic ends the publishes. It returns their times, once each agent has the last accepted version.
func (f *fleet) endTraffic(ctx context.Context) (took []time.Duration, err error) {
	close(f.traffic.ended)
	f.traffic.wg.Wait()
	ctx, cancel := context.WithTimeout(ctx, deliveredWithin)
	defer cancel()
	for _, p := range f.traffic.publishers {
		took, err = append(took, p.took...), errors.Join(err, p.err)
		for a, version := range p.accepted {
			err = errors.Join(err, a.await(ctx, version))
		}
	}
	return took, err
}

// run is the publisher with number n.
func (t *traffic) run(ctx context.Context, dialer transport.Dialer, n int) {
	p := &t.publishers[n]
	p.accepted = map[*agent]int32{}
	defer p.close()
	publishers := len(t.publishers)
	every := time.Duration(publishers) * time.Second / time.Duration(t.rate)
	for i := n; ; i = (i + publishers) % len(t.fleet.agents) {
		due := t.began.Add(time.Duration(n) * every / time.Duration(publishers)).Add(time.Duration(len(p.took)) * every)
		select {
		case <-time.After(time.Until(due)):
		case <-t.ended:
			return
		}
		a, version := t.fleet.agents[i], t.fleet.version.Add(1)
		if p.err = p.publish(ctx, dialer, t.fleet, a.cluster, version); p.err != nil {
			return
		}
		p.accepted[a] = version
		p.took = append(p.took, time.Since(due))
	}
}

// publish publishes a version, and retries as a source does.
func (p *publisher) publish(ctx context.Context, dialer transport.Dialer, f *fleet, cluster string, version int32) error {
	ctx, cancel := context.WithTimeout(ctx, publishedWithin)
	defer cancel()
	for {
		err := p.try(ctx, dialer, f, cluster, version)
		if err == nil {
			return nil
		}
		p.close()
		wait := rand.N(retryWithin)
		if e, ok := errors.AsType[*transport.Error](err); ok {
			wait += e.Delay
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%s: version %d was not accepted within %s: %w", cluster, version, publishedWithin, err)
		}
	}
}

func (p *publisher) try(ctx context.Context, dialer transport.Dialer, f *fleet, cluster string, version int32) (err error) {
	if p.conn == nil {
		if p.conn, err = dialer.Dial(ctx); err != nil {
			p.conn = nil // not an interface with a nil pointer
			return err
		}
	}
	return f.publish(ctx, p.conn, cluster, 0, version)
}

func (p *publisher) close() {
	if p.conn != nil {
		_ = p.conn.Close() // no call waits for it
		p.conn = nil
	}
}

// await waits until the agent has a version of its first work.
func (a *agent) await(ctx context.Context, version int32) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for a.first.Load() < int64(version) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: version %d was accepted and not delivered; the agent has %d", a.cluster, version, a.first.Load())
		}
	}
	return nil
}
