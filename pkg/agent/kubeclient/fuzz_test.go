package kubeclient

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// FuzzDiscovery: for any discovery answer of a server, a kind is found under its own name and group or not at
// all.
func FuzzDiscovery(f *testing.F) {
	list, err := json.Marshal(ropeList)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(list, []byte(`{"kind":"APIGroup","name":"example.com","versions":[{"version":"v1"},{"version":"v2"}],"preferredVersion":{"version":"v2"}}`))
	f.Add([]byte(`{"resources":[{"name":"","kind":"Rope"},{"name":"ropes","kind":""},{"name":"a/b","kind":"Rope"}]}`), []byte(`{"name":"other"}`))
	f.Add([]byte(`[]`), []byte(`null`))
	f.Fuzz(func(t *testing.T, list, group []byte) {
		k := &discoveryCache{now: func() time.Time { return time.Unix(1000, 0) }, known: map[schema.GroupVersion]versionKinds{}, requestedAt: map[schema.GroupVersion]time.Time{}}
		k.fetch = func(_ context.Context, _ string, into any) error {
			if _, ok := into.(*metav1.APIGroup); ok {
				return json.Unmarshal(group, into)
			}
			return json.Unmarshal(list, into)
		}
		gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Rope"}
		if r, err := k.resolve(t.Context(), gvk); err == nil && (r.Kind != "Rope" || r.Group != "example.com" || r.Version != "v1") {
			t.Errorf("Rope is %+v", r)
		}
		if r, err := k.locate(t.Context(), schema.GroupResource{Group: "example.com", Resource: "ropes"}); err == nil && (r.Resource != "ropes" || r.Group != "example.com") {
			t.Errorf("ropes is %+v", r)
		}
	})
}
