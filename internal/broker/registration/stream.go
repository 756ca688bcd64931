package registration

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/internal/broker/call"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// stream is the goroutine that serves a subscription of an agent. It knows what it has told, by
// name, and looks at the mirror again when something has changed there: of what changes while it
// sends, or while the agent does not read, the last state is told. Nobody waits for it.
type stream struct {
	room     *Service
	sub      *subscription
	out      transport.Stream
	told     map[string]sent
	nextBeat time.Time
}

// serve tells what is new, until the stream ends.
func (t *stream) serve(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	t.nextBeat = t.room.cfg.Now().Add(t.room.cfg.Heartbeat)
	for {
		idle, err := t.step(ctx)
		switch {
		case err != nil:
			return err
		case !idle:
			continue
		}
		timer.Reset(t.nextBeat.Sub(t.room.cfg.Now()))
		select {
		case <-t.sub.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// step does what is to be done now; idle: there is nothing.
func (t *stream) step(ctx context.Context) (idle bool, err error) {
	if err := t.beat(ctx); err != nil {
		return false, err
	}
	shown, accepted, complete := t.room.mirror.show(t.sub.streamScope)
	shut := t.sub.shut(accepted)
	event, l, why := t.sub.take(complete && !shut)
	var notes []note
	switch {
	case why != nil:
		return false, why
	case event != nil && shut:
		return false, nil // it was for a cluster that was accepted
	case event != nil:
		return false, t.send(ctx, event)
	case shut:
		return true, nil
	case l != nil:
		defer l.free()
		notes = compare(t.told, shown, l.versions)
	}
	notes = append(notes, lacks(t.sub.viewer, t.told, shown)...)
	for _, n := range notes {
		if err := t.beat(ctx); err != nil {
			return false, err
		}
		if err := t.tell(ctx, n); err != nil {
			return false, err
		}
	}
	return len(notes) == 0, nil
}

// beat sends a heartbeat that is due; it says so when the stream has to end.
func (t *stream) beat(ctx context.Context) error {
	if ctx.Err() != nil {
		return call.CallerGone(ctx)
	}
	now := t.room.cfg.Now()
	if now.Before(t.nextBeat) {
		return nil
	}
	t.nextBeat = now.Add(t.room.cfg.Heartbeat)
	return t.send(ctx, codec.Heartbeat(t.room.cfg.NewID()))
}

// tell tells one note.
func (t *stream) tell(ctx context.Context, n note) error {
	event, err := t.event(n)
	if err == nil {
		err = t.send(ctx, event)
	}
	if err != nil {
		return err
	}
	t.room.metrics.told.Inc()
	switch {
	case n.object != nil:
		t.told[n.name] = sent{uid: n.object.uid, version: n.object.version, order: n.object.order}
	case n.name != "":
		delete(t.told, n.name)
	}
	return nil
}

func (t *stream) send(ctx context.Context, event []byte) error {
	if err := t.out.Send(event); err != nil {
		return broken(ctx, err)
	}
	return nil
}

// event is the event of a note.
func (t *stream) event(n note) ([]byte, error) {
	b := codec.Builder{
		ID: t.room.cfg.NewID(), Source: t.room.cfg.Registration, Time: t.room.cfg.Now(), Cluster: t.sub.cluster,
		Type: codec.EventType{DataType: t.sub.dataType, Subresource: codec.Spec, Action: codec.UpdateRequest}.String(),
	}
	if o := n.object; o != nil {
		b.ContentType, b.Data = codec.ContentTypeJSON, o.json
		b.Extensions = map[string]any{codec.ExtResourceID: o.uid, codec.ExtResourceVersion: o.version}
	} else {
		b.Type = codec.EventType{DataType: t.sub.dataType, Subresource: codec.Spec, Action: codec.DeleteRequest}.String()
		b.Extensions = map[string]any{
			codec.ExtResourceID: n.gone.uid, codec.ExtResourceVersion: n.gone.version, codec.ExtDeletionTimestamp: b.Time,
		}
	}
	return call.Encode(b.Event())
}

// broken is the end of a stream that could not be written to.
func broken(ctx context.Context, err error) error { return call.Broken(ctx, err) }
