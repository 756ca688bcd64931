// Package topic is the grammar of the MQTT topics of Open Cluster Management: which topics
// there are, who publishes on which, and who subscribes to what.
//
//	sources/hub1/clusters/cluster1/sourceevents   specs of hub1 for cluster1
//	sources/hub1/clusters/cluster1/agentevents    statuses of cluster1 for hub1
//	sources/hub1/sourcebroadcast                  hub1 asks all agents for their statuses
//	clusters/cluster1/agentbroadcast              cluster1 asks all sources for its specs
//
// The words (sources, clusters) are free, the last one says what it is. A filter may have a
// "+" in the place of a source or a cluster, and $share/<group>/ before it. Each party has
// the four patterns in its configuration, a [Set]; a [Source] and an [Agent] know what
// becomes of them. A broker reads filters and topics with [Parse].
//
// The package is pure: text goes in, text comes out.
package topic

import (
	"fmt"
	"strings"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Kind says what is published on a topic. Its text is the last word of the topic.
type Kind string

// The kinds.
const (
	SourceEvents    Kind = "sourceevents"
	AgentEvents     Kind = "agentevents"
	SourceBroadcast Kind = "sourcebroadcast"
	AgentBroadcast  Kind = "agentbroadcast"
)

// anyName stands in the place of a name in a filter that matches every name.
const anyName = "+"

// share begins a shared subscription.
const share = "$share/"

// Topic is a topic or a filter of the grammar, in parts. A broadcast of a source has no
// cluster and one of an agent no source; the word before it is empty then too.
type Topic struct {
	// Group is that of a shared subscription, "" if it is none.
	Group string
	Kind  Kind
	// SourceWord and ClusterWord stand before the names.
	SourceWord, ClusterWord string
	// Source and Cluster are names, or "+".
	Source, Cluster string
}

// Parse reads a topic or a filter. Words are lower-case letters; a name is any that MQTT can
// hold as one level, since sources on other transports may have such names. The error says
// what the grammar is.
func Parse(s string) (Topic, error) {
	if t, ok := parse(s); ok && len(s) <= codec.MaxTextBytes {
		return t, nil
	}
	return Topic{}, fmt.Errorf("topic %.200q is none of <word>/<source>/<word>/<cluster>/sourceevents or agentevents, <word>/<source>/sourcebroadcast and <word>/<cluster>/agentbroadcast, in which a word consists of lower-case letters", s)
}

func parse(s string) (t Topic, ok bool) {
	if rest, shared := strings.CutPrefix(s, share); shared {
		if t.Group, s, ok = strings.Cut(rest, "/"); !ok || CheckName(t.Group) != nil {
			return t, false
		}
	}
	levels := strings.SplitN(s, "/", 6)
	t.Kind = Kind(levels[len(levels)-1])
	var source, cluster []string // word and name
	switch {
	case len(levels) == 5 && (t.Kind == SourceEvents || t.Kind == AgentEvents):
		source, cluster = levels[:2], levels[2:4]
	case len(levels) == 3 && t.Kind == SourceBroadcast:
		source = levels[:2]
	case len(levels) == 3 && t.Kind == AgentBroadcast:
		cluster = levels[:2]
	default:
		return t, false
	}
	t.SourceWord, t.Source, ok = named(source)
	if ok {
		t.ClusterWord, t.Cluster, ok = named(cluster)
	}
	return t, ok
}

// named reads a word and the name behind it; nothing is good too.
func named(levels []string) (word, name string, ok bool) {
	if levels == nil {
		return "", "", true
	}
	word, name = levels[0], levels[1]
	return word, name, isWord(word) && (name == anyName || CheckName(name) == nil)
}

// String returns the topic as MQTT has it, with its group if it has one.
func (t Topic) String() string {
	s := ""
	if t.Group != "" {
		s = share + t.Group + "/"
	}
	switch t.Kind {
	case SourceBroadcast:
		return s + t.SourceWord + "/" + t.Source + "/" + string(t.Kind)
	case AgentBroadcast:
		return s + t.ClusterWord + "/" + t.Cluster + "/" + string(t.Kind)
	default:
		return s + t.SourceWord + "/" + t.Source + "/" + t.ClusterWord + "/" + t.Cluster + "/" + string(t.Kind)
	}
}

// Concrete reports whether something can be published on the topic: it is not shared, and
// names are where a filter may have "+".
func (t Topic) Concrete() bool {
	return t.Group == "" && t.Source != anyName && t.Cluster != anyName
}

// AnySource reports whether "+" is in the place of the source.
func (t Topic) AnySource() bool { return t.Source == anyName }

// AnyCluster is AnySource of the cluster.
func (t Topic) AnyCluster() bool { return t.Cluster == anyName }

// Fill returns the topic on which something of source and cluster matches the filter t: its
// "+" are filled in, and no group is left. The names that stand in t stay. The error is about
// a name that cannot be a level of a topic.
func (t Topic) Fill(source, cluster string) (string, error) {
	t.Group = ""
	for _, f := range []struct {
		place *string
		name  string
	}{{&t.Source, source}, {&t.Cluster, cluster}} {
		if *f.place != anyName {
			continue
		}
		if err := CheckName(f.name); err != nil {
			return "", err
		}
		*f.place = f.name
	}
	s := t.String()
	if len(s) > codec.MaxTextBytes {
		return "", fmt.Errorf("the topic would have %d bytes, at most %d are possible", len(s), codec.MaxTextBytes)
	}
	return s, nil
}

// CheckName says why a name cannot be one level of a topic.
func CheckName(name string) error {
	if name == "" {
		return fmt.Errorf("an empty name cannot be part of an MQTT topic")
	}
	if err := codec.CheckName("topic", name); err != nil || strings.ContainsAny(name, "/+#") {
		return fmt.Errorf(`the name %.80q cannot be part of an MQTT topic: use no "/", "+" or "#", and only what can be printed`, name)
	}
	return nil
}

func isWord(s string) bool {
	for i := range len(s) {
		if s[i] < 'a' || s[i] > 'z' {
			return false
		}
	}
	return s != ""
}

// isSimpleName: as configuration files of Open Cluster Management may have it.
func isSimpleName(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return s != ""
}
