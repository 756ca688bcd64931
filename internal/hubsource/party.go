package hubsource

import (
	"context"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// party is the source's side of the session with the broker; see
// session.Party.
type party struct{ *shell }

func (p party) Hello() transport.Hello { return transport.Hello{Protocol: 1} }

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

// Handle takes a status event. It returns nil for events that are merely bad:
// the same event would come again after a reconnect.
func (p party) Handle(ctx context.Context, e codec.Event) error {
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
	if err == nil {
		return r
	}
	p.log.WarnContext(ctx, "event is no status of a work that can be read", "type", e.Type(), "event", e.ID(), "from", e.Source(), "err", err)
	p.metrics.reports.WithLabelValues("invalid").Inc()
	return nil
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
