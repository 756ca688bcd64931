package appliedwork_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
)

func TestStore_CompletedManifests(t *testing.T) {
	f, s := newStore()
	r, err := s.Create(t.Context(), "web", nil, origin)
	if err != nil {
		t.Fatal(err)
	}
	idOf := func(ordinal int32, version, name string) string {
		return appliedwork.CompletedID(apply.Manifest{Meta: workv1.ManifestResourceMeta{Ordinal: ordinal, Group: "batch", Version: version, Resource: "jobs", Namespace: "default", Name: name}})
	}
	id := func(name string) string { return idOf(0, "v1", name) }
	if id("a") == id("b") || id("a") != idOf(1, "v2", "a") {
		t.Fatal("the id must depend on the object alone")
	}
	const work = "id with blanks"
	want := map[string]time.Time{id("a"): time.Unix(1_700_000_000, 0), id("b"): time.Unix(1_700_000_001, 0)}
	if r, err = s.SetCompleted(t.Context(), r, work, want); err != nil {
		t.Fatal(err)
	}
	if r, err = s.Load(t.Context(), r.Metadata().GetName()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, r.Completed(work)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got := r.Completed("another"); len(got) != 0 {
		t.Errorf("of another work of that name: %v", got)
	}
	f.TakeCalls()
	if r, err = s.SetCompleted(t.Context(), r, work, want); err != nil || len(f.TakeCalls()) != 0 {
		t.Errorf("written without a difference, error %v", err)
	}
	if r, err = s.SetCompleted(t.Context(), r, work, nil); err != nil || len(r.Completed(work)) != 0 {
		t.Errorf("got %v, %v", r.Completed(work), err)
	}
	f.TakeCalls()
	if _, err = s.SetCompleted(t.Context(), r, work, nil); err != nil || len(f.TakeCalls()) != 0 {
		t.Errorf("written without a difference, error %v", err)
	}
	if o := f.Look(appliedwork.Ref(s.HubHash + "-web")); o.GetAnnotations()[appliedwork.AnnotationWorkID] != "w-1" {
		t.Errorf("got %v", o.GetAnnotations())
	}
}
