package mqtt

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/log"

	"github.com/hawser-io/hawser/pkg/transport"
)

// pinger pings a silent broker. Unlike paho's pinger, it counts silence only while the client is ready to read.
// So a slow client does not make the broker appear dead.
type pinger struct {
	stream *stream
	// interval is the accepted silence.
	interval time.Duration
	// stalled reports whether reading is paused because the client is slow.
	stalled func() bool

	mu             sync.Mutex
	sent, received time.Time       // the last packets
	sentAt         time.Time       // when the unanswered PINGREQ was sent; zero if there is none
	waiting        []chan struct{} // callers of Ping, closed at the next answer
}

// Run implements [paho.Pinger]. The broker expects a packet within keepAlive seconds, or never if that is 0.
// The client expects a packet of the broker within p.interval.
func (p *pinger) Run(ctx context.Context, _ net.Conn, keepAlive uint16) error {
	interval := p.interval
	if wanted := time.Duration(keepAlive) * time.Second; wanted > 0 {
		interval = min(interval, wanted)
	}
	p.PacketSent()
	p.PacketReceived()
	tick := time.NewTicker(interval / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due, err := p.look(time.Now(), interval)
		if err != nil {
			p.stream.fail(err)
			return err
		}
		if !due {
			continue
		}
		if _, err := packets.NewControlPacket(packets.PINGREQ).WriteTo(p.stream); err != nil {
			return err
		}
		p.PacketSent()
	}
}

// look reports whether a ping is due, or returns why the broker counts as gone.
func (p *pinger) look(now time.Time, interval time.Duration) (due bool, err error) {
	stalled := p.stalled()
	p.mu.Lock()
	defer p.mu.Unlock()
	if stalled || p.received.After(p.sentAt) {
		p.sentAt = time.Time{}
	}
	if !p.sentAt.IsZero() && now.Sub(p.sentAt) >= interval {
		return false, fmt.Errorf("it did not answer a ping within %v", interval)
	}
	received := p.sentAt.IsZero() && now.Sub(p.received) < interval/2
	if now.Sub(p.sent) < interval/2 && (received || !p.sentAt.IsZero()) {
		return false, nil
	}
	if p.sentAt.IsZero() && !stalled {
		p.sentAt = now
	}
	return true, nil
}

// PacketSent implements [paho.Pinger].
func (p *pinger) PacketSent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = time.Now()
}

// PacketReceived implements [paho.Pinger].
func (p *pinger) PacketReceived() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.received = time.Now()
}

// PingResp implements [paho.Pinger].
func (p *pinger) PingResp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.waiting {
		close(w)
	}
	p.waiting = nil
}

// Ping pings the broker and waits for its answer.
func (c *Conn) Ping(ctx context.Context) error {
	answered := make(chan struct{})
	c.pinger.mu.Lock()
	c.pinger.waiting = append(c.pinger.waiting, answered)
	c.pinger.mu.Unlock()
	if _, err := packets.NewControlPacket(packets.PINGREQ).WriteTo(c.state.stream); err == nil {
		c.pinger.PacketSent()
	} // otherwise the connection ends, with the reason
	select {
	case <-answered:
		return nil
	case <-c.state.over:
		return c.ended()
	case <-ctx.Done():
		return transport.GaveUp(ctx, "the broker did not answer a ping")
	}
}

// SetDebug implements [paho.Pinger].
func (p *pinger) SetDebug(log.Logger) {}
