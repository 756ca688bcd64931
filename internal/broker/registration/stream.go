package registration

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// stream serves one subscription of an agent, in turns. It remembers by name what it has sent, and reads the
// cache again after each change. If an object changes several times while the stream sends or the agent does not
// read, only the last state is sent. No goroutine waits for it.
type stream struct {
	sender
	sub  *subscription
	sent map[string]sent
}

// Turn implements [request.Stream].
func (t *stream) Turn(ctx context.Context) (next time.Time, err error) {
	for {
		idle, err := t.step(ctx)
		if idle || err != nil {
			return t.nextBeat, err
		}
	}
}

// Wake implements [request.Stream].
func (t *stream) Wake() *taskgroup.Turns { return t.sub.wake }

// Leave implements [request.Stream].
func (t *stream) Leave() {
	t.service.agents.remove(t.sub)
	t.sub.leave()
}

// step sends everything that is due now. idle is true if nothing was due.
func (t *stream) step(ctx context.Context) (idle bool, err error) {
	if err := t.beat(ctx); err != nil {
		return false, err
	}
	shown, accepted, complete := t.service.cache.show(t.sub.streamScope)
	shut := t.sub.hidden(accepted)
	event, l, why := t.sub.take(complete && !shut)
	var notes []objectEvent
	switch {
	case why != nil:
		return false, why
	case event != nil && shut:
		return false, nil // the event is dropped, because acceptance was withdrawn after it was queued
	case event != nil:
		return false, t.send(ctx, event)
	case shut:
		return true, nil
	case l != nil:
		defer l.free()
		notes = compare(t.sent, shown, l.versions)
	}
	notes = append(notes, pendingEvents(t.sub.visibility, t.sent, shown)...)
	for _, n := range notes {
		// Acceptance may have been withdrawn while an earlier event was sent. Deletions come first, so none is lost.
		if err := t.beat(ctx); err != nil || n.object != nil && t.sub.hidden(t.service.cache.isAccepted(t.sub.cluster)) {
			return false, err
		}
		if err := t.sendEvent(ctx, n); err != nil {
			return false, err
		}
	}
	return len(notes) == 0, nil
}

// sender is the sending side of a stream. Only the goroutine of a turn uses it.
type sender struct {
	service  *Service
	out      transport.Stream
	beats    settings.Schedule
	nextBeat time.Time
}

func (r *Service) sender(p transport.Peer, hello transport.Hello, out transport.Stream) sender {
	beats := r.cfg.Beats.Schedule(p, hello.Heartbeat)
	return sender{service: r, out: out, beats: beats, nextBeat: beats.Next(r.cfg.Now())}
}

// beat sends a heartbeat if one is due. It returns an error if the stream has to end.
func (t *sender) beat(ctx context.Context) error {
	if ctx.Err() != nil {
		return request.CallerGone(ctx)
	}
	now := t.service.cfg.Now()
	if now.Before(t.nextBeat) {
		return nil
	}
	t.nextBeat = t.beats.Next(now)
	return t.send(ctx, t.service.cfg.Beats.Event(now))
}

// sendEvent sends one object or deletion, and records it in sent.
func (t *stream) sendEvent(ctx context.Context, n objectEvent) error {
	event, err := t.event(n)
	if err == nil {
		err = t.send(ctx, event)
	}
	if err != nil {
		return err
	}
	t.service.metrics.answers.Inc()
	switch {
	case n.object != nil:
		t.sent[n.name] = sent{uid: n.object.uid, version: n.object.version, sequence: n.object.sequence}
	case n.name != "":
		delete(t.sent, n.name)
	}
	return nil
}

func (t *sender) send(ctx context.Context, event []byte) error {
	if err := t.out.Send(event); err != nil {
		return request.StreamBroken(ctx, err)
	}
	return nil
}

// event encodes an object or a deletion as a CloudEvent.
func (t *stream) event(n objectEvent) ([]byte, error) {
	b := codec.Builder{
		ID: t.service.cfg.NewID(), Source: t.service.cfg.Registration, Time: t.service.cfg.Now(), Cluster: t.sub.cluster,
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
	return request.Encode(b.Event())
}
