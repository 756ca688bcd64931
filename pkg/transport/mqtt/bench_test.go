package mqtt

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// BenchmarkPublish measures the cost of the client: concurrent callers publish works of 2 KiB to a broker that
// acknowledges at once.
func BenchmarkPublish(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			f := newFake(b, func(p *peer) {
				p.welcome(true)
				for cp := p.read(); cp != nil; cp = p.read() {
					if cp.Type == packets.PUBLISH {
						p.puback(cp.PacketID(), property.Success, "", nil)
					}
				}
			})
			c := dial(b, newDialer(b, options(f)))
			e := newEvent(1)
			e.DataEncoded = make([]byte, 2<<10)
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			done := make(chan error, callers)
			for range callers {
				go func() { // received from below
					for left.Add(-1) >= 0 {
						if _, err := c.Publish(b.Context(), e, ""); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
			for range callers {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDeliver receives works of 2 KiB from a broker that respects the receive maximum.
func BenchmarkDeliver(b *testing.B) {
	m := messageOf(b, newEvent(1))
	m.Payload = make([]byte, 2<<10)
	f := newFake(b, func(p *peer) {
		p.welcome(true)
		p.grant(p.expect(packets.SUBSCRIBE).Content.(*packets.Subscribe))
		window := make(chan struct{}, receiveMaximum)
		go func() { // ends with the connection
			for cp := p.read(); cp != nil; cp = p.read() {
				if cp.Type == packets.PUBACK {
					<-window
				}
			}
			p.Close()
		}()
		for n := range b.N {
			window <- struct{}{}
			if !p.publish(uint16(n%receiveMaximum+1), specTopic, m) {
				return
			}
		}
		p.goodbye(property.ShuttingDown, "", nil)
	})
	b.ReportAllocs()
	b.ResetTimer()
	s := subscribe(b, dial(b, newDialer(b, options(f))), agentSubscription(), acceptAll)
	if err := await(b, s.ended, "end"); transport.CodeOf(err) != transport.CodeUnavailable {
		b.Error(err)
	}
}
