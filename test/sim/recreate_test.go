package sim

import (
	"math/rand/v2"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// Works that are torn off the hub and made anew under their names.

// recreateWork does that with a work whose cluster is cut off meanwhile, or not, after
// its agent had time to take what there was.
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
	goOn() // the broker hears of both
	for _, l := range cut {
		l.cut = false
	}
}

// takenOver judges that a work which waits takes over from a tombstone: no agent
// may have been told of the deletion. After a loss of the store one may have been,
// by a store that nobody remembers.
func (o *oracle) takenOver(op *store.Op, before *store.Meta) {
	id := op.Key.ResourceID
	o.forwarded[id] = true
	if o.forgot || o.w.hub.epoch > 0 {
		return
	}
	if o.notified[op.Key.Cluster+"/"+id] {
		o.w.fail("I3", "work %s was taken over, and an agent of %s was told that it is deleted", id, op.Key.Cluster)
	}
	o.successors[id] = before.Queued.ResourceID
}

// removedOfTheNext judges that an object of a work that is gone was deleted: not
// one that the work which took over wants.
func (o *oracle) removedOfTheNext(where string, t *truth, name, id string) {
	next := o.successors[id]
	w := t.wanted[next]
	if w == nil || !w.live || w.objects[name] == nil || o.abandoned(where, next) || o.withoutAgain(where, t, next, name) {
		return
	}
	o.w.fail("I3", "%s: %s of work %s was deleted, and work %s took it over", where, name, id, next)
}

// takesName hears of a new record: what its cluster has under that name is its own from now on.
func (o *oracle) takesName(op *store.Op) {
	for id, w := range o.clusters[op.Key.Cluster].wanted {
		if w.name == op.Name && id != op.Key.ResourceID {
			o.forwarded[id] = true
		}
	}
}
