package hubsource

import (
	"k8s.io/apimachinery/pkg/types"
)

// A work that the informer shows with our finalizer, and of which the broker has
// no record, was put on its way by an earlier process. Either the broker lost it,
// or was never told; or the work was deleted to its end since, and the informer
// lags: then it would live on its cluster once more. So it is published only after
// the hub said that it is there. That holds for as long as this process serves its
// cluster: nobody else would take the finalizer off.
//
// After a broker lost its store there are thousands of such works. So the hub is
// asked for all of a cluster at once.

// ListAlive asks the hub which works of a namespace there are. The result carries
// them in Alive.
type ListAlive struct{ Namespace string }

func (ListAlive) effect() {}

// asking is what a cluster wants to know of its hub.
type asking struct {
	wanted bool // some work waits for it
	retry  retry
}

// alive reports whether it is certain that a work with our finalizer lives. If
// not, the hub is asked, and the work is woken when it said so.
func (c *Core) alive(w *work, cl *cluster) bool {
	if !c.comparison.on || w.spec.alive {
		return true
	}
	w.spec.unsure = true
	if !cl.alive.wanted {
		cl.alive.wanted = true
		c.cfg.Waker.Wake(SpecLane, Key{Cluster: cl.name}, 0)
	}
	return false
}

// nextAlive decides about asking the hub which works of a cluster there are.
func (c *Core) nextAlive(cl *cluster) Effect {
	if !cl.alive.wanted || !c.comparison.on || !c.mayTell(cl) {
		return nil
	}
	for _, w := range cl.works {
		if w.spec.waitsForWord() && !w.gone {
			if !c.due(SpecLane, Key{Cluster: cl.name}, &cl.alive.retry) {
				return nil
			}
			return ListAlive{Namespace: cl.name}
		}
	}
	cl.alive = asking{}
	return nil
}

func (s *specState) waitsForWord() bool { return s.unsure && !s.alive }

func (c *Core) doneListAlive(e ListAlive, r Result) {
	cl := c.clusters[e.Namespace]
	if cl == nil {
		return
	}
	if r.Err != nil {
		c.hubFailed(SpecLane, Key{Cluster: cl.name}, &cl.alive.retry, r.Err)
		return
	}
	missing := false
	for uid, w := range cl.works {
		switch {
		case !w.spec.waitsForWord():
		case r.Alive[uid]:
			w.spec.alive = true
			c.wake(SpecLane, w, 0)
		default:
			missing = true
		}
	}
	if !missing {
		cl.alive = asking{}
		return
	}
	// The informer is about to say that they are gone, or being deleted; or the hub
	// went back in time, and has them again.
	c.failed(SpecLane, Key{Cluster: cl.name}, &cl.alive.retry, missingDelay)
}

// unsureAgain takes it that others may do with the works of a cluster what they
// like, from now on.
func (c *Core) unsureAgain(cl *cluster) {
	cl.alive = asking{}
	for _, w := range cl.works {
		w.spec.alive, w.spec.unsure = false, false
	}
}

// Alive are the uids of works that are not being deleted.
type Alive map[types.UID]bool
