package agent

import (
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Each state, after each event: what is known, and whether the stray is looked at as
// soon as the broker agrees, or its owner has compared.
func TestStray_EachPair(t *testing.T) {
	type looked struct{ read, inSync, compared, changed bool }
	want := [strayEvents]looked{
		foundNameless: {inSync: true, compared: true, changed: true}, // whoever compared
		foundOwned:    {compared: true, changed: true},
		readOwnerless: {read: true},
		readUnproven:  {read: true, compared: true, changed: true},
		readProven:    {read: true, compared: true},
		readAnothers:  {read: true},
	}
	for state := range strayStates {
		for event := range strayEvents {
			r := newRig(t)
			s := stray{source: "hub", state: state, told: codec.UnexplainedRecord{UID: "u"}}.after(event)
			if event == foundNameless || event == readOwnerless {
				s.source = ""
			}
			key := r.core.keyOf("web")
			got := looked{read: s.read()}
			if r.core.strays.evictable(key, s) {
				t.Errorf("state %d, event %d: without any evidence", state, event)
			}
			r.core.link.matched = true
			got.inSync = r.core.strays.evictable(key, s)
			r.core.link.compared = []string{"hub"}
			got.compared = r.core.strays.evictable(key, s)
			got.changed = got.compared && !strayRules[s.state].byItself
			if got != want[event] || s.told.UID != "u" {
				t.Errorf("state %d, event %d: %+v, want %+v", state, event, got, want[event])
			}
			r.core.persister.failing = true
			if r.core.strays.evictable(key, s) {
				t.Errorf("state %d, event %d: the state directory fails", state, event)
			}
		}
	}
}
