// Package topic is the grammar of the MQTT topics of Open Cluster Management: the topics, their publishers and
// their subscribers.
//
//	sources/hub1/clusters/cluster1/sourceevents   specs of hub1 for cluster1
//	sources/hub1/clusters/cluster1/agentevents    statuses of cluster1 for hub1
//	sources/hub1/sourcebroadcast                  hub1 requests the statuses of all agents
//	clusters/cluster1/agentbroadcast              cluster1 requests its specs from all sources
//
// The words "sources" and "clusters" may be chosen freely; the last level is the kind. A filter may have "+"
// instead of a source or a cluster, and the prefix $share/<group>/. Each client has the four patterns in its
// configuration, a [Set]. A [Source] and an [Agent] are the concrete topics made from them. A broker reads
// filters and topics with [Parse].
//
// The package is pure: it maps text to text.
package topic

import (
	"fmt"
	"strings"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Kind is the kind of events on a topic. Its text is the last level of the topic.
type Kind string

// The kinds.
const (
	SourceEvents    Kind = "sourceevents"
	AgentEvents     Kind = "agentevents"
	SourceBroadcast Kind = "sourcebroadcast"
	AgentBroadcast  Kind = "agentbroadcast"
)

// anyName is the level of a filter that matches each name.
const anyName = "+"

// share is the prefix of a shared subscription.
const share = "$share/"

// Topic is a parsed topic or filter. A broadcast of a source has no cluster, and one of an agent has no source;
// the word before it is then empty too.
type Topic struct {
	// Group is the group of a shared subscription, "" if it is not shared.
	Group string
	Kind  Kind
	// SourceWord and ClusterWord are the levels before the names.
	SourceWord, ClusterWord string
	// Source and Cluster are names, or "+".
	Source, Cluster string
}

// Parse parses a topic or a filter. Words are lower-case letters. A name is any text that MQTT allows as one
// level, because sources on other transports may have such names. The error contains the grammar.
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

// named parses a word and the name behind it; no levels are valid too.
func named(levels []string) (word, name string, ok bool) {
	if levels == nil {
		return "", "", true
	}
	word, name = levels[0], levels[1]
	return word, name, isWord(word) && (name == anyName || CheckName(name) == nil)
}

// String returns the topic in MQTT form, with its group if it has one.
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

// Concrete reports whether the topic can be published on: it is not shared and has no "+".
func (t Topic) Concrete() bool {
	return t.Group == "" && t.Source != anyName && t.Cluster != anyName
}

// AnySource reports whether the source is "+".
func (t Topic) AnySource() bool { return t.Source == anyName }

// AnyCluster reports whether the cluster is "+".
func (t Topic) AnyCluster() bool { return t.Cluster == anyName }

// Fill returns the topic of source and cluster that matches the filter t. It fills in each "+" and drops the
// group; names in t stay. The error is about a name that cannot be a level of a topic.
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

// CheckName returns an error if name cannot be one level of a topic.
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

// isSimpleName reports whether s is a valid name in configuration files of Open Cluster Management.
func isSimpleName(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return s != ""
}
