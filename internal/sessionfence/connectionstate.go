package sessionfence

import (
	"math"
	"time"
)

// ConnectionState is whether a client is connected to a stateless broker, by the events that were received from
// it.
type ConnectionState uint8

// The connection states.
const (
	// Unknown: no event was received since listening began, and the client still has time to send one.
	Unknown ConnectionState = iota
	Connected
	Disconnected
)

// DisconnectedAfter is how long a client, which sends an event every minute, may send none. After a restart of
// the broker it may need a minute or two to reconnect, and a broker may lose single events. So four minutes
// without an event have to pass. For a client that ends, its last will comes earlier.
const DisconnectedAfter = 5 * time.Minute

// ConnectionStateOf returns the state of a client whose last event came at lastSeen, for a receiver that has
// listened since listening. Time without a connection of our own does not count as silence.
func ConnectionStateOf(now, lastSeen, listening time.Time, goodbye bool) ConnectionState {
	switch {
	case goodbye, now.Sub(Latest(lastSeen, listening)) >= DisconnectedAfter:
		return Disconnected
	case lastSeen.Before(listening):
		return Unknown
	}
	return Connected
}

// Latest returns the later one of two times.
func Latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// Agent is the kind of a cluster's agent and its last event, as values of metric labels.
type Agent struct {
	// Kind is "hawser", "ocm", or "unknown" if no event was received yet.
	Kind string
	// LastSeen is an upper bound of the time since the last event: "5m", "1h" or "24h"; or "older", or "never".
	LastSeen string
}

// ages are the steps of [Agent].LastSeen.
var ages = []struct {
	name string
	most time.Duration
}{{"5m", 5 * time.Minute}, {"1h", time.Hour}, {"24h", 24 * time.Hour}, {"older", math.MaxInt64}}

// Agents returns all values, for a metric.
func Agents() []Agent {
	list := []Agent{AgentOf(time.Time{}, time.Time{}, false)}
	for _, age := range ages {
		list = append(list, Agent{"hawser", age.name}, Agent{"ocm", age.name})
	}
	return list
}

// AgentOf returns the value for an agent whose last event came at lastSeen; zero: never. hawser: it has sent a
// session of its own.
func AgentOf(now, lastSeen time.Time, hawser bool) Agent {
	if lastSeen.IsZero() {
		return Agent{"unknown", "never"}
	}
	a := Agent{Kind: "ocm"}
	if hawser {
		a.Kind = "hawser"
	}
	for i := len(ages) - 1; i >= 0 && now.Sub(lastSeen) <= ages[i].most; i-- {
		a.LastSeen = ages[i].name
	}
	return a
}
