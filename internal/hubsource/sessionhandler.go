package hubsource

import (
	"context"
	"errors"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// sessionHandler is the source's side of the broker session in one hub epoch; see session.Handler.
type sessionHandler struct {
	*shell
	epoch int
}

// errOver ends a session of a hub epoch that is over.
var errOver = errors.New("the hub is read again")

// update calls f with the core, unless the epoch is over.
func (p sessionHandler) update(f func(c *core.Core)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core.Epoch() != p.epoch {
		return errOver
	}
	f(p.core)
	return nil
}

func (p sessionHandler) Hello() (h transport.Hello) {
	h.Protocol = transport.Protocol
	_ = p.update(func(c *core.Core) { h = c.Hello() }) // Subscribed returns the error
	return h
}

// Subscribed starts the comparison of all works with the broker. The core publishes the differences, like all
// changes. If a broker requests a delay for one of many events, only that event is repeated.
func (p sessionHandler) Subscribed(_ context.Context, a transport.Accepted) ([]codec.Event, error) {
	return nil, p.update(func(c *core.Core) { c.Connected(a) })
}

func (p sessionHandler) Disconnected(error) {
	_ = p.update(func(c *core.Core) { c.Disconnected() }) // the end of a session of a former epoch does not disconnect the present one
}

// Handle handles an event of the broker's stream: a status, or an event about the stream and the records. It
// returns nil for an event that cannot be read, because the same event would come again after a reconnect.
func (p sessionHandler) Handle(ctx context.Context, e codec.Event) error {
	switch e.Type() {
	case codec.TypeCheckpoint:
		return handle(ctx, p, e, codec.ParseCheckpoint, (*core.Core).Checkpoint)
	case codec.TypeKeepalive, codec.TypeGoodbye:
		return handle(ctx, p, e, core.KeepaliveOf, (*core.Core).Keepalive)
	case codec.TypeDisconnectedClusters:
		return handle(ctx, p, e, codec.ParseDisconnectedClusters, (*core.Core).DisconnectedClusters)
	case codec.TypeInventory:
		page, err := codec.ParseInventory(e)
		if !p.readable(ctx, e, err) {
			return nil
		}
		taken := false
		err = p.update(func(c *core.Core) { taken = c.Inventory(page) })
		p.log.DebugContext(ctx, "inventory page", "request", page.RequestID, "accepted", taken,
			"clusters", len(page.Clusters), "records", len(page.Records), "more", page.NextPageToken != "")
		return err
	}
	if t, err := codec.ParseEventType(e.Type()); err == nil && t.Subresource == codec.Spec && t.Action == codec.ResyncRequest {
		return p.listed(ctx, e)
	}
	r := p.decode(ctx, e)
	if r == nil {
		return nil
	}
	var result core.ReportResult
	err := p.update(func(c *core.Core) { result = c.Report(r) })
	if err == nil {
		p.metrics.reports.WithLabelValues(string(result)).Inc()
		p.logReport(ctx, r, e.Source(), result)
	}
	return err
}

// handle gives what parse reads of an event to the core. It returns nil for an event that parse cannot read.
func handle[T any](ctx context.Context, p sessionHandler, e codec.Event, parse func(codec.Event) (T, error), receive func(*core.Core, T)) error {
	if v, err := parse(e); p.readable(ctx, e, err) {
		return p.update(func(c *core.Core) { receive(c, v) })
	}
	return nil
}

// listed handles the list of an agent.
func (p sessionHandler) listed(ctx context.Context, e codec.Event) error {
	l, err := core.ParseAgentList(e)
	if !p.readable(ctx, e, err) {
		return nil
	}
	taken := false
	err = p.update(func(c *core.Core) { taken = c.AgentList(l) })
	p.log.DebugContext(ctx, "list of an agent", "cluster", l.Cluster, "works", len(l.Versions), "accepted", taken)
	return err
}

// decode reads a status event. If it cannot be read, decode logs that and returns nil.
func (p sessionHandler) decode(ctx context.Context, e codec.Event) *core.Report {
	r, err := core.ReportOf(e)
	if p.readable(ctx, e, err) {
		return r
	}
	p.metrics.reports.WithLabelValues("invalid").Inc()
	return nil
}

// readable reports whether an event could be read, and logs it if not.
func (p sessionHandler) readable(ctx context.Context, e codec.Event, err error) bool {
	if err != nil {
		p.log.WarnContext(ctx, "event cannot be read", "type", e.Type(), "event", e.ID(), "from", e.Source(), "err", err)
	}
	return err == nil
}

func (p sessionHandler) logReport(ctx context.Context, r *core.Report, agent string, v core.ReportResult) {
	attrs := []any{"cluster", r.Cluster, "work", r.Name, "uid", r.UID, "version", r.Version, "sequence", r.Sequence, "from", agent, "result", v}
	if text := unexpected[v]; text != "" {
		p.log.WarnContext(ctx, "status is dropped", append(attrs, "reason", text)...)
		return
	}
	p.log.DebugContext(ctx, "status received", attrs...)
}

// unexpected are the results that reports of a correct agent never have.
var unexpected = map[core.ReportResult]string{
	core.UnexpectedDeletion: "the cluster reports a work as deleted that the hub does not delete",
	core.Foreign:            "the work is not this hub's, or not of this cluster",
	core.Incomparable:       "the sequence id cannot be compared",
}
