package delivery

import "testing"

// Scenario:
//
//	t1: a spec and its deletion are committed, and the router lags behind.
//	t2: a holdback for an earlier work with the id ends; the record is sent in its current form: the last spec
//	and its deletion.
//	t3: the router reaches the deletion.
//
// Result: until t3 the stream remembers that the agent has both, and sends the spec only once. A second spec
// would restore the work while the agent reports it as deleted.
func TestOCMAgent_RemembersADeletionUntilTheRouterCatchesUp(t *testing.T) {
	k := ocmAgentState{answered: 3, deleted: map[string]uint64{"w": 7}, early: map[string]bool{"w": true}}
	k.routed(2)
	if !k.early["w"] {
		t.Error("what came before the comparison is forgotten before the router is past that")
	}
	k.routed(6)
	if k.early["w"] || k.deleted["w"] != 7 {
		t.Errorf("early %v, deleted %v", k.early, k.deleted)
	}
	k.routed(7)
	if len(k.deleted) != 0 {
		t.Errorf("still there: %v", k.deleted)
	}
}
