package agent

import (
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// For each event: whether the orphan was read, and whether the agent reads it. The agent reads it when it is in
// sync, or when its owner has synced.
func TestOrphanState_Transitions(t *testing.T) {
	type looked struct{ read, inSync, synced, changed bool }
	want := [numOrphanEvents]looked{
		discoveredUnowned: {inSync: true, synced: true, changed: true}, // whichever source has synced
		foundOwned:        {synced: true, changed: true},
		readUnowned:       {read: true},
		readUnverified:    {read: true, synced: true, changed: true},
		readVerified:      {read: true, synced: true},
		readOtherAgent:    {read: true},
	}
	for state := range numOrphanStates {
		for event := range numOrphanEvents {
			r := newRig(t)
			s := orphan{source: "hub", state: state, report: codec.OrphanRecord{UID: "u"}}.after(event)
			if event == discoveredUnowned || event == readUnowned {
				s.source = ""
			}
			key := r.core.keyOf("web")
			got := looked{read: s.read()}
			if r.core.orphans.evictable(key, s) {
				t.Errorf("state %d, event %d: without any evidence", state, event)
			}
			r.core.subscription.inSync = true
			got.inSync = r.core.orphans.evictable(key, s)
			r.core.subscription.syncedSources = []string{"hub"}
			got.synced = r.core.orphans.evictable(key, s)
			got.changed = got.synced && !orphanRules[s.state].byItself
			if got != want[event] || s.report.UID != "u" {
				t.Errorf("state %d, event %d: %+v, want %+v", state, event, got, want[event])
			}
			r.core.persister.failing = true
			if r.core.orphans.evictable(key, s) {
				t.Errorf("state %d, event %d: the state directory fails", state, event)
			}
		}
	}
}
