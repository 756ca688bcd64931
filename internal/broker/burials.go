package broker

import (
	"context"
	"sync"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// burials removes graves that their sources have seen: up to the cursor that
// each acknowledged last. It does so in its own time, a batch per source in
// turn, so that neither a call nor a stream waits for it.
type burials struct {
	mu   sync.Mutex
	upTo map[ownership]uint64
	turn []ownership // keys of upTo, next one first
	wake chan struct{}
}

func newBurials() *burials {
	return &burials{upTo: map[ownership]uint64{}, wake: make(chan struct{}, 1)}
}

// put says that a source has seen the statuses of its works up to a revision.
func (q *burials) put(o ownership, revision uint64) {
	q.mu.Lock()
	if _, waits := q.upTo[o]; !waits {
		q.turn = append(q.turn, o)
	}
	q.upTo[o] = max(q.upTo[o], revision)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take takes the next one out.
func (q *burials) take() (o ownership, revision uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turn) == 0 {
		return o, 0, false
	}
	o = q.turn[0]
	q.turn = q.turn[1:]
	revision = q.upTo[o]
	delete(q.upTo, o)
	return o, revision, true
}

// runBurials removes graves until ctx ends.
func (b *Broker) runBurials(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for ctx.Err() == nil {
		o, revision, ok := b.burials.take()
		if !ok {
			select {
			case <-b.burials.wake:
			case <-ctx.Done():
			}
			continue
		}
		again, err := b.bury(ctx, o, revision)
		if again {
			b.burials.put(o, revision)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		// Nothing is lost: the source acknowledges again, or the sweeper comes.
		if transport.CodeOf(err) != transport.CodeOverloaded {
			b.log.Error("removing graves failed that their source has seen", "source", o.owner, "error", err)
		}
		pause.Reset(comeBack)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// bury removes a batch of graves that a source has seen; again: there is more
// to do. An error that is worth another attempt is one too.
func (b *Broker) bury(ctx context.Context, o ownership, revision uint64) (again bool, err error) {
	keys, err := b.store.Graves(ctx, o.dataType, o.owner, revision, jobOps)
	if err != nil || len(keys) == 0 {
		return false, err
	}
	ops := make([]store.Op, 0, len(keys))
	for _, k := range keys {
		ops = append(ops, store.Op{Kind: store.Acked, Key: k, Owner: o.owner, IfRevision: revision, At: b.cfg.Now()})
	}
	outcomes, err := b.commits.commit(ctx, identity.Identity{Role: identity.Source, Name: o.owner}, ops...)
	if err != nil {
		return transport.CodeOf(err) == transport.CodeOverloaded, err
	}
	removed := 0
	for _, v := range outcomes {
		if v.Verdict == store.Accepted {
			removed++
		}
	}
	b.metrics.graveAcked.Add(float64(removed))
	return len(keys) == jobOps && removed > 0, nil
}
