package store

import (
	"iter"

	"github.com/hawser-io/hawser/internal/broker/quota"
)

// Sizes are the bytes of a record's payloads. They are 0 if the record was last written by a release that did
// not count sizes.
type Sizes struct{ Spec, Status, Queued int }

// UseOf returns the quota use of a record. m may be nil. A queued spec later replaces its tombstone, so only
// its bytes are counted.
func UseOf(m *Meta) quota.Amount {
	if m == nil {
		return quota.Amount{}
	}
	u := quota.Amount{Records: 1, Bytes: int64(m.Sizes.Spec + m.Sizes.Queued), Statuses: int64(m.Sizes.Status)}
	if m.State != ConfirmedTombstone {
		u.Works = 1
	}
	return u
}

// Uses returns the changes of quota use that a decision makes.
func (d *Decision) Uses() iter.Seq[quota.Change] {
	return func(yield func(quota.Change) bool) {
		for i := range d.Writes {
			if !d.Writes[i].uses(yield) {
				return
			}
		}
	}
}

// uses yields one change, or two if the owner changes: one per owner. It returns false if yield returned false.
func (w *Write) uses(yield func(quota.Change) bool) bool {
	cluster := w.Key.Cluster
	if w.Old != nil && w.New != nil && w.Old.Owner == w.New.Owner {
		return yield(quota.Change{Source: w.Old.Owner, Cluster: cluster, By: UseOf(w.New).Minus(UseOf(w.Old))})
	}
	return (w.Old == nil || yield(quota.Change{Source: w.Old.Owner, Cluster: cluster, By: quota.Amount{}.Minus(UseOf(w.Old))})) &&
		(w.New == nil || yield(quota.Change{Source: w.New.Owner, Cluster: cluster, By: UseOf(w.New)}))
}

// Admit returns d, or the result QuotaExceeded if d would exceed the op's quota. u is the use after the earlier ops
// of the batch.
func Admit(u quota.UsageReader, op *Op, d Decision) Decision {
	if op.Quota == nil || len(d.Writes) == 0 {
		return d
	}
	var more quota.Amount
	for c := range d.Uses() {
		more = more.Plus(c.By)
	}
	var excess quota.Excess
	switch {
	case op.Kind == PutSpec:
		if op.Deleting { // only a new record adds use
			more = quota.Amount{Records: more.Records}
		}
		excess = op.Quota.Exceeded(u, op.Owner, op.Key.Cluster, more)
	case op.Kind == PutStatus && !op.Deleted:
		excess = op.Quota.Reported(u, op.Key.Cluster, more)
	}
	if excess == (quota.Excess{}) {
		return d
	}
	head := d.Outcome.Head - uint64(len(d.Changes))
	return Decision{Outcome: Outcome{Result: QuotaExceeded, Excess: excess, Head: head}}
}

// sizes returns the sizes of a record that replaces old.
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
