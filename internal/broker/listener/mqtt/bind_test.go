package mqtt

import (
	"testing"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// TestBind_EveryRoleTopicAndEvent checks that an event is accepted only on topics of its publisher's side that
// name its source and its cluster.
func TestBind_EveryRoleTopicAndEvent(t *testing.T) {
	topics := map[string]string{
		"specs a/1":       "sources/a/clusters/1/sourceevents",
		"specs b/1":       "sources/b/clusters/1/sourceevents",
		"specs a/2":       "sources/a/clusters/2/sourceevents",
		"statuses a/1":    "sources/a/clusters/1/agentevents",
		"statuses b/1":    "sources/b/clusters/1/agentevents",
		"statuses a/2":    "sources/a/clusters/2/agentevents",
		"broadcast a":     "sources/a/sourcebroadcast",
		"broadcast b":     "sources/b/sourcebroadcast",
		"broadcast 1":     "clusters/1/agentbroadcast",
		"broadcast 2":     "clusters/2/agentbroadcast",
		"filter of all":   "sources/+/clusters/1/sourceevents",
		"filter of none":  "sources/a/clusters/+/agentevents",
		"shared":          "$share/g/sources/a/clusters/1/agentevents",
		"all broadcasts":  "sources/+/sourcebroadcast",
		"all broadcasts2": "clusters/+/agentbroadcast",
	}
	const (
		source, agent, bootstrap, anyRole = identity.Source, identity.Agent, identity.Bootstrap, identity.Role("")
	)
	for name, c := range map[string]struct {
		event codec.Envelope
		taken map[identity.Role][]string
	}{
		"spec, or request for the statuses of a cluster": {
			codec.Envelope{Source: "a", Cluster: "1"},
			map[identity.Role][]string{source: {"specs a/1"}, agent: {"statuses a/1", "statuses b/1", "broadcast 1"}, anyRole: {"specs a/1", "statuses a/1", "statuses b/1", "broadcast 1"}},
		},
		"request for all statuses": {
			codec.Envelope{Source: "a"},
			map[identity.Role][]string{source: {"broadcast a"}, anyRole: {"broadcast a"}},
		},
		"status": {
			codec.Envelope{Source: "1-agent", Cluster: "1", OriginalSource: "a"},
			map[identity.Role][]string{agent: {"statuses a/1"}, anyRole: {"statuses a/1"}},
		},
		"request for all specs": {
			codec.Envelope{Source: "1-agent", Cluster: "1"},
			map[identity.Role][]string{agent: {"statuses a/1", "statuses b/1", "broadcast 1"}, anyRole: {"statuses a/1", "statuses b/1", "broadcast 1"}},
		},
		"status of a cluster that has the name of a source": {
			codec.Envelope{Source: "a", Cluster: "a", OriginalSource: "b"},
			nil,
		},
		"nothing": {codec.Envelope{}, nil},
	} {
		for _, role := range []identity.Role{source, agent, bootstrap, anyRole} {
			as := role
			if role == bootstrap { // it sends the requests that the agent of the new cluster would send
				as = agent
			}
			want := map[string]bool{}
			for _, n := range c.taken[as] {
				want[n] = true
			}
			for n, text := range topics {
				parsed, err := topic.Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				if err := bind(role, parsed, &c.event); (err == nil) != want[n] {
					t.Errorf("%s as %q on %s: %v", name, role, n, err)
				}
			}
		}
	}
}
