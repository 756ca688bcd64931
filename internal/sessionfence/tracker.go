package sessionfence

import "github.com/hawser-io/hawser/pkg/codec"

// Stamp are what an event says of its place.
type Stamp struct {
	// Session is the sender's, the zero session where it is no Hawser party. PeerSession is the
	// receiver's that the sender has heard of.
	Session, PeerSession codec.Session
	// Fence counts the events of a session. 0: the event has no place among the others.
	Fence uint64
}

// StampOf reads the marks of an event. The error is a *codec.AttributeError.
func StampOf(e codec.Event) (m Stamp, err error) {
	if m.Session, err = codec.SessionExtension(e, codec.ExtSession); err != nil {
		return Stamp{}, err
	}
	if m.PeerSession, err = codec.SessionExtension(e, codec.ExtPeerSession); err != nil {
		return Stamp{}, err
	}
	m.Fence, err = codec.RevisionExtension(e, codec.ExtFence)
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
	if m.PeerSession != (codec.Session{}) {
		e.SetExtension(codec.ExtPeerSession, m.PeerSession.String())
	}
	if m.Fence != 0 {
		e.SetExtension(codec.ExtFence, codec.FormatRevision(m.Fence))
	}
}

// Result says whether an event counts.
type Result uint8

// The verdicts.
const (
	// NoSession: its sender is no Hawser party. It counts, and says nothing of its place.
	NoSession Result = iota
	// Current: it does. First: so it does, and it is the first of a later session.
	Current
	CurrentFirst
	// OldSession: it is of an earlier session than was heard of.
	OldSession
	// PeerUnaware: its sender had not heard of the present session. Stranger: neither, and it is
	// of a later session of its own than was heard of.
	PeerUnaware
	NewPeerUnaware
)

// IsAccepted reports whether the event counts.
func (v Result) IsAccepted() bool { return v == NoSession || v == Current || v == CurrentFirst }

// Tracker is the place of a party's events among each other and among those of its peers. It
// is not safe for concurrent use.
type Tracker struct {
	session codec.Session
	fence   uint64
	peers   map[string]*peer
}

// peer is what is known of one other party.
type peer struct {
	// latest is its latest session that was heard of, believed the one of which an event has
	// counted.
	latest, accepted codec.Session
	// above is the number above which our sessions have to be for this peer. What one peer
	// says of that concerns no other.
	above uint64
}

// NewTracker begins a session. number is what the clock says; id is of this session alone.
func NewTracker(number uint64, id string) *Tracker {
	return &Tracker{session: codec.Session{Number: number, ID: id}, peers: map[string]*peer{}}
}

// NewSession begins another session of the same party: what was said to the one before counts no
// longer.
func (l *Tracker) NewSession() {
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

// Observe takes an event of a peer, and says whether it counts.
func (l *Tracker) Observe(name string, m Stamp) Result {
	if m.Session == (codec.Session{}) {
		return NoSession
	}
	p := l.peer(name)
	if m.PeerSession.Compare(l.own(p)) > 0 { // our clock went back
		p.above = m.PeerSession.Number
	}
	if m.Session.Compare(p.latest) < 0 {
		return OldSession
	}
	later := m.Session != p.latest
	p.latest = m.Session
	switch {
	case m.PeerSession != l.own(p) && later:
		return NewPeerUnaware
	case m.PeerSession != l.own(p):
		return PeerUnaware
	case p.accepted != m.Session:
		p.accepted = m.Session
		return CurrentFirst
	}
	return Current
}

// IsHawser reports whether a peer has shown itself as a Hawser party.
func (l *Tracker) IsHawser(name string) bool {
	return l.peers[name] != nil && l.peers[name].latest != codec.Session{}
}

// Counts reports whether a peer believes an event with these marks of ours, as far as is known
// by now: it may have begun another session since they were made.
func (l *Tracker) Counts(name string, m Stamp) bool {
	p := l.peer(name)
	return m.Session == l.own(p) && m.PeerSession == p.latest
}

// Goodbye are the marks of the event by which a broker tells a peer that this party is gone. It
// is made before the party has heard of anybody, so it names the session alone.
func (l *Tracker) Goodbye(name string) Stamp {
	p := l.peers[name]
	if p == nil {
		p = &peer{}
	}
	return Stamp{Session: l.own(p)}
}

// MatchesGoodbye reports whether a farewell is about the session of a peer that was heard of last. One
// of a session before says nothing of this one. The id tells: the number of a session may rise
// after its farewell was made.
func (l *Tracker) MatchesGoodbye(name string, m Stamp) bool {
	return l.IsHawser(name) && m.Session.ID == l.peers[name].latest.ID
}

// Stamp are those of the next event to a peer, or of two; see [Stamp.Second].
func (l *Tracker) Stamp(name string) Stamp {
	l.fence += 2
	p := l.peer(name)
	return Stamp{Session: l.own(p), PeerSession: p.latest, Fence: l.fence}
}
