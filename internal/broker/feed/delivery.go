package feed

import (
	"context"
	"errors"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/internal/broker/claims"
	"github.com/hawser-io/hawser/internal/broker/route"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// deliver sends what a mailbox entry stands for, in the form the record has now. A record that
// is gone, or no longer concerns the party, is skipped.
func (t *stream) deliver(ctx context.Context, e route.Entry) error {
	s := t.sub
	key := store.Key{DataType: s.scope.DataType, Cluster: e.Cluster, ResourceID: e.ResourceID}
	r, err := t.cfg.Store.Get(ctx, key)
	var damaged *store.DamageError
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case errors.As(err, &damaged):
		// One record that cannot be read does not keep the others back. The store refuses
		// writes from now on, so an operator hears of it.
		t.metrics.damaged.Inc()
		t.cfg.Log.Error("record cannot be read and is not delivered", "cluster", e.Cluster, "resource_id", e.ResourceID, "error", err)
		s.undeliverable(e.Revision)
		return nil
	case err != nil:
		return call.Store(err)
	}
	f := form{record: &r, hawser: s.hello.Protocol >= 1, resync: e.Flags&route.Resync != 0}
	if s.part == codec.Spec {
		return t.deliverSpec(f, e)
	}
	if r.Owner != s.scope.Owner {
		return nil
	}
	return t.send(f.status)
}

// deliverSpec sends an agent what it must know of the record.
func (t *stream) deliverSpec(f form, e route.Entry) error {
	r := f.record
	if r.State != store.Grave && !f.hawser && t.sub.postpone(e, r.Name, t.cfg.Now()) {
		return nil
	}
	// The list of the agent may have lacked a record of which it has a newer version, or the
	// record may have changed since.
	if d, w := t.cfg.Claims.Judge(t.sub.oddities(), &r.Meta); d == claims.Force {
		t.force(r.ResourceID, w)
		return nil // it comes once more, so that the agent accepts it
	}
	if e.Flags&route.Overrule != 0 {
		f.listed = t.forced[e.ResourceID]
		f.force = r.Version < f.listed
		delete(t.forced, e.ResourceID)
	}
	switch {
	case r.State == store.Live && f.hawser:
		return t.send(f.spec)
	case r.State == store.Live:
		return t.liveToStock(f)
	case r.State == store.Tombstone && f.hawser:
		return t.send(f.deletion)
	case r.State == store.Tombstone:
		return t.deletionToStock(f, e)
	case f.resync && !r.DeletedAt.IsZero(): // a grave
		return t.send(f.deletion)
	}
	return nil
}

// send sends the event that render makes, if it makes one.
func (t *stream) send(render func() ([][]byte, error)) error {
	event, err := render()
	if err != nil {
		return call.Internal(err)
	}
	if event == nil {
		return nil
	}
	if err := t.out.Send(event...); err != nil {
		return err
	}
	t.metrics.delivered(t.sub.part, event)
	return nil
}
