package drift

import "github.com/hawser-io/hawser/pkg/agent/kubeclient"

// Own tells the writes of owners from news. An owner knows the state in which its write left
// an object from the answer, by uid and resource version. The event of the write may be first:
//
//	t1  The owner writes an object.
//	t2  The watch shows the state after the write. The owner does not expect it yet.
//	t3  The answer of the write has the same resource version: nothing happened.
//
// Therefore events between Begin and End are judged at End. The event may also be last:
//
//	t1  The owner writes an object twice, and expects the second state.
//	t2  The watch shows the first state: it is not as expected, and no news.
//
// Therefore written states are kept until the watch has shown them, or a later state. The zero
// value is ready. It has no lock.
type Own struct{ owners map[string]*writer }

// writer is an owner that writes, or whose writes the watch has not shown.
type writer struct {
	busy bool
	// news are the objects that were seen in another state than expected while it was busy.
	news map[kubeclient.Ref]bool
	// written are the exact states that the watch has not shown, the oldest first.
	written map[kubeclient.Ref][]Signature
}

// mostWritten bounds the states that are kept of one object. Nothing is lost beyond it: the
// owner looks at such an object once too often.
const mostWritten = 16

func (n *Own) writer(owner string) *writer {
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

// Begin notes that an owner may write from now on.
func (n *Own) Begin(owner string) { n.writer(owner).busy = true }

// Wrote notes the exact state in which a write of an owner left an object.
func (n *Own) Wrote(owner string, ref kubeclient.Ref, s Signature) {
	w := n.writer(owner)
	kept := append(w.written[ref], s)
	w.written[ref] = kept[max(0, len(kept)-mostWritten):]
}

// News reports whether an owner is to be told of an object that is seen in a state that the
// owner does not expect.
func (n *Own) News(owner string, ref kubeclient.Ref, s ObservedObject) bool {
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

// AsExpected notes that an object is seen as an owner expects it: the watch has shown the writes
// before.
func (n *Own) AsExpected(owner string, ref kubeclient.Ref) {
	if w := n.owners[owner]; w != nil {
		delete(w.news, ref)
		n.forget(owner, ref)
	}
}

// showed reports whether a state is one that the owner wrote, and forgets those up to it.
func (n *Own) showed(owner string, ref kubeclient.Ref, s ObservedObject) bool {
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

func (n *Own) forget(owner string, ref kubeclient.Ref) {
	w := n.owners[owner]
	delete(w.written, ref)
	if !w.busy && len(w.written) == 0 {
		delete(n.owners, owner)
	}
}

// Sight is what is known of an object that an owner tracks.
type Sight struct {
	// Tracked: the owner tracks it. Known: the watch has shown it, in the state Seen.
	Tracked, Known bool
	Seen           ObservedObject
	// Expected is what the owner expects.
	Expected Signature
}

// End ends what Begin began, and reports whether the owner is to be told of something.
func (n *Own) End(owner string, look func(kubeclient.Ref) Sight) (report bool) {
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
