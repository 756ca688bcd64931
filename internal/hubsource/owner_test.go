package hubsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	workversioned "open-cluster-management.io/api/client/work/clientset/versioned"
)

// paced is a connection to the hub with slow watches, slow answers to patches, or lost answers.
type paced struct {
	hub              *fakeHub
	watches, answers time.Duration
	drop             int // each drop-th answer is lost; 0: none
	patches          int // guarded by the hub's lock
}

// RoundTrip implements http.RoundTripper.
func (p *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := p.hub.RoundTrip(r)
	switch {
	case err != nil:
	case r.URL.Query().Get("watch") != "":
		answer.Body = slowly{answer.Body, func() { pause(r.Context(), p.watches) }}
	case r.Method == http.MethodPatch:
		pause(r.Context(), p.answers)
		p.hub.mu.Lock()
		defer p.hub.mu.Unlock()
		if p.patches++; p.drop > 0 && p.patches%p.drop == 0 {
			return nil, errors.Join(answer.Body.Close(), errors.New("read: connection reset by peer"))
		}
	}
	return answer, err
}

// slowly is a body that delays each read.
type slowly struct {
	io.ReadCloser
	pause func()
}

func (s slowly) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	s.pause()
	return n, err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// TestSource_EndsDeletionsWhereNoAgentEverCame: the source knows its own finalizer, whether the event or the
// answer comes first. So a deletion waits for no agent if no agent ever had the work.
func TestSource_EndsDeletionsWhereNoAgentEverCame(t *testing.T) {
	rounds, each := 10, 30
	if testing.Short() {
		rounds = 4
	}
	for name, p := range map[string]*paced{
		"slow informer":  {watches: 50 * time.Millisecond},
		"equal":          {},
		"fast informer":  {answers: 50 * time.Millisecond},
		"fast, and lost": {answers: 50 * time.Millisecond, drop: 3},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				p.hub = b.hub
				b.source(func(c *Config) {
					cfg := b.hub.config()
					cfg.Transport = p
					c.Works = workversioned.NewForConfigOrDie(cfg)
				})
				b.settle(time.Second)
				for round := range rounds {
					for i := range each {
						b.hub.apply(example("c1", fmt.Sprint("w", i)))
					}
					if round%2 == 0 {
						b.settle(time.Second) // otherwise they are deleted while the write of the finalizer is in flight
					} else {
						b.settle(time.Duration(round) * 10 * time.Millisecond)
					}
					for i := range each {
						b.hub.remove("manifestworks", fmt.Sprint("c1/w", i))
					}
					b.settle(2 * time.Second)
					if left := b.works(); len(left) > 0 {
						b.Fatalf("round %d: of %d deletions %d have not ended: %s", round, each, len(left), strings.Join(left, " "))
					}
				}
			})
		})
	}
}

// works returns the keys of the works on the hub.
func (b *bench) works() (keys []string) {
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	for key := range b.hub.objects["manifestworks"] {
		keys = append(keys, key)
	}
	return keys
}
