package hubsource

import (
	"context"
	"log/slog"

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
func (p party) Handle(_ context.Context, e codec.Event) error {
	t, err := codec.ParseEventType(e.Type())
	if err != nil || t.DataType != codec.ManifestBundles || t.Subresource != codec.Status {
		p.log.Debug("event is not a status of a work", "type", e.Type())
		p.metrics.report(Ignored)
		return nil
	}
	r, err := ReportOf(e)
	if err != nil {
		p.log.Warn("status cannot be decoded", "event", e.ID(), "from", e.Source(), "err", err)
		p.metrics.reports.WithLabelValues("invalid").Inc()
		return nil
	}
	p.mu.Lock()
	verdict := p.core.Report(r)
	p.mu.Unlock()
	p.metrics.report(verdict)
	p.logReport(r, e.Source(), verdict)
	return nil
}

func (p party) logReport(r *Report, agent string, v Verdict) {
	level, message := slog.LevelDebug, "status received"
	switch v {
	case NotDeleting:
		level, message = slog.LevelWarn, "cluster reports a work as deleted that the hub does not delete"
	case Incomparable:
		level, message = slog.LevelWarn, "status has a sequence id that cannot be compared"
	case Taken, Stale, Ignored:
	}
	p.log.Log(context.Background(), level, message,
		"cluster", r.Cluster, "work", r.Name, "uid", r.UID, "version", r.Version, "sequence", r.Sequence, "from", agent, "verdict", v)
}
