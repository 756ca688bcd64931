package agent

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/codec"
)

// orphan is an AppliedManifestWork that no work claims. Guarded by works.mu.
type orphan struct {
	uid    types.UID
	source string // its owner, "" if it names none
	state  orphanState
	// report is the entry in the report to the broker, if it is an unowned orphan that was read.
	report codec.OrphanRecord
}

// orphanState is the state of an orphan: what is known of it, and which evidence its eviction waits for.
//
//	discovered ──no owner──► foundUnowned ──read──► unowned: stays until an operator
//	    │                                            decides about it
//	    ╰──owner──► unread ──read──┬──────────► otherAgent: belongs to another agent, is left alone
//	                               │
//	                               ├──not verified──► unverified: the owner may want it
//	                               │                    │    ▲
//	                               │            verified│    │no longer verified
//	                               │                    ▼    │
//	                               ╰──verified─────► gracePeriod: the grace period runs, then
//	                                                  it is evicted, if still verified
//
// Each read sets the state again. An orphan that was created again, or names another owner, starts from the
// beginning. The AppliedManifestWork stores the start of the grace period, so that it continues after a
// restart.
type orphanState int

const (
	foundUnowned orphanState = iota
	unread
	unverified
	gracePeriod
	unowned
	otherAgent

	numOrphanStates
)

// orphanEvent is an observation about an orphan.
type orphanEvent int

const (
	discoveredUnowned orphanEvent = iota // discovered, first or again, without an owner
	foundOwned                           // discovered, first or again, with an owner
	readUnowned                          // read: it names no owner
	readUnverified                       // read: its owner may still have the work
	readVerified                         // read: its owner certainly does not have the work
	readOtherAgent                       // read: another agent manages it

	numOrphanEvents
)

// orphanTransitions has the next state of each event, independent of the previous state: the latest event
// decides.
var orphanTransitions = [numOrphanEvents]orphanState{
	discoveredUnowned: foundUnowned, foundOwned: unread, readUnowned: unowned, readUnverified: unverified, readVerified: gracePeriod, readOtherAgent: otherAgent,
}

// evidence is what must be certain before the agent reads an orphan.
type evidence int

const (
	needsNothing evidence = iota
	needsInSync           // the agent holds exactly the broker's works
	needsSynced           // in addition, the owner has synced
)

// orphanRules defines for each state when the agent looks at the orphan.
var orphanRules = [numOrphanStates]struct {
	needs evidence
	// byItself: the orphan is reconciled when its grace period ends, so a change of it need not wake the key.
	byItself bool
}{
	foundUnowned: {needs: needsInSync}, // the read makes the orphan count
	unread:       {needs: needsSynced},
	unverified:   {needs: needsSynced},
	gracePeriod:  {needs: needsSynced, byItself: true},
	unowned:      {needs: needsNothing},
	otherAgent:   {needs: needsNothing},
}

// after returns the orphan after an event.
func (s orphan) after(e orphanEvent) orphan {
	s.state = orphanTransitions[e]
	return s
}

// read reports whether the orphan was read since it was discovered.
func (s orphan) read() bool { return s.state != foundUnowned && s.state != unread }
