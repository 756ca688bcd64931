package sessionfence

import (
	"math"
	"time"
)

// ConnectionState is whether a party is there, as far as anybody can tell who hears it through a broker
// that keeps nothing.
type ConnectionState uint8

// The presences.
const (
	// Unknown: it was not heard yet, and had no time to speak.
	Unknown ConnectionState = iota
	Connected
	Disconnected
)

// DisconnectedAfter is after how long a party that speaks every minute and is not heard is away. After a
// restart of the broker it may take a minute or two until it is back, and a broker may lose single
// events. So it is four minutes that have to go by without a word. Of one that ends its farewell
// tells earlier.
const DisconnectedAfter = 5 * time.Minute

// ConnectionStateOf says whether a party is there that was heard at lastSeen, by somebody who has listened
// since listening. What nobody could hear is no silence.
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

// Agent is what is known of who speaks for a cluster.
type Agent struct {
	// Kind is "hawser", "ocm", or "unknown" for one that was not heard yet.
	Kind string
	// LastSeen is how long ago it was heard at most, one of "5m", "1h" and "24h"; "older", or "never".
	LastSeen string
}

// ages are the steps of [Agent].Heard.
var ages = []struct {
	name string
	most time.Duration
}{{"5m", 5 * time.Minute}, {"1h", time.Hour}, {"24h", 24 * time.Hour}, {"older", math.MaxInt64}}

// Agents lists them all, for a metric.
func Agents() []Agent {
	list := []Agent{AgentOf(time.Time{}, time.Time{}, false)}
	for _, age := range ages {
		list = append(list, Agent{"hawser", age.name}, Agent{"ocm", age.name})
	}
	return list
}

// AgentOf is one that was heard at lastSeen, or never; hawser: it has shown itself as a Hawser party.
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
