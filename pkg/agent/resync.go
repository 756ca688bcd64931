package agent

import (
	"github.com/hawser-io/hawser/pkg/codec"
)

// resyncState is the state of one subscription in its comparison with the broker. If the cause of a digest
// difference is unknown, the agent lists all works, and the broker answers with the differences.
//
//	resumed from a cursor            no cursor: all is listed at once
//	        │                                      │
//	        ▼                                      ▼
//	    continued                               listed ────early────► awaiting
//	        │                                    │  │                  │  │
//	        │          ╭────────differ───────────╯  │late          late│  │differ
//	        │          ▼                            │                  │  │
//	        │      relisted ───early───╮            │                  │  │
//	        │       │    ▲             ▼            │                  │  │
//	        ╰─differ┼────┼────────► relisting ◄─────┼──────────────────┼──╯
//	                │    │             │            │                  │
//	            late│    │differ       │late        │                  │
//	                │  inSync          │            │                  │
//	                ▼                  ▼            │                  │
//	            repeated ──early──► repeating ◄─────┼──────────────────╯
//	                ▲                               │
//	                ╰───────────────────────────────╯
//
// From every state but continued, equal digests lead to inSync. early: the digests differ before the answer to
// the list. late: they differ after it, and an event was received after the list. In relisted, relisting,
// repeated and repeating a new gap causes another list without a change of state.
//
// In awaiting, relisting and repeating the answer to a list is pending: until it arrives, a checkpoint without
// a digest moves no cursor.
type resyncState int

const (
	// continued: the broker resumes from a cursor, nothing was listed.
	continued resyncState = iota
	// listed: all works were listed with the subscription. awaiting: the same, and the digests differed before the
	// answer was complete.
	listed
	awaiting
	// inSync: the digests are equal, and all works were listed before. A later difference is new and causes another
	// list.
	inSync
	// relisted: the digests differed by a known gap, and all works were listed because of it.
	relisted
	relisting
	// repeated: all works were listed again because events arrived after the list. The records of such events may
	// be gone since, after a release; the answer cannot show that. The list is not repeated for this reason until
	// the digests were equal.
	repeated
	repeating

	resyncStates
)

// resyncEvent is the result of a checkpoint. A gap is the difference of the digests. A new gap needs another
// list:
//
// Scenario:
//
//	t1: the list has a newer version than the broker, which waits for its source.
//	t2: the source releases the cluster, and the record is removed.
//
// Result: only another list shows that the work is an orphan.
type resyncEvent int

const (
	equal               resyncEvent = iota // the digests are equal
	noAnswer                               // no digest, before the answer to the list
	noAnswerAnswered                       // no digest, after the answer
	beforeAnswer                           // the digests differ, before the answer
	same                                   // the digests differ after the answer, by the known gap
	other                                  // the digests differ after the answer, by a new gap
	sameGapAfterReceive                    // like same, and an event was received after the list
	newGapAfterReceive                     // like other, and an event was received after the list

	resyncEvents
)

// resyncAction is the action after a checkpoint.
type resyncAction int

const (
	// await: the answer to the list is incomplete.
	await resyncAction = iota
	// list: the cause of the digest difference is unknown; a list shows it.
	list
	// advance: the agent has received everything up to the cursor, and moves its own cursor.
	advance
	// advanceAndList: the agent advances and lists all works; the answer to the first list is known now.
	advanceAndList
)

type transition struct {
	to     resyncState
	action resyncAction
}

// resyncTable has the next state and the action for each state and event.
var resyncTable = [resyncStates][resyncEvents]transition{
	continued: {
		equal: {continued, advance}, noAnswer: {continued, advance}, noAnswerAnswered: {continued, advance}, beforeAnswer: {relisting, list},
		same: {relisting, list}, other: {relisting, list}, sameGapAfterReceive: {relisting, list}, newGapAfterReceive: {relisting, list},
	},
	listed: {
		equal: {inSync, advance}, noAnswer: {listed, advance}, noAnswerAnswered: {listed, advance}, beforeAnswer: {awaiting, await},
		same: {relisted, advanceAndList}, other: {relisted, advanceAndList}, sameGapAfterReceive: {repeated, list}, newGapAfterReceive: {repeated, list},
	},
	awaiting: {
		equal: {inSync, advance}, noAnswer: {awaiting, await}, noAnswerAnswered: {awaiting, advance}, beforeAnswer: {awaiting, await},
		same: {relisting, advanceAndList}, other: {relisting, advanceAndList}, sameGapAfterReceive: {repeating, list}, newGapAfterReceive: {repeating, list},
	},
	inSync: {
		equal: {inSync, advance}, noAnswer: {inSync, advance}, noAnswerAnswered: {inSync, advance}, beforeAnswer: {relisted, list},
		same: {relisted, list}, other: {relisted, list}, sameGapAfterReceive: {relisted, list}, newGapAfterReceive: {relisted, list},
	},
	relisted: {
		equal: {inSync, advance}, noAnswer: {relisted, advance}, noAnswerAnswered: {relisted, advance}, beforeAnswer: {relisting, await},
		same: {relisted, advance}, other: {relisted, list}, sameGapAfterReceive: {repeated, list}, newGapAfterReceive: {repeated, list},
	},
	relisting: {
		equal: {inSync, advance}, noAnswer: {relisting, await}, noAnswerAnswered: {relisting, advance}, beforeAnswer: {relisting, await},
		same: {relisting, advance}, other: {relisting, list}, sameGapAfterReceive: {repeating, list}, newGapAfterReceive: {repeating, list},
	},
	repeated: {
		equal: {inSync, advance}, noAnswer: {repeated, advance}, noAnswerAnswered: {repeated, advance}, beforeAnswer: {repeating, await},
		same: {repeated, advance}, other: {repeated, list}, sameGapAfterReceive: {repeated, advance}, newGapAfterReceive: {repeated, list},
	},
	repeating: {
		equal: {inSync, advance}, noAnswer: {repeating, await}, noAnswerAnswered: {repeating, advance}, beforeAnswer: {repeating, await},
		same: {repeating, advance}, other: {repeating, list}, sameGapAfterReceive: {repeating, advance}, newGapAfterReceive: {repeating, list},
	},
}

// resyncProgress is the state of a subscription with its known gap; nil if none is known.
type resyncProgress struct {
	state resyncState
	gap   *codec.Digest
}

// classify returns the event of a checkpoint. own is the digest of the held works without the orphans. late: an
// event was received after the list.
func (r *resyncProgress) classify(cp codec.Checkpoint, own codec.Digest, late bool) (e resyncEvent, gap *codec.Digest) {
	switch {
	case cp.Digest == nil && cp.ListAnswered:
		return noAnswerAnswered, nil
	case cp.Digest == nil:
		return noAnswer, nil
	case *cp.Digest == own:
		return equal, nil
	}
	gap = &codec.Digest{Count: cp.Digest.Count - own.Count, Sum: cp.Digest.Sum.Sub(own.Sum)} // modulo 2^64
	known := r.gap != nil && *r.gap == *gap
	switch {
	case !cp.ListAnswered:
		return beforeAnswer, gap
	case late && known:
		return sameGapAfterReceive, gap
	case late:
		return newGapAfterReceive, gap
	case known:
		return same, gap
	}
	return other, gap
}

// step applies an event.
func (r *resyncProgress) step(e resyncEvent, gap *codec.Digest) resyncAction {
	t := resyncTable[r.state][e]
	switch {
	case e == equal:
		r.gap = nil
	case t.action == list || t.action == advanceAndList:
		r.gap = gap
	}
	r.state = t.to
	return t.action
}
