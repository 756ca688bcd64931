package core

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// What only the broker has is no deletion. It is deleted, on the condition that its
// record has not changed, when nothing casts doubt on the hub: all clusters are
// judged, no work is older than its record, the hub itself says that it does not
// have it, and is still where it should be after that.

// missing is what only the broker has of a cluster, and is still to be dealt with.
type missing struct {
	// records are left of candidates; live is how many records there were. Of the
	// first absent ones the hub said that it does not have them either. That counts
	// when it was asked afterwards where it is, for it may have gone back just before.
	records          []codec.InventoryRecord
	candidates, live int
	absent           int
	// later: something only the broker has waits there behind a deletion.
	later bool
	// withheld are deletions that are left to a person, for a reason.
	withheld []codec.WithheldDeletion
	reason   string
}

// begin takes what a comparison found; it reports whether there is anything.
func (m *missing) begin(plan resync.Works) bool {
	*m = missing{records: plan.Missing, candidates: len(plan.Missing), live: plan.Live, later: plan.Later > 0}
	return m.candidates > 0
}

// none reports whether nothing is left, for us or for a person.
func (m *missing) none() bool { return len(m.records) == 0 && len(m.withheld) == 0 && !m.later }

// nextMissing decides about works that only the broker has.
func (c *comparisons) nextMissing(cl *cluster) Effect {
	k, m := &cl.comparing, &cl.comparing.missing
	switch {
	case len(m.records) == 0:
		c.conclude(cl)
		return nil
	case c.unjudged > 0 || !c.inventory.complete || !c.lives.located():
		return nil
	case c.f.behind > 0 && c.lives.doubts(everywhere) == "": // a work that is may cast doubt on the hub
		return nil
	}
	if reason := c.doubts(cl); reason != "" {
		c.withhold(cl, reason)
		return nil
	}
	switch r := m.records[min(m.absent, len(m.records)-1)]; {
	case !c.f.ready(cl.key(), &k.retry):
		return nil
	case m.absent == len(m.records):
		return Delete{Record: m.records[0], Order: c.f.nextOrder(), attempt: k.attempt}
	case len(m.records) > maxGets:
		return List{Namespace: cl.name, attempt: k.attempt}
	default:
		return Get{UID: uidOf(r.ResourceID), Namespace: cl.name, Name: r.Name, attempt: k.attempt}
	}
}

// doubts returns why nothing may be deleted on a cluster because it is missing, ""
// when it may be.
func (c *comparisons) doubts(cl *cluster) string {
	m := &cl.comparing.missing
	if reason := c.lives.doubts(everywhere); reason != "" {
		return reason
	}
	if !resync.MayDelete(m.candidates, m.live) {
		c.lives.distrust(cl.name)
		return fmt.Sprintf("%d of %d works are missing on the hub at once", m.candidates, m.live)
	}
	return c.lives.doubts(cl.name)
}

// inRound returns the cluster that a result is for, nil if it comes too late.
func (c *comparisons) inRound(name string, attempt int) *cluster {
	cl := c.f.clusters[name]
	if cl == nil || cl.comparing.attempt != attempt || len(cl.comparing.missing.records) == 0 {
		return nil
	}
	return cl
}

func (c *comparisons) doneGet(e Get, r Result) {
	cl := c.inRound(e.Namespace, e.attempt)
	switch {
	case cl == nil:
	case apierrors.IsNotFound(r.Err), r.Err == nil && r.Work.UID != e.UID:
		c.isAbsent(cl, 1)
	case r.Err != nil:
		c.f.hubFailedIn(SpecLane, cl.key(), &cl.comparing.retry, r.Err)
	default: // only the informer does not have it yet
		c.lives.shown(r.Work)
		c.repeat(cl, missingDelay)
	}
}

func (c *comparisons) doneList(e List, r Result) {
	cl := c.inRound(e.Namespace, e.attempt)
	switch {
	case cl == nil:
	case r.Err != nil:
		c.f.hubFailedIn(SpecLane, cl.key(), &cl.comparing.retry, r.Err)
	case slices.ContainsFunc(cl.comparing.missing.records, func(m codec.InventoryRecord) bool { return r.Present[uidOf(m.ResourceID)] != "" }):
		c.repeat(cl, missingDelay)
	default:
		c.isAbsent(cl, len(cl.comparing.missing.records)-cl.comparing.missing.absent)
	}
}

// isAbsent takes it that the hub does not have the next n either.
func (c *comparisons) isAbsent(cl *cluster, n int) {
	m := &cl.comparing.missing
	cl.comparing.retry.reset()
	if m.absent += n; m.absent == len(m.records) {
		c.lives.locateNow() // see missing.records
	}
	c.f.wakeCluster(SpecLane, cl)
}

func (c *comparisons) doneDelete(e Delete, r Result) {
	cl := c.inRound(e.Record.Cluster, e.attempt)
	switch {
	case cl == nil:
	case r.Err == nil:
		c.resolved(cl)
	case transport.CodeOf(r.Err) == transport.CodeConflict:
		c.repeat(cl, 0)
	case transport.Retryable(r.Err):
		c.f.brokerFailed(cl.key(), &cl.comparing.retry, r.Err)
	default: // it is another source's by now, or beyond us; the shell has logged it
		c.resolved(cl)
	}
}

// resolved goes on with the next that is missing.
func (c *comparisons) resolved(cl *cluster) {
	m := &cl.comparing.missing
	for _, w := range cl.works { // what waited for its name
		if w.name() == m.records[0].Name {
			c.f.wake(SpecLane, w.key(), 0)
		}
	}
	m.records, m.absent = m.records[1:], m.absent-1
	cl.comparing.retry.reset()
	c.f.wakeCluster(SpecLane, cl)
}

// withhold leaves what is missing to a person.
func (c *comparisons) withhold(cl *cluster, reason string) {
	m := &cl.comparing.missing
	m.reason = reason
	for _, r := range m.records {
		m.withheld = append(m.withheld, codec.WithheldDeletion{ResourceID: r.ResourceID, Name: r.Name, Revision: r.Revision})
	}
	m.records = nil
	c.conclude(cl)
}

// conclude ends the comparison of a cluster.
func (c *comparisons) conclude(cl *cluster) {
	c.setStage(cl, concluded)
	if len(cl.comparing.missing.withheld) == 0 {
		c.lives.trust(cl.name)
	}
	c.tellSoon(cl)
}

// withholds reports whether the deletion of a work is left to a person.
func (m *missing) withholds(id string) bool {
	return slices.ContainsFunc(m.withheld, func(w codec.WithheldDeletion) bool { return w.ResourceID == id })
}

// has reports whether the deletion of a work is still to be decided about, by us
// or by a person, because only the broker had it.
func (m *missing) has(id string) bool {
	return m.withholds(id) || slices.ContainsFunc(m.records, func(r codec.InventoryRecord) bool { return r.ResourceID == id })
}

// nameWaits reports whether a work is still to be deleted that has a name, by us or
// by a person.
func (c *comparisons) nameWaits(cl *cluster, name string) bool {
	m := &cl.comparing.missing
	return slices.ContainsFunc(m.records, func(r codec.InventoryRecord) bool { return r.Name == name }) ||
		slices.ContainsFunc(m.withheld, func(w codec.WithheldDeletion) bool { return w.Name == name })
}
