package broker_test

import (
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestResync_RejectsUnreadableList checks that one invalid version makes a list unreadable. The error names the
// invalid part, and the sender gets all works as after an empty list. The next list is accepted.
func TestResync_RejectsUnreadableList(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.put(w.source("src"), work{version: 1}.event())
		agent := w.open(w.agent("c1"), nil)
		for _, bad := range []string{
			`{"resourceVersions":[{"resourceID":"w1","resourceVersion":1},{"resourceID":"w2","resourceVersion":""}]}`,
			`{"resourceVersions":[{"resourceID":"w1","resourceVersion":1e99}]}`,
			`{"resourceVersions":[{"resourceID":"w1","resourceVersion":1,"hawserTag":"none"}]}`,
		} {
			list := build("agent", "c1", specType(codec.ResyncRequest), map[string]any{}, nil, bad)
			_, err := w.Publish(w.Context(), agent.peer, list, agent.accepted.SubscriptionID)
			if e := w.refused(err, transport.CodeInvalid); e.Attribute != "data" {
				t.Errorf("%s: %v", bad, e)
			}
		}
		agent.expect()
		pass(31 * time.Second)
		agent.expect("spec resync_response w1 v1")
		w.put(w.agent("c1"), w.event(report{version: 1, hash: "h"}))
		w.put(w.source("src"), work{id: "w2", version: 1}.event())
		agent.expect("spec create_request w2 v1")
		w.request(agent, held("w1", 1))
		agent.expectAny("spec resync_response w2 v1", "status resync_request  v0")
	})
}
