package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The operations that let the programs continue: a few steps in random order, with or without preferred steps,
// or steps until something is in flight.

// patience is the longest time that a run waits for the next event.
const patience = 45 * time.Second

// run takes random steps. In every other run, time passes when no step is possible. So later actions of the
// programs happen among the faults, too.
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

// prefer gives some kinds of steps priority from now on, or ends that. If every step has the same chance, no
// component is late for long. An event that needs many earlier steps of others then almost never happens.
func prefer(w *world, a, b uint32) string {
	w.ranks, w.ranker = nil, nil
	if a%3 == 0 {
		return "none"
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

// step takes a random step. It returns false if there is none. A patient one waits a while first.
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

// kinds are the kinds of requests that may be in flight: requests of hub-source to the hub, and publishes. The
// rare ones come first. The names are those of the types in package core.
var kinds = []string{
	"Get", "List", "ReadHubPosition", "Save", "RemoveFinalizer", "AddFinalizer",
	"PatchStatus", "Tag", "Release", "Delete", "SendSyncReport", "SendAck", "RequestInventory", "RequestStatuses", "Publish", "status", "resync", "sync",
}

// runUntil takes steps until a request of a kind is in flight, so that the next operation comes at that moment.
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

// underWay reports whether a request of a kind is in flight.
func (w *world) underWay(kind string) bool {
	return slices.ContainsFunc(w.source.writes, func(e write) bool { return fmt.Sprintf("%T", e.effect) == "core."+kind }) ||
		slices.ContainsFunc(w.calls, func(c *call) bool {
			what, _, _ := strings.Cut(c.what, " ")
			return c.done != nil && strings.TrimPrefix(what, "core.") == kind
		})
}
