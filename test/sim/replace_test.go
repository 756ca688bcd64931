package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// This file replaces clusters by others of the same name.

// everyAgent returns all running Hawser agents.
func (w *world) everyAgent() []*agentNode { return slices.Concat(w.agents, w.former) }

// replaceCluster replaces a cluster by an empty one. Its agent may find the state directory of the previous
// agent, which may still run for a while. An OCM agent does not report its cluster's uid, so only one OCM agent
// runs.
func replaceCluster(w *world, a, b uint32) string {
	i := int(a) % len(clusters)
	if i == len(w.agents) {
		w.ocmAgent.replace()
		return w.ocmAgent.name
	}
	old := w.agents[i]
	for _, o := range slices.Clone(w.former) {
		if o.name == old.name {
			w.end(o)
		}
	}
	w.replacements++
	now := newAgent(w, old.name, w.replacements)
	now.clock, now.latest = otherClock(old.clock, b/16), old.latest
	now.keepTime()
	what := now.title
	switch {
	case old.dir == nil:
	case b%4 == 0:
		now.dir = newStateDir()
	default:
		now.dir = old.dir.backup()
		what += " with the state directory of the one before"
	}
	w.agents[i] = now
	if b/4%2 == 0 {
		w.end(old)
	} else {
		old.down, old.budget = false, -1
		old.link.cut, old.link.slow = false, false
		w.former = append(w.former, old)
		what += ", which still runs"
	}
	now.start()
	return what
}

// end ends the agent of a replaced cluster permanently.
func (w *world) end(a *agentNode) {
	a.process++
	if a.link.conn != nil {
		a.link.leave(unavailable("the machine is gone"))
	}
	w.oracle.processEnded(a)
	w.links = slices.DeleteFunc(w.links, func(l *link) bool { return l == a.link })
	w.former = slices.DeleteFunc(w.former, func(o *agentNode) bool { return o == a })
}

// replaced reports whether a link belongs to a replaced cluster.
func (w *world) replaced(l *link) bool {
	return slices.ContainsFunc(w.former, func(a *agentNode) bool { return a.link == l })
}

// quarantined returns the agents whose names belong to other clusters in the view of the broker.
func (w *world) quarantined() (list []*agentNode) {
	for _, a := range w.agents {
		if w.oracle.quarantined(a.link) {
			list = append(list, a)
		}
	}
	return list
}

// letIn accepts the quarantined clusters, once their agents have connected. If the agent of a third cluster
// connected last, that one is accepted first, and rejected the next time.
func (w *world) letIn() string {
	if !w.broker.up || w.broker.disk.Load() != diskAmple {
		return ""
	}
	var did []string
	for _, a := range w.quarantined() {
		comes := false
		b := w.broker.broker
		err := b.ListDiscrepancies(&hawserv1.ListDiscrepanciesRequest{Cluster: a.name}, admincall.To(context.Background(), func(o *hawserv1.ListDiscrepanciesResponse) error {
			comes = comes || o.GetCause() == hawserv1.DiscrepancyCause_DISCREPANCY_CAUSE_QUARANTINED
			return nil
		}))
		if err == nil && comes {
			_, err = b.UnbindCluster(admincall.By(context.Background(), identity.Identity{Role: identity.Operator, Name: "op"}), &hawserv1.UnbindClusterRequest{Cluster: a.name})
			did = append(did, a.title+" is let in")
		}
		if err != nil {
			w.fail("I1", "the operator cannot let %s in: %v", a.title, err)
		}
	}
	return strings.Join(did, ", ")
}

// quarantined reports whether the name of an agent's cluster is bound to another cluster.
func (o *oracle) quarantined(l *link) bool {
	uid, known := o.w.store().Subscribed(codec.ManifestBundles, l.id.Name)
	return known && uid != "" && l.uid != "" && uid != l.uid
}

// noteReport records that an agent was accepted. A broker that lost its store may accept the agent of a
// replaced cluster. An operator corrects that later. Reports of the other cluster that were not committed are
// lost: the broker must no longer accept them.
func (o *oracle) noteReport(l *link) {
	if o.forgot && o.w.replaced(l) {
		o.usurped[l.id.Name] = true
	}
	if l.uid != "" && o.speaker[l.id.Name] != l.uid {
		o.speaker[l.id.Name] = l.uid
		o.forgetReports(l.id.Name)
	}
}

// confirmedByFormer records a committed status. A replaced cluster may report that a work is gone, and a broker
// that lost its store cannot detect that. So the cluster that has the name now is never sent the deletion.
func (o *oracle) confirmedByFormer(op *store.Op) {
	where := op.Key.Cluster
	if !op.Deleted || !o.usurped[where] {
		return
	}
	if w := o.clusters[where].wanted[op.Key.ResourceID]; w != nil {
		o.mayStay[root(w.epoch)] = true
		o.clusters[where].sharedMayStay = true
	}
}

// arrived records that a publish reaches the broker.
func (o *oracle) arrived(c *call) {
	if c.conn.link.uid != "" {
		o.taken[c.event.ID()] = o.taken[c.event.ID()] || !o.quarantined(c.conn.link)
	}
}

// speaks judges a committed status: it must come from the cluster that has the name.
func (o *oracle) speaks(op *store.Op) {
	e, err := codec.Unmarshal(op.Event)
	if err != nil {
		panic(err)
	}
	if taken, known := o.taken[e.ID()]; known && !taken {
		o.w.fail("I8", "a status of work %s was taken from a cluster that was replaced", op.Key.ResourceID)
	}
}

// checkReplaced checks that the present clusters have their names, and that no agent of a replaced one is
// connected.
func (w *world) checkReplaced() {
	for _, a := range w.quarantined() {
		w.fail("I1", "%s has not got its name", a.title)
	}
	for _, a := range w.former {
		if a.link.conn != nil {
			w.fail("I8", "%s, which was replaced, is connected", fmt.Sprint(a.title, " ", a.uid))
		}
	}
}
