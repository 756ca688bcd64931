package drift

import "github.com/hawser-io/hawser/pkg/agent/kubeclient"

// OwnWrites distinguishes the writes of owners from changes by others. An owner knows the state after its write
// from the answer, by uid and resourceVersion. The event of the write may arrive before the answer.
//
// Scenario:
//
//	t1: the owner writes an object.
//	t2: the watch shows the state after the write; the owner does not expect it yet.
//	t3: the answer of the write has the same resourceVersion, so this is no change.
//
// Result: events between Begin and End are evaluated at End.
//
// The event may also arrive late.
//
// Scenario:
//
//	t1: the owner writes an object twice, and expects the second state.
//	t2: the watch shows the first state: it is not expected, but no change by others.
//
// Result: written states are kept until the watch has shown them or a later state.
//
// The zero value is ready. It has no lock.
type OwnWrites struct{ owners map[string]*writer }

// writer is an owner that is writing, or whose writes the watch has not shown yet.
type writer struct {
	busy bool
	// news has the objects that were seen in an unexpected state while it was writing.
	news map[kubeclient.Ref]bool
	// written has the exact states that the watch has not shown, the oldest first.
	written map[kubeclient.Ref][]Signature
}

// mostWritten bounds the states kept of one object. Beyond it the owner reads the object once more than needed;
// nothing is lost.
const mostWritten = 16

func (n *OwnWrites) writer(owner string) *writer {
	if n.owners == nil {
		n.owners = map[string]*writer{}
	}
	w := n.owners[owner]
	if w == nil {
		w = &writer{news: map[kubeclient.Ref]bool{}, written: map[kubeclient.Ref][]Signature{}}
		n.owners[owner] = w
	}
	return w
}

// Begin records that an owner may write from now on.
func (n *OwnWrites) Begin(owner string) { n.writer(owner).busy = true }

// RecordWrite records the exact state after an owner's write of an object.
func (n *OwnWrites) RecordWrite(owner string, ref kubeclient.Ref, s Signature) {
	w := n.writer(owner)
	kept := append(w.written[ref], s)
	w.written[ref] = kept[max(0, len(kept)-mostWritten):]
}

// Observe reports whether an owner must be notified of an object in a state that it does not expect.
func (n *OwnWrites) Observe(owner string, ref kubeclient.Ref, s ObservedObject) bool {
	w := n.owners[owner]
	switch {
	case w == nil:
		return true
	case n.showed(owner, ref, s):
		delete(w.news, ref)
		return false
	case w.busy:
		w.news[ref] = true
	}
	return !w.busy
}

// AsExpected records that an object was seen as its owner expects: the watch has shown its writes.
func (n *OwnWrites) AsExpected(owner string, ref kubeclient.Ref) {
	if w := n.owners[owner]; w != nil {
		delete(w.news, ref)
		n.forget(owner, ref)
	}
}

// showed reports whether the owner wrote this state. It drops the states up to it.
func (n *OwnWrites) showed(owner string, ref kubeclient.Ref, s ObservedObject) bool {
	w := n.owners[owner]
	for i, written := range w.written[ref] {
		if written == s.Exact {
			if w.written[ref] = w.written[ref][i+1:]; len(w.written[ref]) == 0 {
				n.forget(owner, ref)
			}
			return true
		}
	}
	return false
}

func (n *OwnWrites) forget(owner string, ref kubeclient.Ref) {
	w := n.owners[owner]
	delete(w.written, ref)
	if !w.busy && len(w.written) == 0 {
		delete(n.owners, owner)
	}
}

// TrackingState is the state of an object that an owner may track.
type TrackingState struct {
	// Tracked: the owner tracks it. Known: the watch has shown it, in the state Seen.
	Tracked, Known bool
	Seen           ObservedObject
	// Expected is the signature that the owner expects.
	Expected Signature
}

// End ends the writes after Begin. It reports whether the owner must be notified of a change.
func (n *OwnWrites) End(owner string, look func(kubeclient.Ref) TrackingState) (report bool) {
	w := n.owners[owner]
	if w == nil {
		return false
	}
	for ref := range w.news {
		s := look(ref)
		report = report || s.Tracked && s.Known && !s.Seen.Is(s.Expected) && !n.showed(owner, ref, s.Seen)
	}
	clear(w.news)
	for ref := range w.written {
		switch s := look(ref); {
		case !s.Tracked, s.Known && s.Seen.Is(s.Expected):
			delete(w.written, ref)
		case s.Known:
			n.showed(owner, ref, s.Seen)
		}
	}
	if w.busy = false; len(w.written) == 0 {
		delete(n.owners, owner)
	}
	return report
}
