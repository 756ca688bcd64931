package sim

import (
	"math/rand/v2"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// This file removes works from the hub without their finalizer, and creates them again under their names.

// recreateWork removes one work without its finalizer, and creates it again. Its agent has received everything
// before. The cluster may be cut off while this happens.
func recreateWork(w *world, key string, b uint32) {
	order := rand.New(rand.NewPCG(uint64(b), 8))
	goOn := func() {
		for range 100 {
			if list := w.steps(); len(list) > 0 && w.broken == nil {
				w.perform(list[order.IntN(len(list))])
			} else {
				w.pass(100 * time.Millisecond)
			}
		}
	}
	goOn()
	o := w.hub.works[key]
	if w.broken != nil || o == nil || o.DeletionTimestamp != nil {
		return
	}
	var cut []*link
	for _, l := range w.links {
		if b%4 > 0 && l.id.Name == o.Namespace && !l.cut {
			l.cut = true
			l.dropIfAny("partition")
			cut = append(cut, l)
		}
	}
	w.hub.tear(key)
	w.hub.create(o.Namespace, o.Name, b>>8)
	if b/4%4 == 0 {
		return
	}
	goOn() // the broker receives both
	for _, l := range cut {
		l.cut = false
	}
}

// takenOver judges that a queued work takes over from a tombstone: no agent may have been sent the deletion.
// After a loss of the store, an earlier store may have sent it.
func (o *oracle) takenOver(op *store.Op, before *store.Meta) {
	id := op.Key.ResourceID
	o.forwarded[id] = true
	if o.forgot || o.w.hub.epoch > 0 {
		return
	}
	if o.notified[op.Key.Cluster+"/"+id] {
		o.w.fail("I3", "work %s was taken over, and an agent of %s was sent its deletion", id, op.Key.Cluster)
	}
	o.successors[id] = before.Queued.ResourceID
}

// removedOfTheNext judges the removal of an object of a deleted work. The object must not be one that the
// successor contains.
func (o *oracle) removedOfTheNext(where string, t *truth, name, id string) {
	next := o.successors[id]
	w := t.wanted[next]
	if w == nil || !w.live || w.objects[name] == nil || o.abandoned(where, next) || o.withoutAgain(where, t, next, name) {
		return
	}
	o.w.fail("I3", "%s: %s of work %s was deleted, and work %s took it over", where, name, id, next)
}

// takesName records a new record. Objects of its cluster under that name belong to it from now on.
func (o *oracle) takesName(op *store.Op) {
	for id, w := range o.clusters[op.Key.Cluster].wanted {
		if w.name == op.Name && id != op.Key.ResourceID {
			o.forwarded[id] = true
		}
	}
}
