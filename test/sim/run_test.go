package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The operations that let parties go on: a few steps in random order, steps of which
// some are preferred, or steps until something is under way.

// patience is how long a run may wait for the next thing that happens by itself.
const patience = 45 * time.Second

// run takes random steps. Every other one lets time pass where there is none to take,
// so that what parties do later happens among the faults, too.
func run(w *world, a, b uint32) string {
	order := rand.New(rand.NewPCG(uint64(b), 4))
	did := 0
	for range 1 + a%24 {
		if !w.step(order, b%2 == 0) {
			break
		}
		did++
	}
	if did == 0 {
		return ""
	}
	return fmt.Sprint(did, " steps")
}

// prefer lets some kinds of steps go before others from now on, or no longer: as long
// as every step has the same chance nobody is late for long, and what only happens
// behind many steps of others almost never does.
func prefer(w *world, a, b uint32) string {
	w.ranks, w.ranker = nil, nil
	if a%3 == 0 {
		return "nobody"
	}
	w.ranks, w.ranker = map[string]uint32{}, rand.New(rand.NewPCG(uint64(b), 8))
	return "some"
}

// choose chooses the next step of a run.
func (w *world) choose(order *rand.Rand, list []step) step {
	if w.ranks == nil {
		return list[order.IntN(len(list))]
	}
	first, highest := 0, uint32(0)
	for i := range list {
		kind := list[i].actor + " " + list[i].what
		rank, known := w.ranks[kind]
		if !known {
			rank = w.ranker.Uint32() | 1
			w.ranks[kind] = rank
		}
		if rank > highest {
			first, highest = i, rank
		}
	}
	return list[first]
}

// step takes a random step; false if there is none. A patient one waits a while.
func (w *world) step(order *rand.Rand, patient bool) bool {
	list := w.steps()
	if t := w.next(); len(list) == 0 && patient && !t.IsZero() && time.Until(t) <= patience {
		w.pass(max(time.Until(t), time.Millisecond))
		list = w.steps()
	}
	if len(list) == 0 || w.broken != nil {
		return false
	}
	w.perform(w.choose(order, list))
	return true
}

// kinds are what may be under way: requests of the hub source to the hub, and
// publishes. The first are the rare ones.
var kinds = []string{
	"Get", "List", "Locate", "Save", "RemoveFinalizer", "AddFinalizer",
	"PatchStatus", "Tag", "Release", "Delete", "SendCompared", "SendAck", "AskInventory", "Ask", "Publish", "status", "resync", "sync",
}

// runUntil takes steps until something of a kind is under way, so that the next
// operation comes meanwhile.
func runUntil(w *world, a, b uint32) string {
	kind := kinds[a%uint32(len(kinds))]
	order := rand.New(rand.NewPCG(uint64(b), 8))
	for range 60 {
		if w.underWay(kind) {
			return kind
		}
		if !w.step(order, true) {
			break
		}
	}
	return ""
}

// underWay reports whether something of a kind is.
func (w *world) underWay(kind string) bool {
	return slices.ContainsFunc(w.source.writes, func(e write) bool { return fmt.Sprintf("%T", e.effect) == "core."+kind }) ||
		slices.ContainsFunc(w.calls, func(c *call) bool {
			what, _, _ := strings.Cut(c.what, " ")
			return c.done != nil && strings.TrimPrefix(what, "core.") == kind
		})
}
