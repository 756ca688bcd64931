package agent

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/codec"
)

// orphan is an AppliedManifestWork that no work claims. Guarded by works.mu.
type orphan struct {
	uid    types.UID
	source string // its owner, "" if it says none
	state  orphanState
	// Of one that was read and is nobody's: what the broker is told of it.
	report codec.OrphanRecord
}

// orphanState is what is known of a stray, and with that what its eviction waits for.
//
//	discovered ──says no owner──► nameless ──read──► ownerless: stays until an operator
//	    │                                             says what becomes of it
//	    ╰──says one──► unread ──read──┬──────────► anothers: another agent's, is left alone
//	                                  │
//	                                  ├──not proven──► unproven: the owner may want it
//	                                  │                  │    ▲
//	                                  │            proven│    │not proven any more
//	                                  │                  ▼    │
//	                                  ╰──proven──────► graced: the grace period runs, then
//	                                                    it is evicted, if still proven
//
// Each reading says anew which it is, and one that was made anew, or says another owner,
// begins anew. That the grace period runs is recorded in the AppliedManifestWork: it goes
// on after a restart.
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

// orphanEvent is what is found out about a stray.
type orphanEvent int

const (
	discoveredUnowned orphanEvent = iota // discovered, or anew, without an owner
	foundOwned                           // discovered, or anew, with one
	readUnowned                          // it was read: it says no owner
	readUnverified                       // it was read: nobody has proved that its owner lacks it
	readVerified                         // it was read: that is proved
	readOtherAgent                       // it was read: another agent looks after it

	numOrphanEvents
)

// orphanTransitions says which state follows from each event, whatever was before: the
// latest reading counts.
var orphanTransitions = [numOrphanEvents]orphanState{
	discoveredUnowned: foundUnowned, foundOwned: unread, readUnowned: unowned, readUnverified: unverified, readVerified: gracePeriod, readOtherAgent: otherAgent,
}

// evidence is what has to be certain before a stray is looked at.
type evidence int

const (
	needsNothing evidence = iota
	needsInSync           // exactly what the broker has is held
	needsSynced           // and the owner has compared
)

// orphanRules says for each state when the stray is looked at.
var orphanRules = [numOrphanStates]struct {
	needs evidence
	// byItself: it is looked at when its grace period is over, so that a change of it is
	// no reason.
	byItself bool
}{
	foundUnowned: {needs: needsInSync}, // to count it
	unread:       {needs: needsSynced},
	unverified:   {needs: needsSynced},
	gracePeriod:  {needs: needsSynced, byItself: true},
	unowned:      {needs: needsNothing},
	otherAgent:   {needs: needsNothing},
}

// after lets an event count.
func (s orphan) after(e orphanEvent) orphan {
	s.state = orphanTransitions[e]
	return s
}

// read: it was read since it was discovered.
func (s orphan) read() bool { return s.state != foundUnowned && s.state != unread }
