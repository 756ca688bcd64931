package mqtt

import (
	"fmt"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// bind says why an event may not be published on a topic: who judges a topic, as an access
// list or a person that reads a trace, has to judge the event. What the event says of source
// and cluster stands in the topic too, and the topic is one of those on which such a party
// publishes. Whether the party may publish such an event at all is asked of the event alone,
// as on every transport.
//
//	topic                             who     source  clustername  originalsource
//	…/S/…/C/sourceevents              source  S       C
//	…/S/sourcebroadcast               source  S       none
//	…/S/…/C/agentevents               agent           C            S or none
//	…/C/agentbroadcast                agent           C            none
//
// Who is no source, and no agent either, publishes as agents do, if at all. A peer without a role
// is believed whoever it says it is.
func bind(role identity.Role, t topic.Topic, e *codec.Envelope) *transport.Error {
	if !t.Concrete() {
		return contradiction("", "the topic %q is a filter: nobody can publish on it", t)
	}
	fromSource := t.Kind == topic.SourceEvents || t.Kind == topic.SourceBroadcast
	switch {
	case role != "" && fromSource != (role == identity.Source):
		return contradiction("", "a party that is %s does not publish on topics that end in %s", role, t.Kind)
	case fromSource && e.Source != t.Source:
		return contradiction("source", "the topic is of source %q, the event of source %q", t.Source, e.Source)
	case e.Cluster != t.Cluster:
		return contradiction(codec.ExtClusterName, "the topic is of cluster %q, the event of cluster %q", t.Cluster, e.Cluster)
	case !fromSource && e.OriginalSource != "" && e.OriginalSource != t.Source:
		return contradiction(codec.ExtOriginalSource, "the topic is of source %q, the event for source %q", t.Source, e.OriginalSource)
	}
	return nil
}

func contradiction(attribute, format string, args ...any) *transport.Error {
	return &transport.Error{
		Code: transport.CodeDenied, Next: transport.NextStop, Attribute: attribute, Message: fmt.Sprintf(format, args...),
		Hint: "publish on the topic of the event's own source and cluster",
	}
}

// peer is how the broker sees the other end.
func (c *conn) peer() transport.Peer {
	p := c.conn.Peer()
	p.Transport = transport.MQTT
	return p
}
