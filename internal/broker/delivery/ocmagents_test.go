package delivery

import "testing"

// t1 A spec and its deletion are committed, and the router lags. t2 The rest of an earlier life
// ends: what is sent is the record as it is, the last spec and its deletion. t3 The router comes
// to the deletion. Therefore it is known until then that the agent has both: the spec, sent once
// more, would bring the work back while the agent reports that it is gone.
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
