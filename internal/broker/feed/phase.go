package feed

// phase is how much of what the party lacks is in the mailbox of its subscription:
//
//	┌─────────┐ cursor, changed   ┌─────────┐ filled, a list waits ┌────────┐
//	│ unasked ├──────────────────►│ filling ├─────────────────────►│ listed │◄──┐
//	└─┬─────┬─┘                   └────┬────┘                      └───┬────┘   │ list
//	  │     │                   filled │      compared, no list waits  │        │
//	  │     │ cursor, unchanged   ┌────▼────┐                          │        │
//	  │     └────────────────────►│ current │◄─────────────────────────┘        │
//	  │                           └────┬────┘                                   │
//	  │ list                           └────────────────────────────────────────┤
//	  └─────────────────────────────────────────────────────────────────────────┘
//	  listed ── cursor, changed ──► filling: the list came first, and waits
//	  each   ── left ─────────────► over
//
// Only in unasked and current nothing is missing that the party asked for, so only then it
// may be told how far it is.
type phase uint8

const (
	// unasked: it gave no cursor that counts, and did not say yet what it has.
	unasked phase = iota
	// filling: what changed since its cursor is not in the mailbox yet.
	filling
	// listed: a list waits to be compared.
	listed
	// current: all that it lacks is in the mailbox.
	current
	// over: the stream has left.
	over
	phases // number of the above
)

// turn is what changes the phase.
type turn uint8

const (
	lists     turn = iota // a list came, or it was silent for too long
	changed               // it continues from a cursor, behind which something changed
	unchanged             // it continues from a cursor, behind which nothing changed
	done                  // filled or compared; no list waits
	more                  // filled or compared; a list waits
	left                  // the stream has left
	turns                 // number of the above
)

// transitions: phase × turn. What is no arrow of the picture changes nothing.
var transitions = [phases][turns]phase{
	unasked: {lists: listed, changed: filling, unchanged: current, done: unasked, more: unasked, left: over},
	filling: {lists: filling, changed: filling, unchanged: filling, done: current, more: listed, left: over},
	listed:  {lists: listed, changed: filling, unchanged: listed, done: current, more: listed, left: over},
	current: {lists: listed, changed: current, unchanged: current, done: current, more: current, left: over},
	over:    {lists: over, changed: over, unchanged: over, done: over, more: over, left: over},
}

// idle reports whether nothing is missing in the mailbox that the party asked for.
func (p phase) idle() bool { return p == unasked || p == current }
