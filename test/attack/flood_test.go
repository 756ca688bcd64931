//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestStatusFlood: a cluster reports statuses of 200 KiB without end. It does not delay the statuses of other
// clusters to the source.
func TestStatusFlood(t *testing.T) { attack(t, "statusflood") }

// reportEvery is the interval at which the well-behaved agents report statuses.
const reportEvery = 25 * time.Millisecond

// flood makes calls with complete bodies in flooders goroutines, each with a pause between calls, for any
// answers.
func (t target) flood(ctx context.Context, role pki.Role, name, what string, flooders int, pause time.Duration, body func(n int64) ([]byte, error)) error {
	var n atomic.Int64
	return sideBySide(ctx, 4, again, func(ctx context.Context) error {
		w, err := t.openWith(ctx, t.configOf(role, name))
		if err != nil {
			return err
		}
		defer w.Close()
		var wg sync.WaitGroup
		defer wg.Wait()
		for range flooders / 4 {
			wg.Go(func() {
				_ = every(w.ended, pause, func() error { // until the connection ends
					b, err := body(n.Add(1))
					began := time.Now()
					if err == nil {
						err = w.whole(publish, b, t.real)
					}
					t.load.add(what, 1)
					if err == nil && t.real {
						err = emit(outputLine{At: began, What: "flooded", Took: time.Since(began)})
					}
					if errors.Is(err, errAnswered) { // rejected before the end of its body
						err = nil
					}
					return err
				})
			})
		}
		return nil
	})
}

// statusFlood reports statuses of 200 KiB for 16 existing works.
func statusFlood(ctx context.Context, t target) error {
	message := strings.Repeat("x", 200<<10)
	var mu sync.Mutex
	var sequence codec.Sequencer
	return t.flood(ctx, pki.Agent, evil, "statuses of 200 KiB", 64, 200*time.Millisecond, func(n int64) ([]byte, error) {
		mu.Lock()
		next := sequence.Next(time.Now().UnixMilli())
		mu.Unlock()
		return eventOf(codec.Status, codec.UpdateRequest, map[string]any{
			codec.ExtResourceID: evilWork(int(n) % worksEach), codec.ExtResourceVersion: 1,
			codec.ExtSequenceID: next, codec.ExtOriginalSource: source,
		}, fmt.Sprintf(`{"conditions":[{"type":"Applied","status":"True","message":%q}]}`, message))
	})
}

// specFlood publishes works of 64 KiB as the source. So many are in flight that they fill several commits.
func specFlood(ctx context.Context, t target) error {
	data := fmt.Sprintf(`{"manifests":[{"data":%q}]}`, strings.Repeat("x", 64<<10))
	return t.flood(ctx, pki.Source, source, "works of 64 KiB", 128, time.Millisecond, func(n int64) ([]byte, error) {
		id := fmt.Sprint("flood-", n%1000)
		e, err := specOf(source, evil, id, int(n), data)
		if err != nil {
			return nil, err
		}
		return publishOf(e)
	})
}

func evilWork(i int) string { return fmt.Sprint("evil-", i) }

// specOf returns a version of a work.
func specOf(owner, cluster, id string, version int, data string) (codec.Event, error) {
	return codec.Builder{
		ID: strconv.Itoa(version), Time: time.Now(), Source: owner, Cluster: cluster,
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.UpdateRequest}.String(),
		ContentType: codec.ContentTypeJSON, Data: []byte(data),
		Extensions: map[string]any{
			codec.ExtResourceID: id, codec.ExtResourceVersion: version,
			codec.ExtMetadata: fmt.Sprintf(`{"name":%q,"namespace":%q}`, id, cluster),
		},
	}.Event()
}

// reports are the statuses that the agents report in turn, with the time of each until the source receives it.
type reports struct {
	*fleet
	sequence codec.Sequencer

	mu    sync.Mutex
	waits map[string]chan struct{}  // by sequence id
	conns map[string]transport.Conn // of the agents
}

