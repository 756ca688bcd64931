package agentstatus

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
)

// rowPrefix is the prefix of the bookmarks with the rows of all clusters.
const rowPrefix = "agent/"

const (
	// publishEvery is the pause between two commits of rows, and rowsAtOnce the maximum number of rows in one. So many
	// agents that connect at the same time cost one commit a second.
	publishEvery = time.Second
	rowsAtOnce   = 1000
	// refreshEvery is the pause between two commits of rows of agents that have neither connected nor disconnected.
	refreshEvery = 10 * time.Second
	// maxFormer is the maximum number of former subscriptions in a row, and maxReported that of orphan
	// AppliedManifestWorks, and of listed works.
	maxFormer, maxReported = 8, 8
)

// row is what the replica of an agent tells the others about it. Only a broker beside other replicas writes rows. A
// row is a hint: nothing that was promised depends on it.
type row struct {
	// Replica is the id of the replica that wrote the row. While it lives and State is not 0, the agent is connected.
	Replica string `json:"replica"`
	// Connection is the state of the agent at Revision, the spec revision of its cluster.
	Connection
	Revision uint64 `json:"revision,omitzero"`
	// Former are subscriptions that the agent had before. They are over, also where they still seem to run.
	Former []string `json:"former,omitempty"`
	Facts
}

// rowIn returns the row in a bookmark and its revision, nil if there is none. An unreadable row, as of a newer
// release, is none.
func (p *Peers) rowIn(scope store.Scope) (r *row, revision uint64) {
	b, ok := p.cfg.Store.Bookmark(store.ScopedName(rowPrefix, scope.DataType, scope.Cluster))
	if !ok {
		return nil, 0
	}
	return decodeRow(b.Value), b.Revision
}

func decodeRow(value []byte) *row {
	r := &row{}
	if json.Unmarshal(value, r) != nil {
		return nil
	}
	return r
}

// elsewhere returns the state of an agent that is connected to another live replica, else 0.
func (p *Peers) elsewhere(r *row, head store.ClusterHead) State {
	live := p.cfg.Replicas.Live()
	switch {
	case r == nil || len(live) < 2 || !slices.Contains(live[1:], r.Replica):
		return 0
	case r.State == InSync && r.Revision < head.SpecRevision:
		return Syncing
	}
	return r.State
}

// Elsewhere returns the number of clusters whose agents are connected to another live replica.
func (p *Peers) Elsewhere() int { return len(p.ConnectedElsewhere("")) }

// facts returns the latest facts about the agents of a cluster, at any replica. An agent that is connected elsewhere
// counts more than one whose former subscription has just ended here.
func (e *peer) facts() Facts {
	f := e.Facts
	if e.row == nil {
		return f
	}
	if e.elsewhere || e.row.Seen.After(f.Seen) {
		f = e.row.Facts
		f.RefusedAt, f.Refusal = e.RefusedAt, e.Refusal
	}
	if e.row.RefusedAt.After(f.RefusedAt) {
		f.RefusedAt, f.Refusal = e.row.RefusedAt, e.row.Refusal
	}
	return f
}

// due is a row that is to be written. It is urgent if an agent has connected or disconnected. claims: the agent has
// connected here, so it counts as connected here and at no other replica.
type due struct{ urgent, claims bool }

// then returns what is due if a later event makes the row due again. A claim ends with a later urgent event that is none.
func (d due) then(later due) due {
	return due{urgent: d.urgent || later.urgent, claims: later.claims || d.claims && !later.urgent}
}

// taken is a row that was due and is being written.
type taken struct {
	store.Scope
	due
}

// mark makes the row of a cluster due. A single broker needs no rows. The caller holds mu.
func (p *Peers) mark(scope store.Scope, e *peer, d due) {
	if p.cfg.Replicas.Alone() && (e == nil || e.row == nil) {
		return
	}
	p.due[scope] = p.due[scope].then(d)
	p.unpublished.Ring()
}

// Follow applies changes of rows, which another replica may have written.
func (p *Peers) Follow(changes []store.Change) error {
	for i := range changes {
		dt, cluster, ok := store.ParseScopedName(rowPrefix, changes[i].Key.ResourceID)
		if changes[i].Part != store.BookmarkPart || !ok {
			continue
		}
		scope := store.Scope{DataType: dt, Cluster: cluster}
		if r := p.learn(scope); r != nil {
			p.agents.EndFormer(scope, r.Former)
		}
	}
	return nil
}

// learn reads the row of a cluster, and returns it if another replica wrote it. A cluster that this broker does not
// know yet gets its row later, when judge creates its entry.
func (p *Peers) learn(scope store.Scope) *row {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, revision := p.rowIn(scope)
	if e := p.all[scope]; e != nil {
		e.row, e.rowRevision = r, revision
		p.judge(scope)
		if p.agents.StateOf(scope, p.headOf(scope)) != 0 && !p.ours(r) && p.elsewhere(r, p.headOf(scope)) == 0 {
			p.mark(scope, e, due{urgent: true}) // another agent of the cluster has left its replica
		}
	}
	if r == nil || p.ours(r) {
		return nil
	}
	return r
}

