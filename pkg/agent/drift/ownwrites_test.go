package drift_test

import (
	"testing"

	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// TestOwnWrites: the writes of an owner are no changes, whether the answer or the event is first. Other changes are
// reported.
func TestOwnWrites(t *testing.T) {
	const owner = "work"
	ref := kubeclient.Ref{Name: "a"}
	type step struct {
		// do is "begin", "wrote", "expect", "see" or "end", of a state.
		do, state string
		// reported: the owner is notified at this step.
		reported bool
	}
	for name, steps := range map[string][]step{
		"the event is before the answer": {{"expect", "1", false}, {"begin", "", false}, {"see", "2", false}, {"wrote", "2", false}, {"expect", "2", false}, {"end", "", false}},
		"the answer is before the event": {{"expect", "1", false}, {"begin", "", false}, {"wrote", "2", false}, {"see", "2", false}, {"expect", "2", false}, {"end", "", false}},
		"the event is after the end":     {{"expect", "1", false}, {"begin", "", false}, {"wrote", "2", false}, {"expect", "2", false}, {"end", "", false}, {"see", "2", false}},
		"two writes, seen late": {
			{"expect", "1", false}, {"begin", "", false}, {"wrote", "2", false}, {"wrote", "3", false}, {"expect", "3", false}, {"end", "", false},
			{"see", "2", false}, {"see", "3", false}, {"see", "4", true},
		},
		"two writes, seen in the next pass": {
			{"expect", "1", false}, {"begin", "", false}, {"wrote", "2", false}, {"wrote", "3", false}, {"expect", "3", false}, {"end", "", false},
			{"begin", "", false}, {"see", "2", false}, {"end", "", false}, {"see", "3", false},
		},
		"a pass that fails before it expects a version": {
			{"expect", "1", false}, {"begin", "", false}, {"see", "2", false}, {"wrote", "2", false}, {"end", "", false}, {"see", "3", true},
		},
		"another writes meanwhile, after": {
			{"expect", "1", false}, {"begin", "", false}, {"wrote", "2", false}, {"see", "2", false}, {"see", "3", false}, {"expect", "2", false}, {"end", "", true},
		},
		"another writes meanwhile, before": {
			{"expect", "1", false}, {"begin", "", false}, {"see", "2", false}, {"wrote", "3", false}, {"see", "3", false}, {"expect", "3", false}, {"end", "", false},
		},
		"another writes while nothing is written": {{"expect", "1", false}, {"see", "2", true}},
		"the object goes meanwhile": {
			{"expect", "1", false}, {"begin", "", false}, {"wrote", "2", false}, {"see", "2", false}, {"see", "", false}, {"expect", "2", false}, {"end", "", true},
		},
		"a state that was written comes once only": {
			{"expect", "1", false}, {"begin", "", false}, {"wrote", "2", false}, {"wrote", "3", false}, {"expect", "3", false}, {"end", "", false},
			{"see", "3", false}, {"see", "2", true},
		},
	} {
		var own drift.OwnWrites
		var now drift.TrackingState
		for i, s := range steps {
			notified := false
			switch s.do {
			case "begin":
				own.Begin(owner)
			case "wrote":
				own.RecordWrite(owner, ref, drift.Signature(s.state))
			case "expect":
				now.Tracked, now.Expected = true, drift.Signature(s.state)
			case "see":
				now.Known, now.Seen = true, drift.ObservedObject{Content: drift.Signature(s.state), Exact: drift.Signature(s.state)}
				if now.Seen.Is(now.Expected) {
					own.AsExpected(owner, ref)
				} else {
					notified = own.Observe(owner, ref, now.Seen)
				}
			case "end":
				notified = own.End(owner, func(kubeclient.Ref) drift.TrackingState { return now })
			}
			if notified != s.reported {
				t.Errorf("%s: step %d (%s %s): notified %t", name, i+1, s.do, s.state, notified)
			}
		}
	}
}
