package mqtt

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

// TestRoutes_EveryEventOfHawsersOwn: each event of the Hawser extensions goes to a topic on which its sender may
// publish it. A Hawser broker compares topic and event.
func TestRoutes_EveryEventOfHawsersOwn(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	agent := codec.SyncParams{ID: "e", Time: now, Source: "agent1", Cluster: "cluster1"}
	source := codec.SyncParams{ID: "e", Time: now, Source: "source1", Owner: "source1"}
	const (
		broadcast      = "sources/source1/sourcebroadcast"
		agentBroadcast = "clusters/cluster1/agentbroadcast"
	)
	event := func(e codec.Event, err error) codec.Event {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	toAll := func(e codec.Event) codec.Event { e.SetExtension(codec.ExtOriginalSource, ""); return e }
	request := codec.ResyncParams{ID: "e", Time: now, Source: "source1", DataType: codec.ManifestBundles}
	toOne := request
	toOne.Cluster = "cluster1"
	held := codec.ResyncParams{ID: "e", Time: now, Source: "agent1", Cluster: "cluster1", DataType: codec.ManifestBundles}
	for name, c := range map[string]struct {
		e    codec.Event
		want string
	}{
		"ack of an agent":      {event(codec.NewAck(agent, codec.Ack{})), agentBroadcast},
		"ack of a source":      {event(codec.NewAck(source, codec.Ack{})), broadcast},
		"orphans":              {event(codec.NewOrphanReport(agent, codec.OrphanReport{})), agentBroadcast},
		"inventory request":    {event(codec.NewInventoryRequest(source, codec.InventoryRequest{})), broadcast},
		"compared":             {event(codec.NewSyncReport(source, codec.SyncReport{})), broadcast},
		"release":              {event(codec.NewRelease("e", now, "source1", "cluster1")), specTopic},
		"spec":                 {newEvent(1), specTopic},
		"status":               {newStatus(1), statusTopic},
		"status of no source":  {toAll(newStatus(1)), statusTopic},
		"spec resync":          {event(codec.NewSpecResyncRequest(held, nil)), agentBroadcast},
		"status resync":        {event(codec.NewStatusResyncRequest(request, nil)), broadcast},
		"status resync of one": {event(codec.NewStatusResyncRequest(toOne, nil)), specTopic},
	} {
		p, err := routes{set: testTopics}.publish(c.e, "s", true)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if p.Topic != c.want || p.Retain || p.QoS != 1 {
			t.Errorf("%s goes to %s, want %s", name, p.Topic, c.want)
		}
	}
}
