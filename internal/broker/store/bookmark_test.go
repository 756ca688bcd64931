package store_test

import (
	"testing"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// TestDecide_Bind: the first uid that an agent sends is bound, and stays. An agent that sends none does not change it.
func TestDecide_Bind(t *testing.T) {
	t.Parallel()
	l := storetest.NewModel()
	op := store.Op{Kind: store.BindCluster, Key: store.Key{DataType: codec.ManifestBundles, Cluster: cluster}}
	for i, c := range []struct {
		kind  store.OpKind
		uid   string
		want  store.ResultCode
		bound string
	}{
		{store.UnbindCluster, "", store.Ignored, ""},
		{store.BindCluster, "", store.Accepted, ""},
		{store.BindCluster, "", store.Unchanged, ""},
		{store.BindCluster, "u", store.Accepted, "u"},
		{store.BindCluster, "", store.Unchanged, "u"},
		{store.BindCluster, "u", store.Unchanged, "u"},
		{store.BindCluster, "v", store.OwnedByOther, "u"},
		{store.UnbindCluster, "", store.Accepted, ""},
		{store.BindCluster, "v", store.Accepted, "v"},
	} {
		op.Kind, op.UID = c.kind, c.uid
		s, err := l.Apply(op)
		if err != nil {
			t.Fatal(err)
		}
		uid, ok := l.Subscribed(codec.ManifestBundles, cluster)
		if s.Outcome.Result != c.want || uid != c.bound || ok != (i != 0 && i != 7) {
			t.Errorf("step %d: result %d, bound %q, %v", i, s.Outcome.Result, uid, ok)
		}
	}
}

// TestParseBinding: a name is parsed exactly as it was made, whatever the cluster is called.
func TestParseBinding(t *testing.T) {
	t.Parallel()
	for _, c := range []string{"c", "a/b", "", "/"} {
		if dt, name, ok := store.ParseBinding(store.BindingName(codec.ManifestBundles, c)); dt != codec.ManifestBundles || name != c || !ok {
			t.Errorf("%q is read as %v %q, %v", c, dt, name, ok)
		}
	}
	for _, name := range []string{"", "hub/a", "cluster", "cluster/", "cluster/g/v/r"} {
		if _, _, ok := store.ParseBinding(name); ok {
			t.Errorf("%q is a binding", name)
		}
	}
}
