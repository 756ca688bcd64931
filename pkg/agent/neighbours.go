package agent

import (
	"maps"
	"slices"

	"github.com/hawser-io/hawser/pkg/agent/inventory"
)

// neighbours are the AppliedManifestWorks of this hub and of others, by name, as
// they were read last: an object that is on both lists stays when one of the two
// works goes. Guarded by Core.mu.
type neighbours struct {
	own, foreign map[string]*inventory.Record
}

// shared returns the names of those of other hubs that have objects of this
// one's works. c.mu is held.
func (n *neighbours) shared() []string {
	theirs := map[string][]string{}
	for name, rec := range n.foreign {
		for _, e := range rec.Entries() {
			if e.UID != "" {
				theirs[e.UID] = append(theirs[e.UID], name)
			}
		}
	}
	if len(theirs) == 0 {
		return nil
	}
	names := map[string]bool{}
	for _, rec := range n.own {
		for _, e := range rec.Entries() {
			for _, name := range theirs[e.UID] {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// noteNeighbour notes an AppliedManifestWork that was read and that no work of
// this hub claims.
func (r *reconciliation) noteNeighbour() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ours := r.workName(r.key); ours {
		return
	}
	if r.record == nil {
		delete(r.foreign, r.key)
	} else {
		r.foreign[r.key] = r.record
	}
}

// noteOwn notes the AppliedManifestWork of a work of this hub after a reconciliation.
// c.mu is not held.
func (c *Core) noteOwn(r *reconciliation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch _, ours := c.workName(r.key); {
	case !ours:
	case r.record != nil && !r.view.Empty():
		c.own[r.key] = r.record
	case r.view.Empty():
		delete(c.own, r.key)
	}
}
