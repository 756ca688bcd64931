package agent

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/pkg/codec"
)

// stray is an AppliedManifestWork that no work claims. Guarded by works.mu.
type stray struct {
	uid    types.UID
	source string // its owner, "" if it says none
	state  strayState
	// Of one that was read and is nobody's: what the broker is told of it.
	told codec.UnexplainedRecord
}

// strayState is what is known of a stray, and with that what its eviction waits for.
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
type strayState int

const (
	nameless strayState = iota
	unread
	unproven
	graced
	ownerless
	anothers

	strayStates
)

// strayEvent is what is found out about a stray.
type strayEvent int

const (
	foundNameless strayEvent = iota // discovered, or anew, without an owner
	foundOwned                      // discovered, or anew, with one
	readOwnerless                   // it was read: it says no owner
	readUnproven                    // it was read: nobody has proved that its owner lacks it
	readProven                      // it was read: that is proved
	readAnothers                    // it was read: another agent looks after it

	strayEvents
)

// strayTransitions says which state follows from each event, whatever was before: the
// latest reading counts.
var strayTransitions = [strayEvents]strayState{
	foundNameless: nameless, foundOwned: unread, readOwnerless: ownerless, readUnproven: unproven, readProven: graced, readAnothers: anothers,
}

// evidence is what has to be certain before a stray is looked at.
type evidence int

const (
	never    evidence = iota
	inSync            // exactly what the broker has is held
	compared          // and the owner has compared
)

// strayRules says for each state when the stray is looked at.
var strayRules = [strayStates]struct {
	needs evidence
	// byItself: it is looked at when its grace period is over, so that a change of it is
	// no reason.
	byItself bool
}{
	nameless:  {needs: inSync}, // to count it
	unread:    {needs: compared},
	unproven:  {needs: compared},
	graced:    {needs: compared, byItself: true},
	ownerless: {needs: never},
	anothers:  {needs: never},
}

// after lets an event count.
func (s stray) after(e strayEvent) stray {
	s.state = strayTransitions[e]
	return s
}

// read: it was read since it was discovered.
func (s stray) read() bool { return s.state != nameless && s.state != unread }
