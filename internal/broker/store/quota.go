package store

import (
	"iter"

	"github.com/hawser-io/hawser/internal/broker/quota"
)

// Sizes are the bytes of a record's payloads. Those of a record that was last written by a
// release that did not count them are 0.
type Sizes struct{ Spec, Status, Queued int }

// UseOf returns what a record counts for; m may be nil. What waits behind a tombstone takes its
// place, so it counts by its bytes only.
func UseOf(m *Meta) quota.Use {
	if m == nil {
		return quota.Use{}
	}
	u := quota.Use{Records: 1, Bytes: int64(m.Sizes.Spec + m.Sizes.Queued), Statuses: int64(m.Sizes.Status)}
	if m.State != ConfirmedTombstone {
		u.Works = 1
	}
	return u
}

// Uses are the changes of use that a decision makes.
func (d *Decision) Uses() iter.Seq[quota.Change] {
	return func(yield func(quota.Change) bool) {
		for i := range d.Writes {
			if !d.Writes[i].uses(yield) {
				return
			}
		}
	}
}

// uses yields one change, or, where the owner changes, one of each; false: no more are wanted.
func (w *Write) uses(yield func(quota.Change) bool) bool {
	cluster := w.Key.Cluster
	if w.Old != nil && w.New != nil && w.Old.Owner == w.New.Owner {
		return yield(quota.Change{Source: w.Old.Owner, Cluster: cluster, By: UseOf(w.New).Minus(UseOf(w.Old))})
	}
	return (w.Old == nil || yield(quota.Change{Source: w.Old.Owner, Cluster: cluster, By: quota.Use{}.Minus(UseOf(w.Old))})) &&
		(w.New == nil || yield(quota.Change{Source: w.New.Owner, Cluster: cluster, By: UseOf(w.New)}))
}

// Admit returns d, or, where it would take more than the op's quota allows, a refusal in its
// place. u is the use that the earlier ops of the batch left.
func Admit(u quota.UsageReader, op *Op, d Decision) Decision {
	if op.Quota == nil || len(d.Writes) == 0 {
		return d
	}
	var more quota.Use
	for c := range d.Uses() {
		more = more.Plus(c.By)
	}
	var excess quota.Excess
	switch {
	case op.Kind == PutSpec:
		if op.Deleting { // only a record that was not there is something new
			more = quota.Use{Records: more.Records}
		}
		excess = op.Quota.Exceeded(u, op.Owner, op.Key.Cluster, more)
	case op.Kind == PutStatus && !op.Deleted:
		excess = op.Quota.Reported(u, op.Key.Cluster, more)
	}
	if excess == (quota.Excess{}) {
		return d
	}
	head := d.Outcome.Head - uint64(len(d.Changes))
	return Decision{Outcome: Outcome{Result: OverQuota, Excess: excess, Head: head}}
}

// sizes are those of a record that takes the place of old.
func (p *plan) sizes(old *Meta, spec, status, waiting Payload) Sizes {
	var before, own Sizes
	if old != nil {
		before = old.Sizes
	}
	if p.Record != nil {
		own = p.Record.Sizes
	}
	size := func(from Payload, kept int) int {
		switch from {
		case Keep:
			return kept
		case FromOp:
			return len(p.op.Event)
		case FromQueued:
			return own.Queued
		case Clear:
		}
		return 0
	}
	return Sizes{Spec: size(spec, before.Spec), Status: size(status, before.Status), Queued: size(waiting, before.Queued)}
}
