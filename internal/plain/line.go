package plain

import "github.com/hawser-io/hawser/pkg/codec"

// Stamp are what an event says of its place.
type Stamp struct {
	// Session is the sender's, the zero session where it is no Hawser party. Heard is the
	// receiver's that the sender has heard of.
	Session, Heard codec.Session
	// Fence counts the events of a session. 0: the event has no place among the others.
	Fence uint64
}

// MarksOf reads the marks of an event. The error is a *codec.AttributeError.
func MarksOf(e codec.Event) (m Stamp, err error) {
	if m.Session, err = codec.SessionExtension(e, codec.ExtSession); err != nil {
		return Stamp{}, err
	}
	if m.Heard, err = codec.SessionExtension(e, codec.ExtHeard); err != nil {
		return Stamp{}, err
	}
	m.Fence, err = codec.RevisionExtension(e, codec.ExtOrder)
	return m, err
}

// Second are the marks of an event that goes with the one that these are of, and behind it.
func (m Stamp) Second() Stamp {
	if m.Fence != 0 {
		m.Fence++
	}
	return m
}

// Put writes the marks into an event. Without a session there are none.
func (m Stamp) Put(e *codec.Event) {
	if m.Session == (codec.Session{}) {
		return
	}
	e.SetExtension(codec.ExtSession, m.Session.String())
	if m.Heard != (codec.Session{}) {
		e.SetExtension(codec.ExtHeard, m.Heard.String())
	}
	if m.Fence != 0 {
		e.SetExtension(codec.ExtOrder, codec.FormatRevision(m.Fence))
	}
}

// Result says whether an event counts.
type Result uint8

// The verdicts.
const (
	// Stock: its sender is no Hawser party. It counts, and says nothing of its place.
	Stock Result = iota
	// Counts: it does. First: so it does, and it is the first of a later session.
	Counts
	First
	// Void: it is of an earlier session than was heard of.
	Void
	// Unaware: its sender had not heard of the present session. Stranger: neither, and it is
	// of a later session of its own than was heard of.
	Unaware
	Stranger
)

// Believed reports whether the event counts.
func (v Result) Believed() bool { return v == Stock || v == Counts || v == First }

// Tracker is the place of a party's events among each other and among those of its peers. It
// is not safe for concurrent use.
type Tracker struct {
	session codec.Session
	fence   uint64
	peers   map[string]*peer
}

// peer is what is known of one other party.
type peer struct {
	// heard is its latest session that was heard of, believed the one of which an event has
	// counted.
	heard, believed codec.Session
	// above is the number above which our sessions have to be for this peer. What one peer
	// says of that concerns no other.
	above uint64
}

// NewLine begins a session. number is what the clock says; id is of this session alone.
func NewLine(number uint64, id string) *Tracker {
	return &Tracker{session: codec.Session{Number: number, ID: id}, peers: map[string]*peer{}}
}

// Renew begins another session of the same party: what was said to the one before counts no
// longer.
func (l *Tracker) Renew() {
	l.session.Number++
	for _, p := range l.peers {
		p.above++
	}
}

func (l *Tracker) peer(name string) *peer {
	if l.peers[name] == nil {
		l.peers[name] = &peer{}
	}
	return l.peers[name]
}

// own is the present session, for one peer.
func (l *Tracker) own(p *peer) codec.Session {
	return codec.Session{Number: max(l.session.Number, p.above+1), ID: l.session.ID}
}

// Hear takes an event of a peer, and says whether it counts.
func (l *Tracker) Hear(name string, m Stamp) Result {
	if m.Session == (codec.Session{}) {
		return Stock
	}
	p := l.peer(name)
	if m.Heard.Compare(l.own(p)) > 0 { // our clock went back
		p.above = m.Heard.Number
	}
	if m.Session.Compare(p.heard) < 0 {
		return Void
	}
	later := m.Session != p.heard
	p.heard = m.Session
	switch {
	case m.Heard != l.own(p) && later:
		return Stranger
	case m.Heard != l.own(p):
		return Unaware
	case p.believed != m.Session:
		p.believed = m.Session
		return First
	}
	return Counts
}

// Knows reports whether a peer has shown itself as a Hawser party.
func (l *Tracker) Knows(name string) bool {
	return l.peers[name] != nil && l.peers[name].heard != codec.Session{}
}

// Counts reports whether a peer believes an event with these marks of ours, as far as is known
// by now: it may have begun another session since they were made.
func (l *Tracker) Counts(name string, m Stamp) bool {
	p := l.peer(name)
	return m.Session == l.own(p) && m.Heard == p.heard
}

// Farewell are the marks of the event by which a broker tells a peer that this party is gone. It
// is made before the party has heard of anybody, so it names the session alone.
func (l *Tracker) Farewell(name string) Stamp {
	p := l.peers[name]
	if p == nil {
		p = &peer{}
	}
	return Stamp{Session: l.own(p)}
}

// Parts reports whether a farewell is about the session of a peer that was heard of last. One
// of a session before says nothing of this one. The id tells: the number of a session may rise
// after its farewell was made.
func (l *Tracker) Parts(name string, m Stamp) bool {
	return l.Knows(name) && m.Session.ID == l.peers[name].heard.ID
}

// Stamp are those of the next event to a peer, or of two; see [Stamp.Second].
func (l *Tracker) Stamp(name string) Stamp {
	l.fence += 2
	p := l.peer(name)
	return Stamp{Session: l.own(p), Heard: p.heard, Fence: l.fence}
}
