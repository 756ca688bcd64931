package judge

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// state is the state of a work: its version, 0 before the first one.
type state struct {
	version int64
	deleted bool
}

// never is the end of an operation without an answer. It may take effect at any time.
const never = time.Duration(math.MaxInt64)

// model is the register of one work. Publishes with a version that is not higher have no effect. A deleted work stays
// deleted; it is read as deleted or, when the store has collected it, as absent.
var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{}} },
	Step: func(s, input, _ any) []any { return step(s.(state), input.(Event)) },
}).ToModel()

func step(s state, e Event) []any {
	switch {
	case e.Kind == Failover: // any earlier state
		next := []any{s}
		for v := range s.version + 1 {
			next = append(next, state{version: v})
		}
		return next
	case e.Kind == Write && (s.deleted || e.Version < s.version):
		return []any{s}
	case e.Kind == Write:
		return []any{state{e.Version, e.Deleted}}
	case s == state{e.Version, e.Deleted}, s.deleted && (e.Version == 0 || e.Deleted):
		return []any{s}
	}
	return nil
}

// register checks each work with porcupine.
func (h *indexed) register() (found []Violation) {
	for _, w := range h.works {
		operations := h.operations(w)
		if porcupine.CheckOperations(model, operations) {
			continue
		}
		v := Violation{Rule: Register, What: fmt.Sprintf("publishes and reads of %s are not linearizable", w.id)}
		for _, o := range operations {
			v.Events = append(v.Events, o.Input.(Event))
		}
		found = append(found, v)
	}
	return found
}

// operations returns the operations on the register of a work. Several attempts to publish the same are one publish,
// which ends with the first acknowledged attempt. A lost one may still take effect after a loss of the store.
func (h *indexed) operations(w *work) (list []porcupine.Operation) {
	add := func(e Event) {
		list = append(list, porcupine.Operation{ClientId: len(list), Input: e, Call: int64(e.From), Return: int64(e.To)})
	}
	open := map[state]Event{}
	for _, e := range w.writes {
		key := state{e.Version, e.Deleted}
		first, retried := open[key]
		if !e.Acked {
			if !retried {
				first = e
			}
			open[key] = first
			continue
		}
		if retried {
			if h.lostAfter(first.From) {
				first.To = never
				add(first)
			}
			e.From = first.From
			delete(open, key)
		}
		add(e)
	}
	for _, e := range open {
		e.To = never
		add(e)
	}
	for _, e := range w.reads {
		add(e)
	}
	for _, e := range h.losses {
		add(e)
	}
	return list
}

// lostAfter reports whether writes were lost after a time.
func (h *indexed) lostAfter(at time.Duration) bool {
	return len(h.losses) > 0 && h.losses[len(h.losses)-1].To > at
}
