package hubsource

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// request sends a sync event; err is that of making it.
func (s *shell) request(ctx context.Context, on, operation string, event codec.Event, err error) (r Result) {
	r = s.send(ctx, on, event, err)
	s.metrics.clusters.WithLabelValues(operation, brokerResult(r)).Inc()
	level := slog.LevelDebug
	if r.Err != nil && !transport.Retryable(r.Err) {
		level = slog.LevelWarn
	}
	s.log.Log(ctx, level, "request to the broker", "operation", operation, "outcome", r.Receipt.Outcome, "err", r.Err)
	return r
}

// delete publishes the deletion of a work that the hub lacks. That is worth a
// line: nobody else will be able to say what became of the work.
func (s *shell) delete(ctx context.Context, on string, e Delete) (r Result) {
	event, err := e.Event(uuid.NewString(), s.now(), s.id)
	r = s.send(ctx, on, event, err)
	s.metrics.publishes.WithLabelValues(brokerResult(r)).Inc()
	attrs := []any{
		"cluster", e.Record.Cluster, "work", e.Record.Name, "uid", e.Record.ResourceID,
		"revision", e.Record.Revision, "outcome", r.Receipt.Outcome, "err", r.Err,
	}
	switch {
	case r.Err == nil:
		s.log.InfoContext(ctx, "work is deleted on its cluster because the hub has it no more", attrs...)
	case transport.Retryable(r.Err), transport.CodeOf(r.Err) == transport.CodeConflict:
		s.log.DebugContext(ctx, "deletion of a work that the hub has no more", attrs...)
	default:
		s.log.WarnContext(ctx, "broker refuses the deletion of a work that the hub has no more", attrs...)
	}
	return r
}

// shownWithheld is how many names a log line shows.
const shownWithheld = 10

// logCompared tells of deletions that wait for a person.
func (s *shell) logCompared(ctx context.Context, e SendCompared) {
	compared := 0
	for _, o := range e.Compared.Clusters {
		if len(o.Withheld) == 0 {
			compared++
			continue
		}
		names := make([]string, 0, shownWithheld)
		for _, w := range o.Withheld[:min(len(o.Withheld), shownWithheld)] {
			names = append(names, w.Name)
		}
		s.log.ErrorContext(ctx, "works that the hub lacks are not deleted on the cluster until somebody decides",
			"cluster", o.Cluster, "count", len(o.Withheld), "first_works", names, "reason", o.Reason,
			"look", "hawser get orphans --cluster "+o.Cluster, "delete_them", "hawser approve --source "+s.id+" --cluster "+o.Cluster+" --all")
	}
	s.log.DebugContext(ctx, "comparison", "clusters", compared, "all_clusters", e.Compared.AllClusters, "position", e.Compared.Position != nil)
}
