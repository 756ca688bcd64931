// Package mqttacl writes the rules by which a third-party MQTT broker lets each client use only its own topics.
// Templates of brokers cannot express this, because identities are not topic names. So the rules name every
// cluster.
//
// The package is pure: names go in, text comes out.
package mqttacl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// Layout holds the topics of a source and its agents.
type Layout struct {
	// Source is the id of the source. Topics are the topics in the configuration of its clients.
	Source string
	Topics topic.Set
}

// DefaultLayout returns the default layout.
func DefaultLayout(source string) Layout {
	return Layout{Source: source, Topics: topic.Set{
		SourceEvents:    "sources/" + source + "/clusters/+/sourceevents",
		AgentEvents:     "sources/" + source + "/clusters/+/agentevents",
		SourceBroadcast: "sources/+/sourcebroadcast",
		AgentBroadcast:  "clusters/+/agentbroadcast",
	}}
}

// Principal is a client that gets rules.
type Principal struct {
	// Name is the source id or the cluster name.
	Name string
	// User is the identity of the client at the broker. ClientID is the only MQTT client id that it may use.
	User, ClientID string
}

// Rules are the rights of one client.
type Rules struct {
	Principal
	// Publish and Subscribe are topics. Those of a source have "+" for the cluster.
	Publish, Subscribe []string
}

// OfSource returns the rules of the source.
func (l Layout) OfSource(p Principal) (Rules, error) {
	if err := p.check(); err != nil {
		return Rules{}, err
	}
	s, err := topic.NewSource(l.Topics, l.Source)
	if err != nil {
		return Rules{}, err
	}
	r := Rules{Principal: p, Publish: []string{l.Topics.SourceEvents}, Subscribe: ungrouped(s.Filters(false))}
	if l.Topics.SourceBroadcast != "" {
		all, err := s.Topic(statusResync, "", false)
		if err != nil {
			return Rules{}, err
		}
		r.Publish = append(r.Publish, all)
	}
	return r, nil
}

// OfAgent returns the rules of the agent of cluster p.Name.
func (l Layout) OfAgent(p Principal) (Rules, error) {
	if err := p.check(); err != nil {
		return Rules{}, err
	}
	topics := l.Topics
	topics.SourceEvents, topics.AgentEvents = ungroup(topics.SourceEvents), ungroup(topics.AgentEvents)
	topics.SourceBroadcast, topics.AgentBroadcast = ungroup(topics.SourceBroadcast), ungroup(topics.AgentBroadcast)
	a, err := topic.NewAgent(topics, p.Name)
	if err != nil {
		return Rules{}, err
	}
	own, err := a.Topic(statusUpdate, l.Source, false)
	if err != nil {
		return Rules{}, err
	}
	all, err := a.Topic(specResync, "", false)
	if err != nil {
		return Rules{}, err
	}
	return Rules{Principal: p, Publish: slices.Compact([]string{own, all}), Subscribe: a.Filters(false)}, nil
}

// The event types that each have a topic of their own.
var (
	statusUpdate = codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}
	statusResync = codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.ResyncRequest}
	specResync   = codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.ResyncRequest}
)

// check rejects names that would end a line or a string of a rule, or have a special meaning in it. Otherwise a
// client with a free choice of name could get the rights of another one.
func (p Principal) check() error {
	for _, f := range []struct{ what, name string }{{"user name", p.User}, {"client id", p.ClientID}} {
		if f.name == "" || strings.ContainsFunc(f.name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"\+#*?$%`, r) }) {
			return fmt.Errorf(`%s %q of %s: use printable ASCII without space and without any of " \ + # * ? $ %%`, f.what, f.name, p.Name)
		}
	}
	return nil
}

func ungrouped(filters []string) []string {
	for i, f := range filters {
		filters[i] = ungroup(f)
	}
	return filters
}

// ungroup removes $share/<group>/: rules are about the topics of messages.
func ungroup(filter string) string {
	rest, shared := strings.CutPrefix(filter, "$share/")
	if !shared {
		return filter
	}
	_, rest, _ = strings.Cut(rest, "/")
	return rest
}
