package mqtt

import (
	"github.com/eclipse/paho.golang/paho"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

// routes maps events to topics.
type routes struct{ set topic.Set }

// shared reports whether the client uses a shared subscription.
func (r routes) shared() bool {
	for _, pattern := range []string{r.set.SourceEvents, r.set.AgentEvents} {
		if t, err := topic.Parse(pattern); err == nil && t.Group != "" {
			return true
		}
	}
	return false
}

// filters returns the topic filters of a client.
func (r routes) filters(f transport.Filter, hawser bool) ([]string, error) {
	if f.Source != "" {
		source, err := topic.NewSource(r.set, f.Source)
		if err != nil {
			return nil, transport.Invalid("these topics are not those of the source "+f.Source, err)
		}
		return source.Filters(hawser), nil
	}
	agent, err := topic.NewAgent(r.set, f.Cluster)
	if err != nil {
		return nil, transport.Invalid("these topics are not those of the agent of "+f.Cluster, err)
	}
	return agent.Filters(hawser), nil
}

// publish builds the message of an event. The errors are CodeInvalid, or CodeTooLarge if a text is longer than
// MQTT can carry.
func (r routes) publish(e codec.Event, subscriptionID string, hawser bool) (*paho.Publish, error) {
	m, err := codec.ToMessage(e)
	if err != nil {
		return nil, transport.Invalid("the event cannot be encoded", err)
	}
	if err := m.CheckLengths(); err != nil {
		large := transport.Invalid("the event does not fit into an MQTT packet", err)
		large.Code = transport.CodeTooLarge
		large.Message += ": " + err.Error() // the message is shown with the work; a cause is not
		large.Err = nil
		return nil, large
	}
	name, err := r.topic(e, hawser)
	if err != nil {
		return nil, transport.Invalid("the event has no topic", err)
	}
	p := &paho.Publish{QoS: qos, Topic: name, Payload: m.Payload, Properties: &paho.PublishProperties{ContentType: m.ContentType}}
	if hawser {
		m.Properties = append(m.Properties, property.SubscriptionID(subscriptionID)...)
	}
	p.Properties.User = make(paho.UserProperties, len(m.Properties))
	for i, u := range m.Properties {
		p.Properties.User[i] = paho.UserProperty{Key: u.Key, Value: u.Value}
	}
	return p, nil
}

// topic returns the topic of an event by its type: a spec of a source, or a status of an agent. A Hawser event
// without such a type is an agent's if it names a cluster. The exception is a release, with which a source stops
// serving a cluster.
func (r routes) topic(e codec.Event, hawser bool) (string, error) {
	cluster, _, err := codec.StringExtension(e, codec.ExtClusterName)
	if err != nil {
		return "", err
	}
	original, _, err := codec.StringExtension(e, codec.ExtOriginalSource)
	if err != nil {
		return "", err
	}
	t, err := codec.ParseEventType(e.Type())
	if err != nil {
		t = codec.EventType{} // outside the grammar
	}
	if fromSource(t, cluster) || e.Type() == codec.TypeRelease {
		source, err := topic.NewSource(r.set, e.Source())
		if err != nil {
			return "", err
		}
		return source.Topic(t, cluster, hawser)
	}
	agent, err := topic.NewAgent(r.set, cluster)
	if err != nil {
		return "", err
	}
	return agent.Topic(t, original, hawser)
}

// fromSource reports whether an event comes from a source.
func fromSource(t codec.EventType, cluster string) bool {
	row, known := codec.Lookup(t.DataType)
	from := row.SpecFrom
	if t.Subresource == codec.Status {
		from = row.StatusFrom
	}
	switch {
	case !known:
		return cluster == ""
	case t.Action == codec.ResyncRequest: // the receiver of that subresource sends the request
		return !from.Has(codec.FromSource)
	}
	return from.Has(codec.FromSource)
}
