package agent

import (
	"maps"
	"slices"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
)

// sharedObjects has the AppliedManifestWorks of this and of other hubs, by name, as last read. An object in two
// of them stays when one of the works is deleted. Guarded by works.mu.
type sharedObjects struct {
	own, foreign map[string]*appliedwork.Record
}

// shared returns the names of AppliedManifestWorks of other hubs that have objects of this hub's works.
func (n *sharedObjects) shared() []string {
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

// noteForeign records an AppliedManifestWork that was read and belongs to no work of this hub; nil if it is
// gone.
func (s *orphans) noteForeign(key string, rec *appliedwork.Record) {
	if _, ours := s.workName(key); ours {
		return
	}
	if rec == nil {
		delete(s.foreign, key)
	} else {
		s.foreign[key] = rec
	}
}

// noteOwn records the AppliedManifestWork of a key after a reconciliation, and whether its grace period runs.
// wanted: there is something to do for the key.
func (s *orphans) noteOwn(key string, rec *appliedwork.Record, wanted bool) {
	if rec != nil && !rec.EvictionStart().IsZero() && !rec.Deleting() {
		s.graces[key] = true
	} else {
		delete(s.graces, key)
	}
	switch _, ours := s.workName(key); {
	case !ours:
	case rec != nil && wanted:
		s.own[key] = rec
	case !wanted:
		delete(s.own, key)
	}
}
