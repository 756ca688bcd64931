package core

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// A record without a work on the hub is no proof of a deletion. It is deleted, if the record has not changed,
// when there is no rollback suspicion. Four conditions must hold. All clusters are compared. No work is older
// than its record. The hub itself returned that it lacks the work. The position of the hub, read after that, is
// as expected.

// missing are the records of a cluster without a work on the hub, and the progress of their deletion.
type missing struct {
	// records are the undecided records among candidates; live is the number of live records. The hub has
	// confirmed that it lacks the first absent ones. That is valid once its position was read afterwards, because
	// the hub may have gone back just before.
	records          []codec.InventoryRecord
	candidates, live int
	absent           int
	// later: a record without a work is queued behind a deletion.
	later bool
	// withheld are the withheld deletions, for one reason.
	withheld []codec.WithheldDeletion
	reason   string
	// replacing are the works that take the name of another record. Until such a work has the name, that record
	// counts as missing.
	replacing []*work
}

// begin stores the result of a comparison and reports whether any record has no work.
func (m *missing) begin(plan resync.Works) bool {
	*m = missing{records: plan.Missing, candidates: len(plan.Missing), live: plan.Live, later: plan.QueuedBehindDeletion > 0}
	return m.candidates > 0
}

// none reports whether no record is left, neither for this source nor for the operator.
func (m *missing) none() bool { return len(m.records) == 0 && len(m.withheld) == 0 && !m.later }

// isFinal reports whether no record is left, and none can still turn out to be missing on this subscription.
func (m *missing) isFinal(sub int) bool {
	replaces := func(w *work) bool { return w.broker.sub == sub && w.broker.displaces }
	return m.none() && !slices.ContainsFunc(m.replacing, replaces)
}

// nextMissing decides the next step for the records without a work.
func (c *clusterSync) nextMissing(cl *cluster) *todo {
	k, m := &cl.comparing, &cl.comparing.missing
	switch {
	case len(m.records) == 0:
		c.conclude(cl)
		return nil
	case c.unjudged > 0 || !c.inventory.complete || !c.epochs.positionRead():
		return nil
	case c.f.behind > 0 && c.epochs.rollbackSuspicion(everywhere) == "": // a work that is behind may cause a rollback suspicion
		return nil
	}
	if reason := c.epochs.suspicionOfMissing(cl.name, m.candidates, m.live); reason != "" {
		c.withhold(cl, reason)
		return nil
	}
	switch left := m.records[m.absent:]; {
	case !c.f.ready(cl.key(), &k.retry):
		return nil
	case len(left) == 0:
		return c.of(cl, Delete{Record: m.records[0], Fence: c.f.nextOrder()}, func(r Result) { c.doneDelete(cl, r) })
	case len(m.records) > maxGets:
		return c.of(cl, List{Namespace: cl.name}, func(r Result) {
			has := func(m codec.InventoryRecord) bool { return r.Present[types.UID(m.ResourceID)] != "" }
			c.sought(cl, len(left), slices.ContainsFunc(m.records, has), r.Err)
		})
	default:
		uid := types.UID(left[0].ResourceID)
		return c.of(cl, Get{UID: uid, Namespace: cl.name, Name: left[0].Name}, func(r Result) {
			if r.isAbsent(uid) {
				r = Result{}
			} else if r.Work != nil {
				c.epochs.shown(r.Work)
			}
			c.sought(cl, 1, r.Work != nil, r.Err)
		})
	}
}

// of drops a result that belongs to an earlier comparison of the cluster.
func (c *clusterSync) of(cl *cluster, e Effect, done func(Result)) *todo {
	attempt := cl.comparing.attempt
	return c.f.ofCluster(cl, e, func(r Result) {
		if cl.comparing.attempt == attempt && len(cl.comparing.missing.records) > 0 {
			done(r)
		}
	})
}

// sought handles the hub's answer about the next n records; has: the hub has at least one of their works.
func (c *clusterSync) sought(cl *cluster, n int, has bool, err error) {
	switch {
	case err != nil:
		c.f.hubFailed(BrokerQueue, cl.key(), &cl.comparing.retry, err)
	case has: // only the informer lacks it
		c.repeat(cl, missingDelay)
	default:
		m := &cl.comparing.missing
		cl.comparing.retry.reset()
		if m.absent += n; m.absent == len(m.records) {
			c.epochs.readPositionNow() // see missing.records
		}
		c.f.wakeCluster(BrokerQueue, cl)
	}
}

func (c *clusterSync) doneDelete(cl *cluster, r Result) {
	switch {
	case r.Err == nil:
		c.resolved(cl)
	case transport.CodeOf(r.Err) == transport.CodeConflict:
		c.repeat(cl, 0)
	case c.f.brokerFailed(cl.key(), &cl.comparing.retry, r.Err):
	default: // another source owns the record now, or the broker refuses the deletion; the shell has logged the error
		c.resolved(cl)
	}
}

// resolved continues with the next record.
func (c *clusterSync) resolved(cl *cluster) {
	m := &cl.comparing.missing
	for _, w := range cl.works { // works that waited for the name
		if w.name() == m.records[0].Name {
			c.f.wake(BrokerQueue, w.key(), 0)
		}
	}
	m.records, m.absent = m.records[1:], m.absent-1
	cl.comparing.retry.reset()
	c.f.wakeCluster(BrokerQueue, cl)
}

// withhold leaves all missing records to the operator.
func (c *clusterSync) withhold(cl *cluster, reason string) {
	m := &cl.comparing.missing
	m.reason = reason
	for _, r := range m.records {
		m.withheld = append(m.withheld, codec.WithheldDeletion{ResourceID: r.ResourceID, Name: r.Name, Revision: r.Revision})
	}
	m.records = nil
	c.conclude(cl)
}

// conclude ends the comparison of a cluster.
func (c *clusterSync) conclude(cl *cluster) {
	c.setStage(cl, stageConcluded)
	if cl.comparing.missing.isFinal(c.f.sub) {
		c.epochs.clearSuspicion(cl.name)
	}
	c.reportSoon(cl)
}

// withholds reports whether the deletion of a work is withheld.
func (m *missing) withholds(id string) bool {
	return slices.ContainsFunc(m.withheld, func(w codec.WithheldDeletion) bool { return w.ResourceID == id })
}

// has reports whether the deletion of a work is undecided, by this source or by the operator, because only the
// broker had it.
func (m *missing) has(id string) bool {
	return m.withholds(id) || slices.ContainsFunc(m.records, func(r codec.InventoryRecord) bool { return r.ResourceID == id })
}

// nameIsQueued reports whether a missing work with this name is still to be deleted, by this source or by the
// operator.
func (c *clusterSync) nameIsQueued(cl *cluster, name string) bool {
	m := &cl.comparing.missing
	return slices.ContainsFunc(m.records, func(r codec.InventoryRecord) bool { return r.Name == name }) ||
		slices.ContainsFunc(m.withheld, func(w codec.WithheldDeletion) bool { return w.Name == name })
}
