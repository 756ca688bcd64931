package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Subscriber configures a check that subscribes as a client does.
type Subscriber struct {
	transport.Filter
	// Hello returns the client's part of a subscribe.
	Hello func(context.Context) transport.Hello
	// Denied is the advice if the broker denies the subscription.
	Denied string
}

// Calls returns the checks of the client. The first is authorization: a subscription that ends as soon as the
// broker accepts it. The second repeats it for the round trip. Received events are ignored.
func (s Subscriber) Calls() []Call {
	client := "cluster " + s.Cluster
	if s.Source != "" {
		client = "source " + s.Source
	}
	var hello transport.Hello
	return []Call{{
		Name: "authorization",
		Make: func(ctx context.Context, c transport.Conn) (string, error) {
			hello = s.Hello(ctx)
			err := s.subscribe(ctx, c, hello)
			if err == nil {
				return "the broker lets us receive what is for " + client, nil
			}
			p := explained("", err)
			if transport.CodeOf(err) == transport.CodeDenied && p.Advice == "" {
				p.Advice = s.Denied
			}
			return "", p
		},
	}, {
		Name: "round trip",
		Make: func(ctx context.Context, c transport.Conn) (string, error) {
			began := time.Now()
			if err := s.subscribe(ctx, c, hello); err != nil {
				return "", err
			}
			return DescribeLatency(began), nil
		},
	}}
}

// Step returns a check that needs no connection.
func Step(name string, look func(context.Context) (found string, err error)) Call {
	return Call{Name: name, Make: func(ctx context.Context, _ transport.Conn) (string, error) { return look(ctx) }, once: true}
}

// DescribeLatency returns a text with the time that the broker needed to answer.
func DescribeLatency(began time.Time) string {
	return fmt.Sprintf("the broker answered in %s", time.Since(began).Round(100*time.Microsecond))
}

func (s Subscriber) subscribe(ctx context.Context, c transport.Conn, hello transport.Hello) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	accepted := false
	err := c.Subscribe(ctx, transport.Subscription{Filter: s.Filter, Hello: hello},
		func(transport.Accepted) { accepted = true; cancel() },
		func(ctx context.Context, _ codec.Event) error { <-ctx.Done(); return ctx.Err() })
	if accepted {
		return nil
	}
	return err
}
