package topic

import (
	"errors"
	"fmt"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Set is the part "topics" of a configuration file of Open Cluster Management.
type Set struct {
	// SourceEvents is the topic on which sources publish works, as sources/hub/clusters/+/sourceevents. Required.
	SourceEvents string `json:"sourceEvents"`
	// AgentEvents is the topic on which agents publish statuses, as sources/hub/clusters/+/agentevents. Required.
	AgentEvents string `json:"agentEvents"`
	// SourceBroadcast is the topic of a source's resync requests to all agents, as sources/+/sourcebroadcast.
	SourceBroadcast string `json:"sourceBroadcast,omitempty"`
	// AgentBroadcast is the topic of an agent's resync requests to all sources, as clusters/+/agentbroadcast.
	AgentBroadcast string `json:"agentBroadcast,omitempty"`
}

// Validate returns all problems of the patterns; each error names its key.
func (s Set) Validate() error {
	_, err := s.read()
	return err
}

// patterns is a parsed Set; a broadcast that is not configured has no kind.
type patterns struct{ sourceEvents, agentEvents, sourceBroadcast, agentBroadcast Topic }

func (s Set) read() (p patterns, err error) {
	for _, f := range []struct {
		key, text string
		kind      Kind
		to        *Topic
		required  bool
	}{
		{"sourceEvents", s.SourceEvents, SourceEvents, &p.sourceEvents, true},
		{"agentEvents", s.AgentEvents, AgentEvents, &p.agentEvents, true},
		{"sourceBroadcast", s.SourceBroadcast, SourceBroadcast, &p.sourceBroadcast, false},
		{"agentBroadcast", s.AgentBroadcast, AgentBroadcast, &p.agentBroadcast, false},
	} {
		if f.text == "" && !f.required {
			continue
		}
		var e error
		*f.to, e = parsePattern(f.text, f.kind)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("topics.%s: %w", f.key, e))
		}
	}
	return p, err
}

// parsePattern is Parse for a configuration file. Names are lower-case letters, digits and "-", and the key
// determines the kind.
func parsePattern(text string, kind Kind) (Topic, error) {
	if text == "" {
		return Topic{}, fmt.Errorf("is required, such as sources/hub1/clusters/+/%s", kind)
	}
	t, err := Parse(text)
	switch {
	case err != nil:
		return Topic{}, err
	case t.Kind != kind:
		return Topic{}, fmt.Errorf("%q must end in /%s", text, kind)
	}
	for _, name := range []string{t.Group, t.Source, t.Cluster} {
		if name != "" && name != anyName && !isSimpleName(name) {
			return Topic{}, fmt.Errorf(`%q: the name %q must consist of lower-case letters, digits and "-"`, text, name)
		}
	}
	return t, nil
}

// errShared is the error about $share in a topic that a client publishes on.
var errShared = errors.New("begins with $share, which is for subscriptions only: leave it out")

// Source holds the topics of one source, made from a [Set].
type Source struct {
	id string
	p  patterns
}

// NewSource parses the patterns for the source id. It rejects patterns for another source, or for any: the
// source would publish under another identity.
func NewSource(s Set, id string) (Source, error) {
	p, err := s.read()
	if err != nil {
		return Source{}, err
	}
	for _, f := range []struct{ key, source string }{{"sourceEvents", p.sourceEvents.Source}, {"agentEvents", p.agentEvents.Source}} {
		if f.source != id {
			return Source{}, fmt.Errorf("topics.%s: names the source %q, but this client is for the source %q: correct the topic", f.key, f.source, id)
		}
	}
	if p.sourceEvents.Group != "" {
		return Source{}, fmt.Errorf("topics.sourceEvents: %w", errShared)
	}
	if b := p.sourceBroadcast; b.Kind != "" && !b.AnySource() && b.Source != id {
		return Source{}, fmt.Errorf("topics.sourceBroadcast: names the source %q, but this client is for the source %q: correct the topic", b.Source, id)
	}
	if p.sourceBroadcast.Group != "" {
		return Source{}, fmt.Errorf("topics.sourceBroadcast: %w", errShared)
	}
	return Source{id: id, p: p}, nil
}

// Filters returns the topic filters of the source. At a Hawser broker the subscription is not shared. A Hawser
// source is one process at a time, and a member of a group could not resume.
func (s Source) Filters(hawser bool) []string {
	events := s.p.agentEvents
	if hawser {
		events.Group = ""
	}
	filters := []string{events.String()}
	if s.p.agentBroadcast.Kind != "" {
		filters = append(filters, s.p.agentBroadcast.String())
	}
	return filters
}

