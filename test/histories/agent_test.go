package histories

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/test/histories/judge"
)

// reportPace is the pace at which an agent looks for statuses to publish.
const reportPace = 20 * time.Millisecond

// agent receives the works of a cluster and reports them. It decides about specs as Hawser's agent does.
type agent struct {
	client
	t       *testing.T
	sources []string
	numbers *numbers // nil: it reports nothing

	state    sync.Mutex
	set      *desired.Set
	cursor   codec.Cursor
	sequence codec.Sequencer
	due      map[string]*desired.Work // to report, by id
	sent     map[string]report
	mark     uint64 // clock of the last list
	digest   string // of the last complete checkpoint
	lose     bool   // the next session begins without state
}

// report is an acknowledged status.
type report struct {
	hash    string
	deleted bool
}

// numbers counts the reports of works. Those of one agent outlive its restarts.
type numbers struct {
	mu   sync.Mutex
	last map[string]int
}

func (n *numbers) next(id string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last[id]++
	return n.last[id]
}

func newAgent(t *testing.T, x *trace, name, cluster, addresses string, sources []string) *agent {
	t.Helper()
	a := &agent{t: t, sources: sources, numbers: &numbers{last: map[string]int{}}}
	a.client = client{name: name, trace: x, dialer: newDialer(t, addresses), handler: a, filter: transport.Filter{Cluster: cluster, DataType: codec.ManifestBundles}}
	a.reset()
	return a
}

// reset loses the state directory.
func (a *agent) reset() {
	a.set, a.cursor, a.digest, a.lose = desired.New(), codec.Cursor{}, "", false
	a.due, a.sent = map[string]*desired.Work{}, map[string]report{}
}

// begin starts the agent again, with or without its state.
func (a *agent) begin(stateless bool) {
	a.state.Lock()
	a.lose = stateless
	a.state.Unlock()
	a.end()
}

// run runs the session and the reports until ctx ends.
func (a *agent) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.client.run(ctx) })
	g.Go(func() error {
		tick := time.NewTicker(reportPace)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				a.reportNext(ctx)
			case <-ctx.Done():
				return nil
			}
		}
	})
	return g.Wait()
}

// reportNext publishes one due status.
func (a *agent) reportNext(ctx context.Context) {
	a.state.Lock()
	var w *desired.Work
	for _, w = range a.due {
		break
	}
	sequence := a.sequence.Next(time.Now().UnixMilli())
	a.state.Unlock()
	if w == nil || a.numbers == nil {
		return
	}
	number := a.numbers.next(w.ResourceID)
	status := workv1.ManifestWorkStatus{Conditions: []metav1.Condition{{Type: workv1.WorkApplied, Status: metav1.ConditionTrue, Reason: "Report", Message: fmt.Sprint(number)}}}
	e, err := manifestwork.EncodeStatus(w.Ref, status, manifestwork.StatusParams{
		ID: newID(), Now: time.Now(), Source: a.name, OriginalSource: w.Source, Action: codec.UpdateRequest, SequenceID: sequence, Deleted: w.Deleting,
	})
	if err != nil {
		a.t.Error(err)
		return
	}
	hash, _, err := codec.StringExtension(e, codec.ExtStatusHash)
	if err != nil {
		a.t.Error(err)
		return
	}
	from := a.trace.now()
	_, sent, err := a.publish(ctx, e, "")
	if sent {
		a.trace.add(judge.Event{Kind: judge.Report, From: from, Client: a.name, Cluster: w.Cluster, Work: w.ResourceID, Version: w.Generation, Deleted: w.Deleting, Number: number, Acked: err == nil})
	}
	if err != nil || !sent {
		return
	}
	a.state.Lock()
	defer a.state.Unlock()
	if a.due[w.ResourceID] == w {
		delete(a.due, w.ResourceID)
	}
	a.sent[w.ResourceID] = report{hash, w.Deleting}
	if w.Deleting {
		a.set.Forget(w)
	}
}

// numberOf returns the number of a report.
func numberOf(s workv1.ManifestWorkStatus) (n int) {
	for _, c := range s.Conditions {
		if c.Type == workv1.WorkApplied {
			_, _ = fmt.Sscan(c.Message, &n) // 0 is never reported
		}
	}
	return n
}

// settled returns what the agent waits for, "" if it waits for nothing.
func (a *agent) settled() string {
	a.state.Lock()
	defer a.state.Unlock()
	switch {
	case a.digest != text(a.set.Digest(nil)):
		return fmt.Sprintf("%s holds %d works and is not in sync", a.name, len(a.set.All()))
	case len(a.due) > 0 && a.numbers != nil:
		return fmt.Sprintf("%s has %d statuses to report", a.name, len(a.due))
	}
	return ""
}

