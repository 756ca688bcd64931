package broker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// FuzzPublish checks that each event of a client is either rejected with a known error, or can be decoded by
// every client that gets it. Works of other clients stay unchanged.
func FuzzPublish(f *testing.F) {
	for _, seed := range [][]byte{
		work{version: 1}.event(),
		work{version: 2, deleting: true}.event(),
		numbered(3, work{version: 2}.event()),
		work{source: "other", id: "bystander", version: 9, deleting: true}.event(),
		versions("c1", held("w1", 1)),
		hashes("src", "c1", codec.StatusHash{ResourceID: "w1", StatusHash: "h"}),
		build("agent", "c1", statusType(codec.UpdateRequest), map[string]any{
			codec.ExtResourceID: "bystander", codec.ExtResourceVersion: int32(1), codec.ExtSequenceID: "4198400", codec.ExtStatusHash: "h",
		}, nil, `{"conditions":[{"type":"Deleted","status":"True"}]}`),
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	release, err := codec.NewRelease("r", time.Unix(1_700_000_000, 0), "src", "c1")
	if err != nil {
		f.Fatal(err)
	}
	b, err := codec.Marshal(release)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, true)
	f.Add(numbered(7, b), true)
	f.Fuzz(func(t *testing.T, event []byte, fromSource bool) {
		inWorld(t, broker.Config{}, func(w *world) {
			agent, ocm := w.open(w.agent("c1"), hawser), w.subscribe(w.agent("c1"))
			source, other := w.open(w.source("src"), hawser), w.subscribe(w.source("other"))
			w.put(other.peer, work{source: "other", id: "bystander", version: 1}.event())
			pass(time.Second)
			agent.take()
			ocm.take()
			from := agent
			if fromSource {
				from = source
			}
			_, err := w.Publish(w.Context(), from.peer, event, from.accepted.SubscriptionID)
			var typed *transport.Error
			if err != nil && (!errors.As(err, &typed) || typed.Message == "" || typed.Next == transport.NextUnspecified) {
				t.Fatalf("refused with %v", err)
			}
			pass(time.Minute)
			for _, to := range []*tap{agent, ocm} {
				for _, e := range to.take() {
					checkReadable(t, e)
					if e.ResourceID == "bystander" && (e.Deleting || e.Version != 1) {
						t.Fatalf("the other source's work became %+v", e)
					}
				}
			}
		})
	})
}

// checkReadable decodes what an agent was sent as agents do.
func checkReadable(t *testing.T, env codec.Envelope) {
	t.Helper()
	if env.Type.Subresource != codec.Spec {
		return
	}
	if env.Cluster != "c1" || env.ResourceID == "" {
		t.Fatalf("sent to c1: %+v", env)
	}
	e, err := codec.Builder{
		ID: env.ID, Source: env.Source, Type: env.RawType, Time: time.Unix(1_700_000_000, 0), Cluster: env.Cluster, OriginalSource: env.OriginalSource,
		Extensions:  map[string]any{codec.ExtResourceID: env.ResourceID, codec.ExtResourceVersion: int32(env.Version), codec.ExtMetadata: env.RawMetadata},
		ContentType: env.ContentType, Data: env.Data,
	}.Event()
	if err != nil {
		t.Fatalf("%+v: %v", env, err)
	}
	if env.Deleting {
		e.SetExtension(codec.ExtDeletionTimestamp, env.DeletedAt)
	}
	var invalid *manifestwork.InvalidError
	if spec, err := manifestwork.DecodeSpec(e); err != nil && !errors.As(err, &invalid) || spec == nil || spec.ResourceID != env.ResourceID {
		t.Fatalf("an agent cannot identify the work of %+v: %v", env, err)
	}
}
