package mqtt

import (
	"fmt"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// bind returns why an event may not be published on a topic, nil if it may. The topic must agree with the
// source and cluster of the event, and must be one on which the role publishes. So an access list of topics is
// also an access list of events. Package authz checks the event itself, as on every transport.
//
//	topic                             role    source  clustername  originalsource
//	…/S/…/C/sourceevents              source  S       C
//	…/S/sourcebroadcast               source  S       none
//	…/S/…/C/agentevents               agent           C            S or none
//	…/C/agentbroadcast                agent           C            none
//
// Roles other than source publish as agents do, if at all. A peer without a role is trusted and may use each
// topic.
func bind(role identity.Role, t topic.Topic, e *codec.Envelope) *transport.Error {
	if !t.Concrete() {
		return contradiction("", "the topic %q is a filter; publish on a topic without wildcards", t)
	}
	fromSource := t.Kind == topic.SourceEvents || t.Kind == topic.SourceBroadcast
	switch {
	case role != "" && fromSource != (role == identity.Source):
		return contradiction("", "a client with role %s may not publish on topics that end in %s", role, t.Kind)
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
	return transport.Refused(transport.CodeDenied, attribute, fmt.Sprintf(format, args...), "publish on the topic of the event's own source and cluster")
}

// peer returns the peer as the broker sees it.
func (c *conn) peer() transport.Peer {
	p := c.conn.Peer()
	p.Transport = transport.MQTT
	return p
}