// final records the works at the end.
func (a *agent) final() {
	a.state.Lock()
	defer a.state.Unlock()
	for _, w := range a.set.All() {
		if !w.Deleting {
			a.trace.add(judge.Event{Kind: judge.Held, Client: a.name, Cluster: w.Cluster, Work: w.ResourceID, Version: w.Generation, Revision: w.Revision})
		}
	}
	a.trace.add(judge.Event{Kind: judge.Digest, Client: a.name, Cluster: a.filter.Cluster, Digest: a.digest})
	a.trace.add(judge.Event{Kind: judge.Complete, Client: a.name, Cluster: a.filter.Cluster})
}

// Hello implements [session.Handler].
func (a *agent) Hello() transport.Hello {
	a.state.Lock()
	defer a.state.Unlock()
	if a.lose {
		a.reset()
		a.trace.add(judge.Event{Kind: judge.Fault, Client: a.name, Text: "begins without state"})
	}
	return a.hello(a.cursor)
}

// Subscribed implements [session.Handler].
func (a *agent) Subscribed(_ context.Context, accepted transport.Accepted) ([]codec.Event, error) {
	a.state.Lock()
	defer a.state.Unlock()
	a.digest = ""
	if a.subscribed(accepted, a.cursor) {
		a.set.Continued(a.cursor.Revision)
		return nil, nil
	}
	a.cursor = codec.Cursor{}
	a.set.Subscribed(true)
	e, err := a.list()
	return []codec.Event{e}, err
}

// list returns the list of all held works. a.state is held.
func (a *agent) list() (codec.Event, error) {
	a.mark = a.set.Clock()
	return codec.NewSpecResyncRequest(codec.ResyncParams{
		ID: newID(), Time: time.Now(), Source: a.name, Cluster: a.filter.Cluster, DataType: codec.ManifestBundles,
	}, a.set.Versions())
}

// Disconnected implements [session.Handler].
func (a *agent) Disconnected(err error) {
	a.state.Lock()
	defer a.state.Unlock()
	a.digest = ""
	if advises(err, transport.NextResync) {
		a.cursor = codec.Cursor{}
	}
}

func advises(err error, next transport.NextStep) bool {
	e, ok := errors.AsType[*transport.Error](err)
	return ok && e.Next == next
}

// Handle implements [session.Handler].
func (a *agent) Handle(ctx context.Context, e codec.Event) error {
	if e.Type() == codec.TypeCheckpoint {
		k, err := codec.ParseCheckpoint(e)
		if err != nil {
			return err
		}
		return a.follow(ctx, k)
	}
	kind, err := codec.ParseEventType(e.Type())
	if err != nil {
		return err
	}
	if kind.Subresource == codec.Status {
		return a.answer(e)
	}
	spec, err := manifestwork.DecodeSpec(e)
	if err != nil {
		return err
	}
	a.trace.add(judge.Event{Kind: judge.Spec, Client: a.name, Cluster: spec.Cluster, Work: spec.ResourceID, Version: spec.Generation, Deleted: spec.Deleting, Revision: spec.Revision})
	a.state.Lock()
	defer a.state.Unlock()
	if a.set.Accept(spec, "").Outcome == desired.Accepted || spec.Deleting {
		if w := a.set.Get(spec.ResourceID); w != nil {
			a.due[spec.ResourceID] = w
		}
	}
	return nil
}

// answer reports again what the broker lacks.
func (a *agent) answer(e codec.Event) error {
	hashes, err := codec.DecodeHashes(e.Data())
	if err != nil {
		return err
	}
	a.state.Lock()
	defer a.state.Unlock()
	requested := resync.NewStatuses(hashes)
	for id, r := range a.sent {
		if w := a.set.Get(id); w != nil && requested.Needs(resync.Status{ID: id, Hash: r.hash, Final: r.deleted}) {
			a.due[id] = w
		}
	}
	return nil
}

// follow processes a checkpoint.
func (a *agent) follow(ctx context.Context, k codec.Checkpoint) error {
	a.checkpoint(k)
	a.state.Lock()
	slices.Sort(k.Orphans)
	orphans := a.set.Missing(slices.Compact(k.Orphans), a.mark)
	own := a.set.Digest(orphans)
	if k.Digest != nil && *k.Digest != own {
		e, err := a.list()
		a.state.Unlock()
		if err == nil {
			_, _, err = a.publish(ctx, e, a.subscription)
		}
		return err
	}
	a.cursor = k.Cursor
	ack := codec.Ack{Cursor: k.Cursor}
	if k.Digest != nil {
		a.set.Verified(k.Cursor.Revision)
		a.set.Confirm(orphans)
		ack.Digest = &own
		a.digest = text(own)
		if a.allSynced(k) {
			for _, id := range orphans {
				a.set.Drop(id)
			}
		}
	}
	a.state.Unlock()
	a.ack(ctx, ack)
	return nil
}

func text(d codec.Digest) string { return fmt.Sprintf("%d/%s", d.Count, d.Sum) }

// allSynced reports whether all sources have finished their comparison. Works without a record are then not wanted.
func (a *agent) allSynced(k codec.Checkpoint) bool {
	for _, s := range a.sources {
		if !slices.Contains(k.SyncedSources, s) {
			return false
		}
	}
	return true
}