// ours reports whether this broker wrote a row.
func (p *Peers) ours(r *row) bool {
	live := p.cfg.Replicas.Live()
	return r != nil && len(live) > 0 && r.Replica == live[0]
}

// replicasChanged updates all clusters: the agents of a replica that is gone are disconnected. A new replica has to
// learn of the agents that are connected here.
func (p *Peers) replicasChanged() {
	p.look()
	p.mu.Lock()
	defer p.mu.Unlock()
	for scope, e := range p.all {
		if !p.ours(e.row) && p.agents.StateOf(scope, p.headOf(scope)) != 0 {
			p.mark(scope, e, due{urgent: true})
		}
	}
}

// Publish writes the rows that are due, until ctx ends.
func (p *Peers) Publish(ctx context.Context) error {
	for refreshed := (time.Time{}); ctx.Err() == nil; {
		if p.unwritten() == 0 {
			taskgroup.Wait(ctx, p.unpublished)
		}
		if !taskgroup.Sleep(ctx, publishEvery) {
			break
		}
		all := p.cfg.Now().Sub(refreshed) >= refreshEvery
		if all {
			refreshed = p.cfg.Now()
		}
		if ops, rows := p.takeDue(all); len(ops) > 0 {
			outcomes, err := p.cfg.Store.Commit(ctx, ops)
			p.putBack(rows, func(i int) bool { return err != nil || outcomes[i].Result == store.ConditionFailed }) // the store reports its errors
		}
	}
	return nil
}

// takeDue removes rows that are due, the urgent ones, and all if all is true. It returns the ops that write them.
func (p *Peers) takeDue(all bool) (ops []store.Op, rows []taken) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := p.cfg.Replicas.Live()
	if len(live) == 0 {
		return nil, nil // they are read soon
	}
	for scope, d := range p.due {
		if len(ops) == rowsAtOnce {
			break
		}
		if !all && !d.urgent {
			continue
		}
		delete(p.due, scope)
		if op, ok := p.write(scope, d.claims, live[0]); ok {
			rows = append(rows, taken{scope, d})
			ops = append(ops, op)
		}
	}
	return ops, rows
}

// write returns the op that writes the row of a cluster. ok is false if the row is that of another replica, or has not
// changed. The caller holds mu.
//
// Scenario:
//
//	t1: an agent moves from replica A to replica B.
//	t2: B writes that the agent is connected there.
//	t3: A notices the end of its subscription.
//
// Without the check of elsewhere: A would write that the agent is disconnected. The op is conditional, because A may
// do that before it knows of t2. The claim of B is conditional too: A may have written, also at t2, former
// subscriptions that B has to end.
func (p *Peers) write(scope store.Scope, claims bool, self string) (op store.Op, ok bool) {
	name := store.ScopedName(rowPrefix, scope.DataType, scope.Cluster)
	before, exists := p.cfg.Store.Bookmark(name)
	op = store.Op{Kind: store.SetBookmark, Name: name, Conditional: true, IfRevision: before.Revision}
	e, head := p.all[scope], p.headOf(scope)
	if e != nil {
		op.IfRevision = e.rowRevision
	}
	if e == nil || p.cfg.Replicas.Alone() && !exists {
		return op, exists // there is no such cluster, or no replica that needs the row
	}
	r := row{Replica: self, Connection: p.agents.ConnectionOf(scope, head), Revision: head.SpecRevision, Former: e.former, Facts: e.facts()}
	if (r.State == 0 || !claims) && p.elsewhere(e.row, head) != 0 {
		return op, false
	}
	r.shorten(maxReported)
	value, err := json.Marshal(r)
	if len(value) > store.MaxBookmark { // former subscriptions also end by their own timeouts
		r.Former = nil
		r.shorten(0)
		value, err = json.Marshal(r)
	}
	op.Value = value
	return op, err == nil && !(exists && bytes.Equal(before.Value, value))
}

// shorten leaves at most n reports of each kind, and counts the others.
func (r *row) shorten(n int) {
	if more := len(r.Applied.Records) - n; more > 0 {
		r.Applied = codec.OrphanReport{Records: r.Applied.Records[:n], More: r.Applied.More + uint64(more)}
	}
	if more := len(r.Listed) - n; more > 0 {
		r.Listed = append(r.Listed[:n], Listed{More: more})
	}
}

// ConnectedElsewhere returns what the rows say about agents at other live replicas. The cluster "" selects all.
func (p *Peers) ConnectedElsewhere(cluster string) map[store.Scope]Connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[store.Scope]Connection{}
	for scope, e := range p.all {
		if (cluster == "" || scope.Cluster == cluster) && p.elsewhere(e.row, store.ClusterHead{}) != 0 {
			all[scope] = e.row.Connection
		}
	}
	return all
}

// putBack makes the rows due again that failed says were not written. A failed condition: another replica has written
// the row, and this one has still to learn of it.
func (p *Peers) putBack(rows []taken, failed func(i int) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range rows {
		if failed(i) {
			p.due[t.Scope] = t.then(p.due[t.Scope])
		}
	}
}

// unwritten returns the number of rows that are due.
func (p *Peers) unwritten() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.due)
}
