//go:build linux

package attack

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/hawser-io/hawser/pkg/codec"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// TestLists: a list of empty entries is rejected before it takes more memory than its bytes.
func TestLists(t *testing.T) { attack(t, "lists") }

// TestStatuses: the broker does not parse a status of a work that does not exist.
func TestStatuses(t *testing.T) { attack(t, "statuses") }

// TestIDs: the ids that an agent lists fill neither the log nor memory.
func TestIDs(t *testing.T) { attack(t, "ids") }

const (
	publish   = "/io.cloudevents.v1.CloudEventService/Publish"
	subscribe = "/io.cloudevents.v1.CloudEventService/Subscribe"
)

// request returns the complete body of a message.
func request(m proto.Message) ([]byte, error) {
	b, err := proto.Marshal(m)
	return append(message(len(b)), b...), err
}

// eventOf returns the body of a publish of the attacker's agent.
func eventOf(sub codec.Subresource, action codec.Action, extensions map[string]any, data string) ([]byte, error) {
	e, err := codec.Builder{
		ID: "e", Time: time.Now(), Source: evil, Cluster: evil,
		Type:       codec.EventType{DataType: codec.ManifestBundles, Subresource: sub, Action: action}.String(),
		Extensions: extensions, ContentType: codec.ContentTypeJSON, Data: []byte(data),
	}.Event()
	if err != nil {
		return nil, err
	}
	return publishOf(e)
}

// publishOf returns the body of a publish.
func publishOf(e codec.Event) ([]byte, error) {
	p, err := codec.ToProto(e)
	if err != nil {
		return nil, err
	}
	return request(&cloudeventsv1.PublishRequest{Event: p})
}

// whole makes a call with a complete body. If answers is true, it waits for the broker's answer.
func (w *wire) whole(method string, body []byte, answers bool) error {
	id, err := w.call(method)
	for len(body) > 0 && err == nil {
		n := min(len(body), 16<<10)
		err = w.send(id, body[:n])
		body = body[n:]
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	err = w.framer.WriteData(id, true, nil)
	w.mu.Unlock()
	if err != nil || !answers || method != publish {
		return err
	}
	answered, stop := context.WithCancel(w.ended)
	defer stop()
	return every(answered, 5*time.Millisecond, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, running := w.streams[id]; !running {
			stop()
		}
		return nil
	})
}

// subscribed opens a connection on which the agent is subscribed.
func (t target) subscribed(ctx context.Context) (*wire, error) {
	w, err := t.open(ctx, true)
	if err != nil {
		return nil, err
	}
	w.grow()
	body, err := request(&cloudeventsv1.SubscriptionRequest{ClusterName: evil, DataType: codec.ManifestBundles.String()})
	if err == nil {
		err = w.whole(subscribe, body, t.real)
	}
	return w, err
}

// lists sends lists of empty entries, of 16 MiB each, on four connections.
func lists(ctx context.Context, t target) error {
	const size = 16<<20 - 1<<10
	body, err := eventOf(codec.Spec, codec.ResyncRequest, nil, `{"resourceVersions":[`+strings.Repeat("{},", size/3)+`{}]}`)
	if err != nil {
		return err
	}
	return sideBySide(ctx, 4, again, func(ctx context.Context) error {
		w, err := t.subscribed(ctx)
		if err != nil {
			return err
		}
		defer w.Close()
		return every(ctx, time.Second, func() error {
			err := w.whole(publish, body, t.real)
			if err == nil {
				t.load.add("lists of 16 MiB", 1)
			}
			return err
		})
	})
}

// statuses reports statuses with empty conditions for works that do not exist, 200 at a time.
func statuses(ctx context.Context, t target) error {
	const size = 220 << 10
	data := `{"conditions":[` + strings.Repeat("{},", size/3) + `{}]}`
	var n atomic.Int64
	return sideBySide(ctx, 8, again, func(ctx context.Context) error {
		w, err := t.open(ctx, true)
		if err != nil {
			return err
		}
		defer w.Close()
		var wg sync.WaitGroup
		defer wg.Wait()
		for range 25 {
			wg.Go(func() {
				_ = every(ctx, time.Second, func() error { // until the connection ends
					body, err := eventOf(codec.Status, codec.UpdateRequest, map[string]any{
						codec.ExtResourceID: fmt.Sprint("none-", n.Add(1)), codec.ExtResourceVersion: 1,
						codec.ExtSequenceID: (&codec.Sequencer{}).Next(time.Now().UnixMilli()),
					}, data)
					if err == nil {
						err = w.whole(publish, body, t.real)
					}
					if err == nil {
						t.load.add("statuses of 220 KiB", 1)
					}
					return err
				})
			})
		}
		return nil
	})
}

// ids lists orphan works: nine with ids of 1.6 MB, and ten others with valid ids, as fast as the broker
// answers. Both lead to a line in its log.
func ids(ctx context.Context, t target) error {
	zeros := strings.Repeat("0", 1_600_000)
	list := func(n, size int, salt int64) ([]byte, error) {
		held := make([]codec.ResourceVersion, n)
		for i := range held {
			held[i] = codec.ResourceVersion{ResourceID: fmt.Sprintf("%s%d", zeros[:size-20], salt+int64(i)), ResourceVersion: 1}
		}
		data, err := codec.EncodeVersions(held)
		if err != nil {
			return nil, err
		}
		return eventOf(codec.Spec, codec.ResyncRequest, nil, string(data))
	}
	long, err := list(9, 1_600_000, 0)
	if err != nil {
		return err
	}
	return sideBySide(ctx, 2, again, func(ctx context.Context) error {
		w, err := t.subscribed(ctx)
		if err != nil {
			return err
		}
		defer w.Close()
		n := int64(0)
		return every(ctx, 10*time.Millisecond, func() error {
			n++
			body, what := long, "lists with ids of 1.6 MB"
			if n%25 != 0 {
				if body, err = list(10, 1000, n); err != nil {
					return err
				}
				what = "lists with ids of 1000 bytes"
			}
			err := w.whole(publish, body, t.real)
			if err == nil {
				t.load.add(what, 1)
			}
			return err
		})
	})
}