// report reports works of all agents in turn. The source also has works of the attacker's cluster, so that both
// share its delivery queue.
func (f *fleet) report(ctx context.Context) {
	s := &reports{fleet: f, waits: map[string]chan struct{}{}, conns: map[string]transport.Conn{}}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_ = every(ctx, 50*time.Millisecond, func() error { // until ctx ends
			_ = s.listen(ctx) // a broken connection shows in the statuses
			return nil
		})
	})
	defer func() {
		for name := range s.conns {
			s.drop(name)
		}
	}()
	if !s.own(ctx) {
		return
	}
	n := 0
	_ = every(ctx, reportEvery, func() error { // until ctx ends
		n++
		i := n % (clusters * worksEach)
		name := cluster(i % clusters)
		c, sequence := s.conn(ctx, name), s.sequence.Next(time.Now().UnixMilli())
		if c == nil {
			return emit(outputLine{At: time.Now(), What: "status", Took: givenUp, Text: "no connection"})
		}
		wg.Go(func() {
			began := time.Now()
			took, err := s.arrives(ctx, c, name, workID(i), sequence)
			if transport.CodeOf(err) == transport.CodeUnavailable {
				s.drop(name)
			}
			if ctx.Err() == nil {
				_ = emit(outputLine{At: began, What: "status", Took: took, Of: name, Text: fmt.Sprint(err)}) // without this line the test fails
			}
		})
		return nil
	})
}

// conn returns the connection on which an agent reports, nil if it cannot connect.
func (s *reports) conn(ctx context.Context, name string) transport.Conn {
	s.mu.Lock()
	c := s.conns[name]
	s.mu.Unlock()
	if c != nil {
		return c
	}
	c, err := s.dial(ctx, pki.Agent, name)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[name] = c
	return c
}

func (s *reports) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.conns[name]; c != nil {
		_ = c.Close() // the connection has ended, or is not needed
		delete(s.conns, name)
	}
}

// own publishes the works of the attacker's cluster. It returns false if ctx ends first.
func (s *reports) own(ctx context.Context) bool {
	for i := range worksEach {
		err := every(ctx, 20*time.Millisecond, func() error {
			c := s.source(ctx)
			if c == nil {
				return nil
			}
			e, err := specOf(source, evil, evilWork(i), 1, `{"manifests":[]}`)
			if err == nil {
				_, err = c.Publish(ctx, e, "")
			}
			if err == nil {
				return errDone
			}
			return nil
		})
		if !errors.Is(err, errDone) {
			return false
		}
	}
	return true
}

var errDone = errors.New("done")

// listen subscribes as the source until the subscription ends.
func (s *reports) listen(ctx context.Context) error {
	c, err := s.dial(ctx, pki.Source, source)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // every status has arrived or failed
	filter := transport.Filter{Source: source, DataType: codec.ManifestBundles}
	return c.Subscribe(ctx, transport.Subscription{Filter: filter}, func(transport.Accepted) {}, func(_ context.Context, e codec.Event) error {
		sequence, _, err := codec.StringExtension(e, codec.ExtSequenceID)
		if err != nil {
			return nil // an event about the subscription
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if w := s.waits[sequence]; w != nil {
			close(w)
			delete(s.waits, sequence)
		}
		return nil
	})
}

// arrives reports a work and waits until the source receives it.
func (s *reports) arrives(ctx context.Context, c transport.Conn, name, id, sequence string) (time.Duration, error) {
	e, err := codec.Builder{
		ID: sequence, Time: time.Now(), Source: name, Cluster: name,
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}.String(),
		ContentType: codec.ContentTypeJSON, Data: []byte(`{"conditions":[{"type":"Applied","status":"True"}]}`),
		Extensions: map[string]any{
			codec.ExtResourceID: id, codec.ExtResourceVersion: 0, codec.ExtSequenceID: sequence, codec.ExtOriginalSource: source,
		},
	}.Event()
	if err != nil {
		return givenUp, err
	}
	received := make(chan struct{})
	s.mu.Lock()
	s.waits[sequence] = received
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, givenUp)
	defer cancel()
	began := time.Now()
	if _, err := c.Publish(ctx, e, ""); err != nil {
		return givenUp, err
	}
	select {
	case <-received:
		return time.Since(began), nil
	case <-ctx.Done():
		return givenUp, ctx.Err()
	}
}
