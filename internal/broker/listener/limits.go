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

// limits bound what the peers of one port may use.
type limits struct {
	// connections is the number of open connections, handshakes included.
	connections int
	// pending is the number of handshakes in progress, pendingEach that of one address.
	pending, pendingEach int
	// queued is the number of connections of each class that wait for their handshake, and computing that of
	// handshakes which have begun and were not computed yet.
	queued, computing int
	// failures is the rate of handshakes of one address that give no identity.
	failures fair.Rate
	// unidentified is the number of connections that may not call anything: those without an identity, and those
	// over the limit of their identity. They are kept so that the client gets the reason.
	unidentified int
	// bodies is the number of bytes of calls that are read or served.
	bodies int64
	// lists is the number of concurrent lists of all identities. An identity may have at most as many lists as are
	// still free, so that two identities together leave some free.
	lists int
	roles map[identity.Role]allowance
	// unidentifiedRate is what an unidentified connection may use. suspended is what its calls may use while its
	// token is under review.
	unidentifiedRate, suspended allowance
}

// allowance is what one identity may use.
type allowance struct {
	connections int
	connects    fair.Rate
	// running is the number of concurrent calls of each kind, calls the rate of new calls.
	running [numKinds]int
	calls   fair.Rate
	// bodies is the number of bytes of all its calls.
	bodies int64
	// bytes is the rate of received bytes of any kind; more is read later. The zero rate is no limit.
	bytes fair.Rate
	// questions is the rate of messages on its reflection stream.
	questions fair.Rate
	// idle is the rate of frames outside of calls, on all its connections. Per connection, refused is the rate of
	// rejected calls and closedStreams that of bytes sent to calls that are over.
	idle, refused, closedStreams fair.Rate
}

// Kind is the kind of a call. Calls of one kind cost alike.
type Kind int

// The kinds of calls.
const (
	Unary     Kind = iota // publishes, and other calls with one request and one answer
	Streaming             // subscriptions, and watching health
	Listing
	Reflecting
	numKinds
)

// KindOf returns the kind of a method.
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

// String returns the name of the kind for error messages.
func (k Kind) String() string {
	return [...]string{"calls", "subscriptions", "lists", "reflection streams"}[k]
}

const (
	mib = 1 << 20
	// filesOfStore is the maximum number of open tables of the store. filesOfRest covers its logs, the admin port
	// and the runtime.
	filesOfStore, filesOfRest = 500, 100
	// fewestConnections is the minimum of limits.connections.
	fewestConnections = 64
)

// limitsFor derives the limits from the resources. An eighth of the memory is for bodies. They are copied once
// and then are garbage, so in total they take up to half of the memory.
func limitsFor(r resources, maxMessage, handshakesEach int) limits {
	connections := max(r.files-filesOfStore-filesOfRest, fewestConnections)
	message := int64(maxMessage)
	bodies := max(min(r.memory/8, 256*mib), 64*mib, 8*message)
	// A client may normally send two of the largest lists at a time.
	each := max(bodies/8, 3*message)
	return limits{
		connections:  connections,
		pendingEach:  min(handshakesEach, connections/4),
		pending:      min(max(256, 2*handshakesEach), connections/2),
		queued:       min(8192, connections/4),
		computing:    2 * handshakesAtOnce(),
		failures:     per(float64(handshakesEach)/4, 2*float64(handshakesEach)),
		unidentified: min(32, connections/8),
		bodies:       bodies,
		lists:        8,
		roles: map[identity.Role]allowance{
			// Several agents may use the name of one cluster. A connection that the network has cut counts until the broker
			// detects that.
			identity.Agent: perIdentity(16, [numKinds]int{Unary: 256, Streaming: 32, Reflecting: 1}, per(2_000, 10_000), per(4*mib, 16*mib), each),
			// A source publishes for all its clusters, and sends large works in parallel. The commit queue limits its
			// events further.
			identity.Source:   perIdentity(64, [numKinds]int{Unary: 4096, Streaming: 32, Reflecting: 1}, per(50_000, 100_000), fair.Rate{}, max(bodies*3/4, each)),
			identity.Operator: perIdentity(32, [numKinds]int{Unary: 32, Streaming: 8, Listing: 4, Reflecting: 1}, per(100, 500), fair.Rate{}, each),
			// If a rule maps an organization, many people share one identity.
			identity.Viewer: perIdentity(64, [numKinds]int{Unary: 32, Streaming: 8, Listing: 4, Reflecting: 1}, per(100, 500), fair.Rate{}, each),
			// All clusters that join share one account.
			identity.Bootstrap: perIdentity(4096, [numKinds]int{Unary: 1024, Streaming: 16384, Reflecting: 1}, per(2_000, 10_000), per(4*mib, 16*mib), each),
		},
		unidentifiedRate: allowance{idle: per(100, 1_000), refused: per(10, 100), closedStreams: per(64<<10, 256<<10), bytes: per(256<<10, mib)},
		// A klusterlet begins with a few streams and small publishes.
		suspended: perIdentity(1, [numKinds]int{Unary: 16, Streaming: 16}, per(20, 64), fair.Rate{}, mib),
	}
}

// bearing raises the limit of unidentified connections, because with tokens every client is unidentified at
// first.
func (l limits) bearing() limits {
	l.unidentified = min(512, l.connections/4)
	return l
}

// noRole is the role of connections without an identity.
const noRole identity.Role = ""

func perIdentity(connections int, running [numKinds]int, calls, bytes fair.Rate, bodies int64) allowance {
	return allowance{
		connections: connections, connects: per(float64(connections)/2, 4*float64(connections)), running: running, calls: calls, bytes: bytes, bodies: bodies,
		questions: per(50, 200),
		// A peer that receives fast sends thousands of window updates per second.
		idle: per(20_000, 20_000), refused: per(50, 200), closedStreams: per(mib, 8*mib),
	}
}

// holding sets the limits of body bytes, in total and per identity; 0 keeps the default.
func (l limits) holding(all, each int64) limits {
	l.bodies = cmp.Or(all, l.bodies)
	for role, a := range l.roles {
		a.bodies = cmp.Or(each, a.bodies)
		l.roles[role] = a
	}
	return l
}

// trusting lets one identity use everything: without TLS all peers have the same one.
func (l limits) trusting() limits {
	many := 1 << 30
	everything := perIdentity(many, [numKinds]int{many, many, many, many}, per(1e9, 1e9), fair.Rate{}, l.bodies)
	everything.connects, everything.questions, everything.refused = per(1e9, 1e9), per(1e9, 1e9), per(1e9, 1e9)
	l.lists, l.pendingEach = many, l.pending
	l.roles = map[identity.Role]allowance{identity.Operator: everything}
	return l
}

// per returns a rate: burst at once, then second per second.
func per(second, burst float64) fair.Rate { return fair.Rate{PerSecond: second, Burst: burst} }

// of returns the kind under which a call is counted. While its token is under review, a client's calls other
// than Unary count as Streaming, so that they take no shared list slot.
func (k Kind) of(id identity.Identity) Kind {
	if id.Role == noRole && k != Unary {
		return Streaming
	}
	return k
}
