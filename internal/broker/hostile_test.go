package broker_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestPublish_RejectsExpensiveEventsCheaply checks that the cost of an event is proportional to its size,
// for any content.
func TestPublish_RejectsExpensiveEventsCheaply(t *testing.T) {
	fill := func(open, one, end string, bytes int) string {
		return open + strings.TrimSuffix(strings.Repeat(one, bytes/len(one)), ",") + end
	}
	conditions, entries := fill(`{"conditions":[`, "{},", "]}", 3<<20), fill(`{"resourceVersions":[`, "{},", "]}", 15<<20)
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.open(w.source("src"), hawser)
		agent := w.open(w.agent("c1"), hawser)
		w.put(source.peer, work{version: 1}.event())
		status := func(id string) []byte {
			return build("agent-id", "c1", statusType(codec.UpdateRequest), map[string]any{
				codec.ExtResourceID: id, codec.ExtResourceVersion: 1, codec.ExtSequenceID: fmt.Sprint(1<<22 | 1<<12),
			}, nil, conditions)
		}
		compared, err := codec.NewSyncReport(codec.SyncParams{ID: "1", Time: time.Unix(1, 0), Source: "src", Owner: "src"}, codec.SyncReport{})
		if err != nil {
			t.Fatal(err)
		}
		compared.DataEncoded = bytes.Repeat([]byte{1<<3 | 2, 0}, 7<<20) // entries of clusters without fields
		compared.SetDataContentType(codec.ContentTypeProtobuf)
		many, err := codec.Marshal(compared)
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			to    *tap
			event []byte
			code  transport.Code
		}{
			"a status of nothing":      {agent, status("unknown"), transport.CodeInvalid},
			"a status of a work":       {agent, status("w1"), transport.CodeInvalid},
			"a list":                   {agent, build("agent-id", "c1", specType(codec.ResyncRequest), map[string]any{}, nil, entries), transport.CodeInvalid},
			"a comparison":             {source, many, transport.CodeTooLarge},
			"a spec that is too large": {source, work{version: 2, data: entries}.event(), transport.CodeTooLarge},
			"an id":                    {agent, versions("c1", codec.ResourceVersion{ResourceID: strings.Repeat("i", 1_600_000)}), transport.CodeInvalid},
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := w.Publish(w.Context(), c.to.peer, c.event, c.to.accepted.SubscriptionID)
			runtime.ReadMemStats(&after)
			e := w.refused(err, c.code)
			if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 || len(e.Error()) > 500 {
				t.Errorf("%s: took %d KiB, %.500v", name, took>>10, e)
			}
		}
	})
}

// TestSubscribe_NamesAreShortAndPrintable checks the names in a subscription, because they are stored and
// logged.
func TestSubscribe_NamesAreShortAndPrintable(t *testing.T) {
	for name, edit := range map[string]func(r *transport.RawSubscription, bad string){
		"data_type":    func(r *transport.RawSubscription, bad string) { r.DataType += bad },
		"cluster_name": func(r *transport.RawSubscription, bad string) { r.Cluster = bad },
		"source":       func(r *transport.RawSubscription, bad string) { r.Source = bad },
		codec.HeaderClusterUID: func(r *transport.RawSubscription, bad string) {
			r.Hello = transport.Hello{Protocol: transport.Protocol, ClusterUID: bad}
		},
	} {
		for _, bad := range []string{strings.Repeat("x", 60_000), "\x1b[2J"} {
			inWorld(t, broker.Config{}, func(w *world) {
				raw := transport.RawSubscription{DataType: codec.ManifestBundles.String(), Cluster: "c1"}
				edit(&raw, bad)
				e := w.refused(w.Subscribe(w.Context(), w.agent("c1"), raw, nil), transport.CodeInvalid)
				if e.Attribute != name || len(e.Error()) > 500 {
					t.Errorf("%s: %.500v", name, e)
				}
			})
		}
	}
}
