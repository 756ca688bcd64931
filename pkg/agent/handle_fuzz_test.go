package agent

import (
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// FuzzHandle: after any event from a broker the agent continues. Applied objects change only by a readable
// spec.
func FuzzHandle(f *testing.F) {
	add := func(e codec.Event, err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
		b, err := codec.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for action, w := range map[codec.Action]*workv1.ManifestWork{
		codec.UpdateRequest: hubWork("w-1", "web", 2, configMap("a", "2")),
		codec.DeleteRequest: hubWork("w-1", "web", 2, configMap("a", "2")),
		codec.CreateRequest: hubWork("w-2", "web", 1, configMap("a", "3")),
	} {
		e, err := manifestwork.EncodeSpec(w, manifestwork.SpecParams{ID: "x", Now: entryTime, Source: "hub", Action: action, DeletionWithData: true})
		e.SetExtension(codec.ExtRevision, codec.FormatRevision(7))
		add(e, err)
	}
	add(codec.NewStatusResyncRequest(codec.ResyncParams{ID: "1", Time: entryTime, Source: "hub", Cluster: testCluster, DataType: codec.ManifestBundles}, nil))
	add(codec.NewCheckpoint(codec.SyncParams{ID: "1", Time: entryTime, Source: "broker", Cluster: testCluster},
		codec.Checkpoint{Cursor: at(5), Digest: &codec.Digest{}, HighestSequenceID: "4198400", ListAnswered: true, Orphans: []string{"w-1"}, SyncedSources: []string{"hub"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := codec.Unmarshal(b)
		if err != nil {
			return // the transport drops it
		}
		r := newJournaledRig(t)
		r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
		r.core.Handle(t.Context(), e)
		r.settle(time.Minute)
		spec, _ := manifestwork.DecodeSpec(e) // a spec that is unusable is not nil
		if kind, err := codec.ParseEventType(e.Type()); (err != nil || kind.Subresource != codec.Spec || spec == nil) && r.value("a") != "1" {
			t.Fatalf("ConfigMap a is %q after %v", r.value("a"), e)
		}
		// The agent still handles events.
		r.revision = 1 << 40
		r.apply(hubWork("w-9", "next", 1, configMap("next", "9")))
		r.expectValue("next", "9")
	})
}
