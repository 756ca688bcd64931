package agent

import (
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// resyncFlags describes a state by booleans. It decides as a former agent did that had these booleans.
type resyncFlags struct {
	listed  bool // a list was sent
	waiting bool // the digests differed, and the answer is awaited
	agreed  bool // after the list the digests were equal
	retried bool // a second list was sent, because events arrived after the first one
	gap     bool // a gap is known
}

func (f resyncFlags) step(e resyncEvent) (resyncFlags, resyncAction) {
	late, known := e == sameGapAfterReceive || e == newGapAfterReceive, e == same || e == sameGapAfterReceive
	switch {
	case e == equal:
		return resyncFlags{listed: f.listed, agreed: f.listed}, advance
	case e == noAnswerAnswered, e == noAnswer && !f.waiting:
		return f, advance
	case e == noAnswer:
		return f, await
	case f.agreed:
		f.agreed = false
	case f.listed && late && !f.retried:
		f.retried = true
	case !f.listed:
		f.listed, f.waiting = true, true
	case e == beforeAnswer:
		f.waiting = true
		return f, await
	case !f.gap:
		f.gap = true
		return f, advanceAndList
	case known:
		return f, advance
	}
	f.gap = true
	return f, list
}

var flagsOf = [resyncStates]resyncFlags{
	continued: {}, listed: {listed: true}, awaiting: {listed: true, waiting: true}, inSync: {listed: true, agreed: true},
	relisted: {listed: true, gap: true}, relisting: {listed: true, waiting: true, gap: true},
	repeated: {listed: true, retried: true, gap: true}, repeating: {listed: true, waiting: true, retried: true, gap: true},
}

// Each pair of a state and an event leads to the state and action that follow from their meaning.
func TestResync_EachPair(t *testing.T) {
	for s := range resyncStates {
		for e := range resyncEvents {
			want, result := flagsOf[s].step(e)
			got := resyncTable[s][e]
			if flagsOf[got.to] != want || got.action != result {
				t.Errorf("state %d, event %d: state %d and result %d, want %+v and %d", s, e, got.to, got.action, want, result)
			}
		}
	}
}

// Each state can be reached, and every state is left when the digests become equal after a list.
func TestResync_StatesAreReached(t *testing.T) {
	reached := map[resyncState]bool{continued: true, listed: true}
	for range resyncStates {
		for s := range reached {
			for e := range resyncEvents {
				reached[resyncTable[s][e].to] = true
			}
		}
	}
	for s := range resyncStates {
		if !reached[s] {
			t.Errorf("state %d is never reached", s)
		}
		if to := resyncTable[s][equal].to; s != continued && to != inSync {
			t.Errorf("state %d: equal digests lead to %d", s, to)
		}
	}
}

func TestResync_Classify(t *testing.T) {
	own := codec.Digest{Count: 3}
	more, less := codec.Digest{Count: 4}, codec.Digest{Count: 2}
	for _, c := range []struct {
		cp   codec.Checkpoint
		late bool
		want resyncEvent
	}{
		{codec.Checkpoint{}, true, noAnswer},
		{codec.Checkpoint{ListAnswered: true}, true, noAnswerAnswered},
		{codec.Checkpoint{Digest: &own}, true, equal},
		{codec.Checkpoint{Digest: &own, ListAnswered: true}, false, equal},
		{codec.Checkpoint{Digest: &more}, true, beforeAnswer},
		{codec.Checkpoint{Digest: &more, ListAnswered: true}, false, same},
		{codec.Checkpoint{Digest: &more, ListAnswered: true}, true, sameGapAfterReceive},
		{codec.Checkpoint{Digest: &less, ListAnswered: true}, false, other},
		{codec.Checkpoint{Digest: &less, ListAnswered: true}, true, newGapAfterReceive},
	} {
		r := resyncProgress{gap: &codec.Digest{Count: 1}}
		got, gap := r.classify(c.cp, own, c.late)
		if got != c.want || (gap != nil) != (got >= beforeAnswer) {
			t.Errorf("%+v, late %t: event %d, gap %v, want %d", c.cp, c.late, got, gap, c.want)
		}
	}
	r := resyncProgress{}
	if e, gap := r.classify(codec.Checkpoint{Digest: &more, ListAnswered: true}, own, false); e != other || *gap != (codec.Digest{Count: 1}) {
		t.Errorf("no gap is known: event %d, gap %v", e, gap)
	}
}

// The known gap is the one that caused the list, until the digests are equal.
func TestResync_Gap(t *testing.T) {
	gap := &codec.Digest{Count: 1}
	for s := range resyncStates {
		for e := range resyncEvents {
			before := &codec.Digest{Count: 9}
			r := resyncProgress{state: s, gap: before}
			want := before
			switch v := r.step(e, gap); {
			case e == equal:
				want = nil
			case v == list || v == advanceAndList:
				want = gap
			}
			if r.gap != want || r.state != resyncTable[s][e].to {
				t.Errorf("state %d, event %d: gap %v, want %v", s, e, r.gap, want)
			}
		}
	}
}
