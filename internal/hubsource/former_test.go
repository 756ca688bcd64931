package hubsource

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Objects that the hub-source of commit 0647681f left on its hub, as the API server returns them: a
// ManifestWork, and its ConfigMap in three states. It is in sync, under rollback suspicion after a restore of
// the hub, and after the end of the suspicion. TestFormer_Write of that commit wrote them.
const (
	formerSynced    = "testdata/former/synced.json"
	formerSuspicion = "testdata/former/suspicion.json"
	formerSettled   = "testdata/former/settled.json"
	formerWork      = "testdata/former/manifestwork.json"
)

// readFormer returns the object in a file.
func readFormer(t *testing.T, file string) (o object) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// putFormer puts the object of a file on the hub.
func (b *bench) putFormer(resource, key, file string) {
	b.Helper()
	o := readFormer(b.T, file)
	b.hub.mu.Lock()
	defer b.hub.mu.Unlock()
	b.hub.create(resource, key, o)
}

// TestFormer_State: the state that a former hub-source saved is read with the same values.
func TestFormer_State(t *testing.T) {
	for file, want := range map[string]core.SavedState{
		formerSynced:    {Cursor: "store-1/store-2/4"},
		formerSuspicion: {Cursor: "store-1/store-2/15", Withheld: []string{"*"}, SuspectedPosition: &codec.HubPosition{UID: "uid-hub", ResourceVersion: "117"}},
		formerSettled:   {Cursor: "store-1/store-2/19", ClearedPosition: &codec.HubPosition{UID: "uid-hub", ResourceVersion: "114"}},
	} {
		inBubble(t, func(b *bench) {
			b.putFormer("configmaps", "hawser/"+StateName("hub"), file)
			k := &stateStore{maps: b.hub.configMaps(), namespace: "hawser", name: StateName("hub")}
			got, err := k.load(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			got.Version = ""
			if d := cmp.Diff(want, got); d != "" {
				b.Errorf("%s (-want +got):\n%s", file, d)
			}
		})
	}
}

// TestFormer_RollbackSuspicion: a deletion that a former hub-source withheld is also withheld by this one, until the hub
// has the work again.
func TestFormer_RollbackSuspicion(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.putFormer("configmaps", "hawser/"+StateName("hub"), formerSuspicion)
		lost := example("c1", "lost")
		lost.UID = "uid-of-lost"
		e, err := manifestwork.EncodeSpec(lost, manifestwork.SpecParams{ID: "e", Now: time.Now(), Source: "hub", Action: codec.CreateRequest})
		if err != nil {
			b.Fatal(err)
		}
		event, err := codec.Marshal(e)
		if err == nil {
			_, err = b.broker.Publish(b.Context(), transport.Peer{Role: "source", Name: "hub", Transport: transport.GRPC, Conn: 999}, event, "")
		}
		if err != nil {
			b.Fatal(err)
		}
		a := b.agent("c1")
		b.hub.apply(example("c1", "other"))
		s := b.source()
		b.settle(5 * time.Minute)
		if !strings.Contains(b.records(), "c1/lost") || gauge(b, s, "withheld_works") != "1" || strings.Contains(a.history(), "lost deleted") {
			b.Errorf("the broker has %s, the agent saw %s, metrics %v", b.records(), a.history(), gather(b, s))
		}
		if w := b.state().Withheld; len(w) != 1 || w[0] != "*" {
			b.Errorf("withheld is %v", w)
		}
	})
}

// TestFormer_Work: a ManifestWork that a former hub-source had delivered keeps its finalizer and its status,
// and is not written again.
func TestFormer_Work(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.putFormer("manifestworks", "c1/lost", formerWork)
		before := b.hub.work("c1/lost")
		b.agent("c1")
		b.source()
		b.settle(3 * time.Minute)
		b.shown("c1/lost", 1)
		after := b.hub.work("c1/lost")
		if len(before.Finalizers) != 1 || !slices.Equal(before.Finalizers, after.Finalizers) {
			b.Errorf("finalizers %v became %v", before.Finalizers, after.Finalizers)
		}
		types := func(w *workv1.ManifestWork) (list []string) {
			for _, c := range w.Status.Conditions {
				list = append(list, c.Type+"="+string(c.Status)+" "+c.Reason)
			}
			slices.Sort(list)
			return list
		}
		if d := cmp.Diff(types(before), types(after)); d != "" {
			b.Errorf("conditions (-want +got):\n%s", d)
		}
	})
}
