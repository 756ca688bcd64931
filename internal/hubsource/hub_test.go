package hubsource

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource/core"
)

// TestHub_Present lists all pages, of one namespace.
func TestHub_Present(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := newFakeHub(t)
		want := core.Present{}
		for i := range 2*presentPage + 10 {
			w := newWork(fmt.Sprint("w", i), 1)
			hub.apply(w)
			o := hub.work("cluster1/" + w.Name)
			want[o.UID] = o.ResourceVersion
		}
		hub.apply(newWork("elsewhere", 1, func(w *workv1.ManifestWork) { w.Namespace = "cluster2" }))
		got, err := NewHub(hub.works().WorkV1(), hub.metadata()).Present(context.Background(), "cluster1")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("present (-want +got):\n%s", diff)
		}
		if n := hub.calls["GET manifestworks"]; n != 3 {
			t.Errorf("%d requests", n)
		}
	})
}
