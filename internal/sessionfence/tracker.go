package sessionfence

import "github.com/hawser-io/hawser/pkg/codec"

// Stamp is the session stamp of an event: sender session, receiver session, sequence number.
type Stamp struct {
	// Session is the session of the sender; zero if it is an OCM client. PeerSession is the session of the receiver
	// that the sender knows; zero if it knows none.
	Session, PeerSession codec.Session
	// Fence is the fencing token: it numbers the events of a session. 0: the event is not ordered.
	Fence uint64
}

// StampOf reads the stamp of an event. The error is a *codec.AttributeError.
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

// Second returns the stamp of the second event of a pair. It follows the first one, which has m.
func (m Stamp) Second() Stamp {
	if m.Fence != 0 {
		m.Fence++
	}
	return m
}

// Put writes the stamp into an event. Without a session it writes nothing.
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

// Result is the result of the check of an event's session.
type Result uint8

// The results.
const (
	// NoSession: the sender is an OCM client. The event is accepted, and its order is unknown.
	NoSession Result = iota
	// Current: the event is accepted. CurrentFirst: the same, and it is the first one of a later session.
	Current
	CurrentFirst
	// OldSession: the event is of an earlier session than the latest known one.
	OldSession
	// PeerUnaware: the sender did not know the present session. NewPeerUnaware: the same, and the sender began a
	// new session.
	PeerUnaware
	NewPeerUnaware
)

// IsAccepted reports whether the event is accepted.
func (v Result) IsAccepted() bool { return v == NoSession || v == Current || v == CurrentFirst }

// Tracker tracks the sessions of a client and of its peers. It is not safe for concurrent use.
type Tracker struct {
	session codec.Session
	fence   uint64
	peers   map[string]*peer
}

// peer is the state of one peer.
type peer struct {
	// latest is its latest known session, accepted the session of its last accepted event.
	latest, accepted codec.Session
	// above is a lower bound: our session numbers for this peer are above it. It is kept per peer, so that a wrong
	// number of one peer has no effect on the others.
	above uint64
}

// NewTracker begins a session. number comes from the clock; id must be unique.
func NewTracker(number uint64, id string) *Tracker {
	return &Tracker{session: codec.Session{Number: number, ID: id}, peers: map[string]*peer{}}
}

// NewSession begins another session of the same client. Events for the previous session are then rejected.
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

// own returns the present session for one peer.
func (l *Tracker) own(p *peer) codec.Session {
	return codec.Session{Number: max(l.session.Number, p.above+1), ID: l.session.ID}
}

// Observe records an event of a peer, and returns whether it is accepted.
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

// IsHawser reports whether a peer has sent a session, as Hawser clients do.
func (l *Tracker) IsHawser(name string) bool {
	return l.peers[name] != nil && l.peers[name].latest != codec.Session{}
}

// Counts reports whether a peer accepts an event with this stamp of ours, by its latest known session. The peer
// may have begun another session since.
func (l *Tracker) Counts(name string, m Stamp) bool {
	p := l.peer(name)
	return m.Session == l.own(p) && m.PeerSession == p.latest
}

// Goodbye returns the stamp of the last will, which a broker sends to a peer when this client is gone. It is
// made before any peer session is known, so it names the own session only.
func (l *Tracker) Goodbye(name string) Stamp {
	p := l.peers[name]
	if p == nil {
		p = &peer{}
	}
	return Stamp{Session: l.own(p)}
}

// MatchesGoodbye reports whether a goodbye is about the latest known session of a peer. One of an earlier
// session has no meaning for the present one. The ids are compared, because the number of a session may rise
// after its goodbye was made.
func (l *Tracker) MatchesGoodbye(name string, m Stamp) bool {
	return l.IsHawser(name) && m.Session.ID == l.peers[name].latest.ID
}

// Stamp returns the stamp of the next event to a peer, or of a pair; see [Stamp.Second].
func (l *Tracker) Stamp(name string) Stamp {
	l.fence += 2
	p := l.peer(name)
	return Stamp{Session: l.own(p), PeerSession: p.latest, Fence: l.fence}
}
