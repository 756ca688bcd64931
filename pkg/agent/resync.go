package agent

import (
	"github.com/hawser-io/hawser/pkg/codec"
)

// resyncState is how far one subscription is in finding out whether what is held is
// what the broker has. The agent lists everything where nobody knows why the digests
// differ, and the broker answers with what differs.
//
//	a cursor continues               no cursor does: all is listed at once
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
//	                │  agreed          │            │                  │
//	                ▼                  ▼            │                  │
//	            repeated ──early──► repeating ◄─────┼──────────────────╯
//	                ▲                               │
//	                ╰───────────────────────────────╯
//
// From every state but continued, equal leads to agreed. In relisted, relisting, repeated
// and repeating another gap is listed for, and nothing else changes.
//
// In awaiting, relisting and repeating the answer to a list is waited for: a checkpoint
// without a digest before it moves no cursor.
type resyncState int

const (
	// continued: the broker goes on from a cursor, nothing was listed.
	continued resyncState = iota
	// listed: everything was listed with the subscription. In awaiting the digests
	// differed before the answer was complete.
	listed
	awaiting
	// needsInSync: the digests are equal, and everything was listed before. Where they differ
	// once more, that is news, and what it is shows another list.
	inSync
	// relisted: the digests differed by a known gap, and everything was listed for that.
	relisted
	relisting
	// repeated: everything was listed once more because of what was received after the
	// list: it may have lost its record since, in a release, which the answer cannot
	// show. That is no reason again until the digests were equal.
	repeated
	repeating

	resyncStates
)

// resyncEvent is what a checkpoint says. A gap is by how much the digests differ.
// Where it becomes another, that is news: t1 the list has a newer version than the
// broker's, which waits for its source; t2 the source releases the cluster, and the
// record is gone. Only another list shows that no record explains the work any more.
type resyncEvent int

const (
	equal               resyncEvent = iota // the digests are equal
	noAnswer                               // no digest, before the answer to the list
	noAnswerAnswered                       // no digest, after it
	beforeAnswer                           // the digests differ, before the answer
	same                                   // they differ after it, by the gap that is known
	other                                  // by another gap, or none was known
	sameGapAfterReceive                    // as same, and something was received after the list
	newGapAfterReceive                     // as other, and something was received after the list

	resyncEvents
)

// resyncAction is what a checkpoint leads to.
type resyncAction int

const (
	// await: the answer to the list is not complete.
	await resyncAction = iota
	// list: nobody knows why the digests differ; the list shows it.
	list
	// advance: everything up to the cursor is held, as well as can be.
	advance
	// advanceAndList: both; what the list with the subscription led to is known now.
	advanceAndList
)

type transition struct {
	to     resyncState
	action resyncAction
}

// resyncTable says for each state and event which state follows, and what is done.
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

// resyncProgress is how far a subscription is, with the gap that is known; nil if none is.
type resyncProgress struct {
	state resyncState
	gap   *codec.Digest
}

// classify says what a checkpoint means. own is the digest of what is held, without what
// no record explains; late says that something was received after the list.
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

// step lets an event count.
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
