package topic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
)

// The examples in the documentation of Open Cluster Management, for a source and for an agent.
var (
	ofSource = Set{
		SourceEvents: "sources/hub1/clusters/+/sourceevents", AgentEvents: "sources/hub1/clusters/+/agentevents",
		SourceBroadcast: "sources/+/sourcebroadcast", AgentBroadcast: "clusters/+/agentbroadcast",
	}
	ofAgent = Set{
		SourceEvents: "sources/hub1/clusters/cluster1/sourceevents", AgentEvents: "sources/hub1/clusters/cluster1/agentevents",
		SourceBroadcast: "sources/+/sourcebroadcast", AgentBroadcast: "clusters/+/agentbroadcast",
	}
)

func without(s Set) Set {
	s.SourceBroadcast, s.AgentBroadcast = "", ""
	return s
}

func newSource(t *testing.T, s Set) Source {
	t.Helper()
	source, err := NewSource(s, "hub1")
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func newAgent(t *testing.T, s Set) Agent {
	t.Helper()
	agent, err := NewAgent(s, "cluster1")
	if err != nil {
		t.Fatal(err)
	}
	return agent
}

func works(sub codec.Subresource, action codec.Action) codec.EventType {
	return codec.EventType{DataType: codec.ManifestBundles, Subresource: sub, Action: action}
}

// TestSource_Topic covers case C51 for sources, and C53.
func TestSource_Topic(t *testing.T) {
	own := codec.EventType{}
	for _, c := range []struct {
		name    string
		set     Set
		typ     codec.EventType
		cluster string
		hawser  bool
		want    string // "" is an error
	}{
		{"spec", ofSource, works(codec.Spec, codec.CreateRequest), "c1", false, "sources/hub1/clusters/c1/sourceevents"},
		{"status resync of one", ofSource, works(codec.Status, codec.ResyncRequest), "c1", false, "sources/hub1/clusters/c1/sourceevents"},
		{"status resync of all", ofSource, works(codec.Status, codec.ResyncRequest), "", false, "sources/hub1/sourcebroadcast"},
		{"C53", without(ofSource), works(codec.Status, codec.ResyncRequest), "", false, ""},
		{"at a Hawser broker", without(ofSource), works(codec.Status, codec.ResyncRequest), "", true, "sources/hub1/sourcebroadcast"},
		{"inventory", without(ofSource), own, "", true, "sources/hub1/sourcebroadcast"},
		{"spec without cluster", ofSource, works(codec.Spec, codec.CreateRequest), "", true, ""},
		{"cluster that is no level", ofSource, works(codec.Spec, codec.CreateRequest), "a/b", false, ""},
		{"one cluster", Set{SourceEvents: "sources/hub1/clusters/c1/sourceevents", AgentEvents: ofSource.AgentEvents}, works(codec.Spec, codec.CreateRequest), "c2", false, ""},
		{"Maestro", Set{SourceEvents: "sources/hub1/consumers/+/sourceevents", AgentEvents: "$share/statussubscribers/sources/hub1/consumers/+/agentevents"}, works(codec.Spec, codec.DeleteRequest), "c1", false, "sources/hub1/consumers/c1/sourceevents"},
	} {
		got, err := newSource(t, c.set).Topic(c.typ, c.cluster, c.hawser)
		if got != c.want && (c.want != "" || err == nil) || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

// TestAgent_Topic covers case C51 for agents, and C52.
func TestAgent_Topic(t *testing.T) {
	anySource := without(ofAgent)
	anySource.AgentEvents = "sources/+/clusters/+/agentevents"
	for _, c := range []struct {
		name   string
		set    Set
		typ    codec.EventType
		source string
		hawser bool
		want   string
	}{
		{"status", ofAgent, works(codec.Status, codec.UpdateRequest), "hub1", false, "sources/hub1/clusters/cluster1/agentevents"},
		{"status for another source", ofAgent, works(codec.Status, codec.UpdateRequest), "hub2", false, "sources/hub1/clusters/cluster1/agentevents"},
		{"status for another source at a Hawser broker", ofAgent, works(codec.Status, codec.UpdateRequest), "hub2", true, "sources/hub2/clusters/cluster1/agentevents"},
		{"spec resync of one", ofAgent, works(codec.Spec, codec.ResyncRequest), "hub1", false, "sources/hub1/clusters/cluster1/agentevents"},
		{"spec resync of all", ofAgent, works(codec.Spec, codec.ResyncRequest), "", false, "clusters/cluster1/agentbroadcast"},
		{"C52", without(ofAgent), works(codec.Spec, codec.ResyncRequest), "", false, "sources/hub1/clusters/cluster1/agentevents"},
		{"C52 at a Hawser broker", without(ofAgent), works(codec.Spec, codec.ResyncRequest), "", true, "clusters/cluster1/agentbroadcast"},
		{"ack", without(ofAgent), codec.EventType{}, "", true, "clusters/cluster1/agentbroadcast"},
		{"any source", anySource, works(codec.Status, codec.UpdateRequest), "hub2", false, "sources/hub2/clusters/cluster1/agentevents"},
		{"any source, none known", anySource, works(codec.Spec, codec.ResyncRequest), "", false, ""},
		{"status of no source", ofAgent, works(codec.Status, codec.UpdateRequest), "", false, "sources/hub1/clusters/cluster1/agentevents"},
	} {
		got, err := newAgent(t, c.set).Topic(c.typ, c.source, c.hawser)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

func TestFilters(t *testing.T) {
	shared := ofSource
	shared.AgentEvents = "$share/g/" + ofSource.AgentEvents // C54
	sharedAgent := Set{SourceEvents: "$share/g/sources/hub1/clusters/+/sourceevents", AgentEvents: "sources/hub1/clusters/+/agentevents"}
	for _, c := range []struct {
		name      string
		got, want []string
	}{
		{"source", newSource(t, shared).Filters(false), []string{"$share/g/sources/hub1/clusters/+/agentevents", "clusters/+/agentbroadcast"}},
		{"source at a Hawser broker", newSource(t, without(shared)).Filters(true), []string{"sources/hub1/clusters/+/agentevents"}},
		{"agent", newAgent(t, ofAgent).Filters(false), []string{"sources/hub1/clusters/cluster1/sourceevents", "sources/+/sourcebroadcast"}},
		{"agent with a pattern", newAgent(t, sharedAgent).Filters(false), []string{"$share/g/sources/hub1/clusters/cluster1/sourceevents"}},
		{"agent at a Hawser broker", newAgent(t, sharedAgent).Filters(true), []string{"sources/+/clusters/cluster1/sourceevents"}},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

// TestSet_Errors: errors name the key of the invalid pattern. Case C55 is included.
func TestSet_Errors(t *testing.T) {
	change := func(s Set, f func(*Set)) Set { f(&s); return s }
	for _, c := range []struct {
		name   string
		set    Set
		source bool
		want   string
	}{
		{"nothing", Set{}, true, "topics.sourceEvents: is required"},
		{"no agentEvents", Set{SourceEvents: ofSource.SourceEvents}, true, "topics.agentEvents: is required"},
		{"C55", change(ofSource, func(s *Set) { s.AgentEvents = "sources/hub2/clusters/+/agentevents" }), true, `names the source "hub2"`},
		{"any source", change(ofSource, func(s *Set) { s.SourceEvents = "sources/+/clusters/+/sourceevents" }), true, `names the source "+"`},
		{"kinds mixed up", change(ofSource, func(s *Set) { s.AgentEvents = s.SourceEvents }), true, "must end in /agentevents"},
		{"old layout", change(ofSource, func(s *Set) { s.SourceEvents = "sources/hub1/clusters/+/spec" }), true, "topics.sourceEvents"},
		{"upper case", change(ofSource, func(s *Set) { s.SourceEvents = "sources/Hub1/clusters/+/sourceevents" }), true, `the name "Hub1"`},
		{"source publishes on a group", change(ofSource, func(s *Set) { s.SourceEvents = "$share/g/" + s.SourceEvents }), true, "$share"},
		{"source broadcasts on a group", change(ofSource, func(s *Set) { s.SourceBroadcast = "$share/g/" + s.SourceBroadcast }), true, "$share"},
		{"another source's broadcast", change(ofSource, func(s *Set) { s.SourceBroadcast = "sources/hub2/sourcebroadcast" }), true, "sourceBroadcast"},
		{"agent of another cluster", change(ofAgent, func(s *Set) { s.SourceEvents = "sources/hub1/clusters/c2/sourceevents" }), false, `names the cluster "c2"`},
		{"another cluster's broadcast", change(ofAgent, func(s *Set) { s.AgentBroadcast = "clusters/c2/agentbroadcast" }), false, "topics.agentBroadcast"},
		{"agent publishes on a group", change(ofAgent, func(s *Set) { s.AgentEvents = "$share/g/" + s.AgentEvents }), false, "$share"},
		{"agent with nothing", Set{}, false, "topics.agentEvents: is required"},
	} {
		_, err := NewAgent(c.set, "cluster1")
		if c.source {
			_, err = NewSource(c.set, "hub1")
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := NewAgent(ofAgent, "Cluster.1"); err == nil {
		t.Error("a cluster that no topic of the grammar can name was taken")
	}
	if err := ofAgent.Validate(); err != nil {
		t.Error(err)
	}
}
