package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// work returns the nth work in a version. There are 100 works per cluster.
func work(n int, version int64, event []byte) store.Op {
	o := store.Op{
		Kind: store.PutSpec, Owner: "hub", Name: fmt.Sprintf("work-%d", n), Action: codec.UpdateRequest, Version: version,
		Key: store.Key{
			DataType: codec.ManifestBundles, Cluster: fmt.Sprintf("cluster-%d", n/100),
			ResourceID: fmt.Sprintf("0dd0c9a2-8f3c-4d2f-9a5b-%012d", n),
		},
		Event: event, At: time.Unix(1795000000, 0).UTC(),
	}
	o.Tag = codec.TagOf(false, version, o.Name, nil)
	return o
}

// put commits versions of work 1, each of which must be accepted.
func put(t testing.TB, s store.Store, versions ...int64) store.Outcome {
	t.Helper()
	var last store.Outcome
	for _, v := range versions {
		out, err := s.Commit(t.Context(), []store.Op{work(1, v, fmt.Appendf(nil, "version %d", v))})
		if err != nil {
			t.Fatal(err)
		}
		if last = out[0]; last.Result != store.Accepted {
			t.Fatalf("version %d: %+v", v, last)
		}
	}
	return last
}

func cursor(h store.Head) store.Cursor {
	return store.Cursor{StoreID: h.StoreID, Incarnation: h.Incarnation, Revision: h.Revision}
}

// await waits until the store has applied all revisions up to one.
func await(t testing.TB, s store.Store, revision uint64) {
	t.Helper()
	for s.Head().Revision < revision {
		if _, err := s.Changes(t.Context(), s.Head().Revision, 1); err != nil {
			t.Fatal(err)
		}
	}
}