// Topic returns the topic on which the source publishes an event for cluster. Only two kinds of events may have
// no cluster. One is a status resync request, which goes to all agents. The others are Hawser events with a zero
// type t. A Hawser broker accepts the latter with or without a configured broadcast.
func (s Source) Topic(t codec.EventType, cluster string, hawser bool) (string, error) {
	if cluster != "" {
		topic, err := s.p.sourceEvents.Fill("", cluster)
		if c := s.p.sourceEvents.Cluster; err == nil && c != anyName && c != cluster {
			err = fmt.Errorf(`topics.sourceEvents is for the cluster %q alone, and the event is for %q: put "+" there`, c, cluster)
		}
		return topic, err
	}
	if t != (codec.EventType{}) && (t.Subresource != codec.Status || t.Action != codec.ResyncRequest) {
		return "", fmt.Errorf("an event of type %s must name a cluster", t)
	}
	broadcast := s.p.sourceBroadcast
	if broadcast.Kind == "" {
		if !hawser {
			return "", errors.New("the event is for all clusters, and topics.sourceBroadcast is not configured")
		}
		broadcast = Topic{Kind: SourceBroadcast, SourceWord: s.p.sourceEvents.SourceWord, Source: anyName}
	}
	return broadcast.Fill(s.id, "")
}

// Agent holds the topics of the agent of one cluster, made from a [Set].
type Agent struct {
	cluster string
	p       patterns
}

// NewAgent parses the patterns for the agent of cluster. A cluster name in a pattern must be that one.
func NewAgent(s Set, cluster string) (Agent, error) {
	p, err := s.read()
	if err != nil {
		return Agent{}, err
	}
	if !isSimpleName(cluster) {
		return Agent{}, fmt.Errorf(`the cluster %q: its name must consist of lower-case letters, digits and "-" to be part of a topic`, cluster)
	}
	for _, f := range []struct {
		key     string
		t       Topic
		publish bool
	}{{"sourceEvents", p.sourceEvents, false}, {"agentEvents", p.agentEvents, true}, {"agentBroadcast", p.agentBroadcast, true}} {
		if f.t.Kind != "" && !f.t.AnyCluster() && f.t.Cluster != cluster {
			return Agent{}, fmt.Errorf(`topics.%s: names the cluster %q, but this client is for the cluster %q: correct the topic, or use "+"`, f.key, f.t.Cluster, cluster)
		}
		if f.publish && f.t.Group != "" {
			return Agent{}, fmt.Errorf("topics.%s: %w", f.key, errShared)
		}
	}
	return Agent{cluster: cluster, p: p}, nil
}

// Filters returns the topic filters of the agent. At a Hawser broker they match the works of all sources and
// are not shared, because the digest for comparison covers all of them.
func (a Agent) Filters(hawser bool) []string {
	events := a.p.sourceEvents
	events.Cluster = a.cluster
	if hawser {
		events.Source, events.Group = anyName, ""
	}
	filters := []string{events.String()}
	if a.p.sourceBroadcast.Kind != "" {
		filters = append(filters, a.p.sourceBroadcast.String())
	}
	return filters
}

// Topic returns the topic on which the agent publishes an event whose originalsource is source. An event for no
// source, such as a spec resync request to all, goes to the broadcast topic, if there is one. At a Hawser broker
// the topic always names the source of the event, because the broker compares both. At other brokers the source
// only replaces a "+".
func (a Agent) Topic(t codec.EventType, source string, hawser bool) (string, error) {
	toAll := source == "" && t.Subresource != codec.Status
	if toAll && a.p.agentBroadcast.Kind != "" {
		return a.p.agentBroadcast.Fill("", a.cluster)
	}
	if toAll && hawser {
		return Topic{Kind: AgentBroadcast, ClusterWord: a.p.agentEvents.ClusterWord, Cluster: a.cluster}.String(), nil
	}
	events := a.p.agentEvents
	if hawser && source != "" {
		events.Source = anyName
	}
	topic, err := events.Fill(source, a.cluster)
	if err != nil && source == "" {
		err = errors.New(`the event is for no single source: configure topics.agentBroadcast, or replace "+" by the source in topics.agentEvents`)
	}
	return topic, err
}
