package topic

import (
	"errors"
	"fmt"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Set is the part "topics" of a configuration file of Open Cluster Management.
type Set struct {
	// SourceEvents is where sources publish works, as sources/hub/clusters/+/sourceevents. Required.
	SourceEvents string `json:"sourceEvents"`
	// AgentEvents is where agents publish statuses, as sources/hub/clusters/+/agentevents. Required.
	AgentEvents string `json:"agentEvents"`
	// SourceBroadcast is where a source asks all agents, as sources/+/sourcebroadcast.
	SourceBroadcast string `json:"sourceBroadcast,omitempty"`
	// AgentBroadcast is where an agent asks all sources, as clusters/+/agentbroadcast.
	AgentBroadcast string `json:"agentBroadcast,omitempty"`
}

// Validate says all that is wrong with the patterns, each error naming its key.
func (s Set) Validate() error {
	_, err := s.read()
	return err
}

// patterns is a Set that was read; a broadcast that is not configured has no kind.
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

// parsePattern is Parse for a configuration file, where names are lower-case letters, digits
// and "-", and the kind is given by the key.
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

// errShared is the error about $share where somebody publishes.
var errShared = errors.New("begins with $share, on which nobody can publish: leave it out")

// Source is what becomes of a [Set] for one source.
type Source struct {
	id string
	p  patterns
}

// NewSource reads the patterns of the source id. It refuses those that belong to another
// source, or to any: the source would publish as somebody else.
func NewSource(s Set, id string) (Source, error) {
	p, err := s.read()
	if err != nil {
		return Source{}, err
	}
	for _, f := range []struct{ key, source string }{{"sourceEvents", p.sourceEvents.Source}, {"agentEvents", p.agentEvents.Source}} {
		if f.source != id {
			return Source{}, fmt.Errorf("topics.%s: names the source %q, and this is %q: put the latter there", f.key, f.source, id)
		}
	}
	if p.sourceEvents.Group != "" {
		return Source{}, fmt.Errorf("topics.sourceEvents: %w", errShared)
	}
	if b := p.sourceBroadcast; b.Kind != "" && !b.AnySource() && b.Source != id {
		return Source{}, fmt.Errorf("topics.sourceBroadcast: names the source %q, and this is %q: put the latter there", b.Source, id)
	}
	if p.sourceBroadcast.Group != "" {
		return Source{}, fmt.Errorf("topics.sourceBroadcast: %w", errShared)
	}
	return Source{id: id, p: p}, nil
}

// Filters returns what the source subscribes to. At a Hawser broker it shares with nobody: a
// Hawser source is one process at a time, and a member of a group could not resume.
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

// Topic returns where the source publishes an event for cluster. Only a status resync request,
// which then goes to all agents, and events of Hawser's own, whose type t is zero, may have no
// cluster. A Hawser broker takes those of Hawser's own whether or not a broadcast is configured.
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

// Agent is what becomes of a [Set] for the agent of one cluster.
type Agent struct {
	cluster string
	p       patterns
}

// NewAgent reads the patterns of the agent of cluster. Where they name a cluster it must be
// that one.
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
			return Agent{}, fmt.Errorf(`topics.%s: names the cluster %q, and this is %q: put the latter there, or "+"`, f.key, f.t.Cluster, cluster)
		}
		if f.publish && f.t.Group != "" {
			return Agent{}, fmt.Errorf("topics.%s: %w", f.key, errShared)
		}
	}
	return Agent{cluster: cluster, p: p}, nil
}

// Filters returns what the agent subscribes to. At a Hawser broker it is the works of every
// source, shared with nobody: the digest by which both compare is over all of them.
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

// Topic returns where the agent publishes an event whose originalsource is source. One for no
// source, such as a spec resync request to all, goes to the broadcast topic if there is one. A
// Hawser broker compares the topic with the event, so the topic names the source of the event
// there, whatever is configured; elsewhere only in the place of a "+".
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
		err = errors.New(`the event is for no single source: configure topics.agentBroadcast, or put the source in the place of "+" in topics.agentEvents`)
	}
	return topic, err
}
