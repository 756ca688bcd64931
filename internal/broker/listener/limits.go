package listener

import (
	"cmp"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/identity"
)

// resources are what the process may use.
type resources struct {
	memory int64 // bytes
	files  int   // open files
}

// limits bound what the peers of one port may use of it.
type limits struct {
	// connections are all that are open, those before their handshake included.
	connections int
	// pending are handshakes under way, in all and of one address.
	pending, pendingEach int
	// failures are handshakes of one address that lead to no identity.
	failures fair.Rate
	// unidentified are connections that may not call anything: without an identity,
	// or of one that has all it may have. They exist so that a party is told why.
	unidentified int
	// bodies are the bytes of calls that are being read or served.
	bodies int64
	// lists run at a time, of all identities: each has at most as many as are free, so
	// that two of them leave some to others.
	lists int
	roles map[identity.Role]allowance
	// unidentifiedRate is what a connection may use of which nobody knows whose it is, suspended what its
	// calls may that wait for what its token says.
	unidentifiedRate, suspended allowance
}

// allowance is what one identity may use.
type allowance struct {
	connections int
	connects    fair.Rate
	// running are its calls of each kind at a time, calls how many it may begin.
	running [kinds]int
	calls   fair.Rate
	// bodies are the bytes of all of them.
	bodies int64
	// bytes may come, of whatever kind; more is not read before its time. The zero rate
	// does not bound them.
	bytes fair.Rate
	// questions are messages on its reflection stream.
	questions fair.Rate
	// idle are frames that carry nothing of a call, of all its connections. Of one
	// connection, refused are calls that are refused, stray bytes sent to calls that
	// are over.
	idle, refused, closedStreams fair.Rate
}

// Kind of a call: those of one kind cost alike.
type Kind int

// The kinds.
const (
	Unary     Kind = iota // publishes, and what else is one request and one answer
	Streaming             // subscriptions, and watching health
	Listing
	Reflecting
	kinds
)

// KindOf says of which kind a method is.
func KindOf(method string) Kind {
	switch method {
	case authz.Subscribe, authz.HealthWatch:
		return Streaming
	case authz.ListClusters, authz.ListWorks, authz.ListDiscrepancies, authz.ListQuotas, authz.ListDenials, authz.Backup:
		return Listing
	case authz.Reflection, authz.ReflectionAlpha:
		return Reflecting
	}
	return Unary
}

// String names the kind as refusals do.
func (k Kind) String() string {
	return [...]string{"calls", "subscriptions", "lists", "reflection streams"}[k]
}

const (
	mib = 1 << 20
	// filesOfStore are open at most of the store's tables; filesOfRest are its logs,
	// the admin port, and what the runtime needs.
	filesOfStore, filesOfRest = 500, 100
	// fewestConnections are allowed whatever the process may use.
	fewestConnections = 64
)

// limitsFor divides what there is. Of the memory an eighth is for bodies, which
// are copied once and are garbage afterwards: all in all they take up to half.
func limitsFor(r resources, maxMessage, handshakesEach int) limits {
	connections := max(r.files-filesOfStore-filesOfRest, fewestConnections)
	message := int64(maxMessage)
	bodies := max(min(r.memory/8, 256*mib), 64*mib, 8*message)
	// Two of the largest lists at a time are nothing special.
	each := max(bodies/8, 3*message)
	return limits{
		connections:  connections,
		pendingEach:  min(handshakesEach, connections/4),
		pending:      min(max(256, 2*handshakesEach), connections/2),
		failures:     per(float64(handshakesEach)/4, 2*float64(handshakesEach)),
		unidentified: min(32, connections/8),
		bodies:       bodies,
		lists:        8,
		roles: map[identity.Role]allowance{
			// Several agents may run under the name of one cluster, and what a
			// network cut off counts until it is noticed.
			identity.Agent: perIdentity(16, [kinds]int{Unary: 256, Streaming: 32, Reflecting: 1}, per(2_000, 10_000), each).atMost(per(4*mib, 16*mib)),
			// A source publishes for all its clusters, and large works side by side; how
			// much it may is decided where its events wait for their commit.
			identity.Source:   perIdentity(64, [kinds]int{Unary: 4096, Streaming: 32, Reflecting: 1}, per(50_000, 100_000), max(bodies*3/4, each)),
			identity.Operator: perIdentity(32, [kinds]int{Unary: 32, Streaming: 8, Listing: 4, Reflecting: 1}, per(100, 500), each),
			// People share it where an organization is mapped.
			identity.Viewer: perIdentity(64, [kinds]int{Unary: 32, Streaming: 8, Listing: 4, Reflecting: 1}, per(100, 500), each),
			// All clusters that join share one account.
			identity.Bootstrap: perIdentity(4096, [kinds]int{Unary: 1024, Streaming: 16384, Reflecting: 1}, per(2_000, 10_000), each).atMost(per(4*mib, 16*mib)),
		},
		unidentifiedRate: allowance{idle: per(100, 1_000), refused: per(10, 100), closedStreams: per(64<<10, 256<<10), bytes: per(256<<10, mib)},
		// A klusterlet begins with some streams, and small publishes.
		suspended: perIdentity(1, [kinds]int{Unary: 16, Streaming: 16}, per(20, 64), mib),
	}
}

// bearing leaves room for those who are strangers until a token says who they are.
func (l limits) bearing() limits {
	l.unidentified = min(512, l.connections/4)
	return l
}

// noRole is the role of who has no identity.
const noRole identity.Role = ""

func perIdentity(connections int, running [kinds]int, calls fair.Rate, bodies int64) allowance {
	return allowance{
		connections: connections, connects: per(float64(connections)/2, 4*float64(connections)), running: running, calls: calls, bodies: bodies,
		questions: per(50, 200),
		// A peer that receives fast sends thousands of window updates in a second.
		idle: per(20_000, 20_000), refused: per(50, 200), closedStreams: per(mib, 8*mib),
	}
}

// atMost bounds what is read of an identity.
func (a allowance) atMost(bytes fair.Rate) allowance {
	a.bytes = bytes
	return a
}

// holding bounds bodies as somebody says, in all and of one identity; 0: as before.
func (l limits) holding(all, each int64) limits {
	l.bodies = cmp.Or(all, l.bodies)
	for role, a := range l.roles {
		a.bodies = cmp.Or(each, a.bodies)
		l.roles[role] = a
	}
	return l
}

// trusting lets one identity use all there is: without TLS every peer is the same
// one.
func (l limits) trusting() limits {
	many := 1 << 30
	everything := perIdentity(many, [kinds]int{many, many, many, many}, per(1e9, 1e9), l.bodies)
	everything.connects, everything.questions, everything.refused = per(1e9, 1e9), per(1e9, 1e9), per(1e9, 1e9)
	l.lists, l.pendingEach = many, l.pending
	l.roles = map[identity.Role]allowance{identity.Operator: everything}
	return l
}

// per is how often something may happen: burst times at once, then second in a second.
func per(second, burst float64) fair.Rate { return fair.Rate{PerSecond: second, Burst: burst} }

// of is the kind as which a call of an identity is counted: who waits for what a token says takes
// no place that is everybody's.
func (k Kind) of(id identity.Identity) Kind {
	if id.Role == noRole && k != Unary {
		return Streaming
	}
	return k
}
