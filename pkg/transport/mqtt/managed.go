package mqtt

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/pkg/transport"
)

// A managed broker is a stateless broker with limits that its CONNACK cannot express: it silently drops
// publishes above its rates. AWS IoT Core and Azure Event Grid are such brokers. They have no QoS 2, and MQTT
// makes them announce it; self-hosted brokers do so only if configured. The values below are the lower limits
// of both, with a reserve for packets that arrive together; docs/mqtt.md has the table.
const managedProperties = 8 << 10 // bytes of user properties in a PUBLISH

var (
	managedPublishes = fair.Rate{PerSecond: 75, Burst: defaultInFlight}
	managedBytes     = fair.Rate{PerSecond: 256 << 10, Burst: 64 << 10}
)

func isManaged(p *packets.Properties) bool { return p.MaximumQOS != nil && *p.MaximumQOS < 2 }

// publishLimiter delays publishes to a managed broker.
type publishLimiter struct {
	mu        sync.Mutex
	publishes fair.Bucket
	bytes     fair.Bucket
}

// wait returns when a publish of size bytes may be sent. It returns the error of ctx, or errLost when the
// connection has ended.
func (p *publishLimiter) wait(ctx context.Context, size int, over <-chan struct{}) error {
	now := time.Now()
	p.mu.Lock()
	delay := max(p.publishes.Reserve(managedPublishes, now, 1), p.bytes.Reserve(managedBytes, now, float64(size)))
	p.mu.Unlock()
	if delay == 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-over:
		return errLost
	}
}

// checkManaged returns an error if the user properties of a publish exceed the limit of managed brokers. It
// names the largest property.
func checkManaged(p *packets.Publish) error {
	total, largest := 0, packets.User{}
	for _, u := range p.Properties.User {
		total += len(u.Key) + len(u.Value)
		if len(u.Value) > len(largest.Value) {
			largest = u
		}
	}
	if total <= managedProperties {
		return nil
	}
	return &transport.Error{
		Code: transport.CodeTooLarge, Next: transport.NextStop, Attribute: strings.TrimPrefix(largest.Key, "ce-"),
		Message: fmt.Sprintf("the attributes of the event have %d bytes, of which %s has %d, and to a broker without QoS 2 at most %d are sent",
			total, largest.Key, len(largest.Value), managedProperties),
		Hint: "make labels and annotations of the work shorter",
	}
}
