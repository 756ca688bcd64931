package hubsource

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// broker is the broker session, with the subscription for which an effect was decided.
type broker struct {
	*shell
	session brokerSession
	on      string
}

// do publishes the events of an effect, and logs the answer.
func (b broker) do(ctx context.Context, k core.Key, e core.ForBroker) (r core.Result) {
	events, err := e.Events(uuid.NewString, time.Now(), b.id)
	if err != nil {
		r.Err = &transport.Error{Code: transport.CodeInvalid, Next: transport.NextStop, Message: "cannot be encoded: " + err.Error(), Err: err}
	}
	for i, event := range events {
		r = b.publish(ctx, event)
		if r.Sent = i + 1; r.Err != nil {
			break
		}
	}
	switch e := e.(type) {
	case core.Publish:
		b.metrics.publishes.WithLabelValues(brokerResult(r)).Inc()
		b.events.published(e, r)
		b.log.Log(ctx, levelOf(r), "spec published", "cluster", e.Work.Namespace, "work", e.Work.Name, "uid", e.Work.UID,
			"action", e.Action, "generation", e.Work.Generation, "outcome", r.Receipt.Outcome, "err", r.Err)
		return r
	case core.Delete:
		b.metrics.publishes.WithLabelValues(brokerResult(r)).Inc()
		b.logDelete(ctx, e.Record, r)
		return r
	case core.SendSyncReport:
		b.logSyncReport(ctx, e)
	}
	b.metrics.clusters.WithLabelValues(e.Operation(), brokerResult(r)).Inc()
	b.log.Log(ctx, levelOf(r), "request to the broker", "operation", e.Operation(), "cluster", k.Cluster, "outcome", r.Receipt.Outcome, "err", r.Err)
	return r
}

// publish publishes one event within a deadline.
func (b broker) publish(ctx context.Context, e codec.Event) (r core.Result) {
	if b.session == nil {
		return core.Result{Err: &transport.Error{Code: transport.CodeUnavailable, Message: "there is no session with the broker"}}
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	r.Receipt, r.Err = b.session.PublishOn(ctx, b.on, e)
	return r
}

// levelOf returns the level at which an answer is logged; answers that lead to a retry are logged at debug
// level.
func levelOf(r core.Result) slog.Level {
	if r.Err != nil && !transport.Retryable(r.Err) {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// logDelete logs the deletion of a work that the hub lacks. This line is the only trace of the work.
func (b broker) logDelete(ctx context.Context, w codec.InventoryRecord, r core.Result) {
	log := b.log.With("cluster", w.Cluster, "work", w.Name, "uid", w.ResourceID, "revision", w.Revision, "outcome", r.Receipt.Outcome, "err", r.Err)
	switch {
	case r.Err == nil:
		log.InfoContext(ctx, "work is deleted on its cluster because the hub no longer has it")
	case transport.Retryable(r.Err), transport.CodeOf(r.Err) == transport.CodeConflict:
		log.DebugContext(ctx, "deletion of a work that the hub no longer has")
	default:
		log.WarnContext(ctx, "broker rejects the deletion of a work that the hub no longer has")
	}
}

// logSyncReport reports deletions that wait for an operator.
func (b broker) logSyncReport(ctx context.Context, e core.SendSyncReport) {
	for _, o := range e.Report.Clusters {
		if len(o.Withheld) == 0 {
			continue
		}
		look := "hawser get discrepancies --cluster " + o.Cluster
		b.withheld(ctx, o, "the hub lacks this work, and it is not deleted on its cluster until an operator decides ("+look+"): ",
			"look", look, "delete_them", "hawser approve --source "+b.id+" --cluster "+o.Cluster+" --all")
	}
	b.log.DebugContext(ctx, "comparison", "clusters", len(e.Report.Clusters), "all_clusters", e.Report.AllClusters, "position", e.Report.Position != nil)
}
