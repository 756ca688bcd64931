package hubsource

import (
	"context"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// party is the source's side of the session with the broker; see
// session.Party.
type party struct{ *shell }

func (p party) Hello() transport.Hello {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.Hello()
}

// Subscribed starts the comparison of all works with the broker. What is to be
// published then goes through the core like everything else, so that a broker
// that asks to wait for one of many requests is not asked for all of them again.
func (p party) Subscribed(_ context.Context, a transport.Accepted) ([]codec.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.core.Connected(a)
	return nil, nil
}

func (p party) Disconnected(error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.core.Disconnected()
}

// Handle takes an event of the broker's stream: a status, or what the broker
// says about the stream and its records. It returns nil for events that are
// merely bad: the same event would come again after a reconnect.
func (p party) Handle(ctx context.Context, e codec.Event) error {
	switch e.Type() {
	case codec.TypeCheckpoint:
		if cp, err := codec.ParseCheckpoint(e); p.readable(ctx, e, err) {
			p.mu.Lock()
			p.core.Checkpoint(cp)
			p.mu.Unlock()
		}
		return nil
	case codec.TypeInventory:
		if page, err := codec.ParseInventory(e); p.readable(ctx, e, err) {
			p.mu.Lock()
			taken := p.core.Inventory(page)
			p.mu.Unlock()
			p.log.DebugContext(ctx, "inventory page", "request", page.RequestID, "taken", taken,
				"clusters", len(page.Clusters), "records", len(page.Records), "more", page.NextPageToken != "")
		}
		return nil
	}
	if r := p.decode(ctx, e); r != nil {
		p.mu.Lock()
		verdict := p.core.Report(r)
		p.mu.Unlock()
		p.metrics.report(verdict)
		p.logReport(ctx, r, e.Source(), verdict)
	}
	return nil
}

// decode reads a status event; of what it cannot read it tells, and returns nil.
func (p party) decode(ctx context.Context, e codec.Event) *Report {
	r, err := ReportOf(e)
	if p.readable(ctx, e, err) {
		return r
	}
	p.metrics.reports.WithLabelValues("invalid").Inc()
	return nil
}

// readable tells of an event that cannot be read.
func (p party) readable(ctx context.Context, e codec.Event, err error) bool {
	if err != nil {
		p.log.WarnContext(ctx, "event cannot be read", "type", e.Type(), "event", e.ID(), "from", e.Source(), "err", err)
	}
	return err == nil
}

func (p party) logReport(ctx context.Context, r *Report, agent string, v Verdict) {
	attrs := []any{"cluster", r.Cluster, "work", r.Name, "uid", r.UID, "version", r.Version, "sequence", r.Sequence, "from", agent, "verdict", v}
	switch v {
	case NotDeleting:
		p.log.WarnContext(ctx, "cluster reports a work as deleted that the hub does not delete", attrs...)
	case Incomparable:
		p.log.WarnContext(ctx, "status has a sequence id that cannot be compared", attrs...)
	case Taken, Stale, Ignored:
		p.log.DebugContext(ctx, "status received", attrs...)
	}
}
