package desired_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// spec describes a received spec; its tag covers all fields.
type spec struct {
	id, name, source string
	version          int64
	revision         uint64
	deleting         bool
	action           codec.Action
	noData           bool
	content          string // also the label "content"
}

func (s spec) received() *manifestwork.Spec {
	if s.name == "" {
		s.name = "web"
	}
	if s.source == "" {
		s.source = "hub"
	}
	if s.action == "" {
		s.action = codec.UpdateRequest
	}
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	if !s.noData {
		w.Labels = map[string]string{"content": s.content}
		w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyType(s.content)}
	}
	return &manifestwork.Spec{
		Ref:    manifestwork.Ref{ResourceID: s.id, Name: s.name, Cluster: "c1", Generation: s.version},
		Source: s.source, Action: s.action, Version: s.version, Revision: s.revision, Deleting: s.deleting, HasData: !s.noData, Work: w,
		Tag: codec.TagOf(s.deleting, s.version, s.name, []byte(s.content)),
	}
}

// step is a received spec and the expected outcome.
type step struct {
	in   spec
	want desired.Outcome
}

func TestSet_OrderOfSpecs(t *testing.T) {
	const (
		yes, dup, stale, foreign = desired.Accepted, desired.Duplicate, desired.Stale, desired.Foreign
	)
	again := step{in: spec{id: "subscribe"}} // begins another subscription
	for name, c := range map[string]struct {
		hawser bool
		steps  []step
		want   string // content in force
	}{
		"hawser: the higher revision, whatever the version": {true, []step{
			{spec{id: "1", version: 5, revision: 10, content: "a"}, yes},
			{spec{id: "1", version: 4, revision: 11, content: "b"}, yes},
			{spec{id: "1", version: 9, revision: 9, content: "c"}, stale},
		}, "b"},
		"hawser: the same spec again": {true, []step{
			{spec{id: "1", version: 5, revision: 10, content: "a"}, yes}, {spec{id: "1", version: 5, revision: 12, content: "a"}, dup},
			{spec{id: "1", version: 4, revision: 11, content: "b"}, stale},
		}, "a"},
		"hawser: another store with lower revisions": {true, []step{
			{spec{id: "1", version: 5, revision: 10, content: "a"}, yes}, again,
			{spec{id: "1", version: 6, revision: 2, content: "b"}, yes}, {spec{id: "1", version: 6, revision: 3, content: "c"}, yes},
		}, "c"},
		"hawser: a store that went back in time": {true, []step{
			{spec{id: "1", version: 5, revision: 10, content: "a"}, yes}, again, {spec{id: "1", version: 4, revision: 8, content: "b"}, stale},
		}, "a"},
		"hawser: a hub that went back in time": {true, []step{
			{spec{id: "1", version: 5, revision: 10, content: "a"}, yes}, again,
			{spec{id: "1", version: 4, revision: 12, content: "b"}, stale}, {spec{id: "1", version: 0, revision: 12, content: "b"}, yes},
			{spec{id: "1", version: 0, revision: 11, content: "c"}, stale},
		}, "b"},
		"hawser: another owner is the broker's business": {true, []step{
			{spec{id: "1", version: 5, revision: 10, content: "a"}, yes}, {spec{id: "1", source: "other", version: 5, revision: 11, content: "b"}, yes},
		}, "b"},
		"hawser: the same spec, given to another source": {true, []step{
			{spec{id: "1", version: 5, revision: 10, content: "a"}, yes}, {spec{id: "1", source: "other", version: 5, revision: 11, content: "a"}, yes},
			{spec{id: "1", version: 5, revision: 10, content: "a"}, stale}, {spec{id: "1", source: "other", version: 5, revision: 11, content: "a"}, dup},
		}, "a"},
		"hawser: created again after the deletion": {true, []step{
			{spec{id: "1", version: 5, revision: 10, content: "a"}, yes}, {spec{id: "1", version: 5, revision: 11, deleting: true}, yes},
			{spec{id: "1", version: 1, revision: 12, content: "b"}, yes}, {spec{id: "1", version: 5, revision: 11, deleting: true}, stale},
		}, "b"},
		"ocm: by version, equal and unversioned included (C14)": {false, []step{
			{spec{id: "1", version: 5, content: "a"}, yes}, {spec{id: "1", version: 4, content: "b"}, stale},
			{spec{id: "1", version: 5, content: "c"}, yes}, {spec{id: "1", version: 0, content: "d"}, yes}, {spec{id: "1", version: 3, content: "e"}, yes},
		}, "e"},
		"ocm: a deletion of any version": {false, []step{
			{spec{id: "1", version: 5, content: "a"}, yes}, {spec{id: "1", version: 2, deleting: true, noData: true}, yes},
		}, "a"},
		"ocm: sent before the deletion": {false, []step{
			{spec{id: "1", version: 5, content: "a"}, yes}, {spec{id: "1", version: 5, deleting: true, noData: true}, yes},
			{spec{id: "1", version: 5, content: "b"}, stale}, {spec{id: "1", version: 6, content: "c"}, yes},
		}, "c"},
		"ocm: created again under the same id": {false, []step{
			{spec{id: "1", version: 5, deleting: true, noData: true}, yes}, {spec{id: "1", version: 1, action: codec.CreateRequest, content: "b"}, yes},
		}, "b"},
		"ocm: the owner only": {false, []step{
			{spec{id: "1", version: 5, content: "a"}, yes}, {spec{id: "1", source: "other", version: 6, content: "b"}, foreign},
			{spec{id: "1", source: "other", version: 6, deleting: true, noData: true}, foreign},
			{spec{id: "2", source: "other", version: 1, content: "c"}, foreign}, {spec{id: "2", source: "other", name: "free", version: 1, content: "c"}, yes},
		}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := desired.New()
			s.Subscribed(c.hawser)
			for i, st := range c.steps {
				if st.in.id == "subscribe" {
					s.Subscribed(c.hawser)
					continue
				}
				if got := s.Accept(st.in.received(), ""); got.Outcome != st.want {
					t.Fatalf("step %d: got %s, want %s", i, got.Outcome, st.want)
				}
			}
			if got := s.Get("1").Labels["content"]; got != c.want {
				t.Errorf("the content is %q, want %q", got, c.want)
			}
		})
	}
}

func TestSet_NamesAndIDs(t *testing.T) {
	s := desired.New()
	s.Subscribed(true)
	accept := func(in spec, want desired.AcceptResult) {
		t.Helper()
		if d := cmp.Diff(want, s.Accept(in.received(), "")); d != "" {
			t.Fatalf("(-want +got)\n%s", d)
		}
	}
	view := func(name string, live string, renamed string, deleted ...string) {
		t.Helper()
		v := s.ByName(name)
		var got []string
		for _, w := range v.Deleted {
			got = append(got, w.ResourceID)
		}
		id := ""
		if v.Live != nil {
			id = v.Live.ResourceID
		}
		if id != live || v.Renamed != renamed || !cmp.Equal(got, deleted) || v.Empty() != (live == "" && renamed == "" && len(deleted) == 0) {
			t.Fatalf("%s: live %q renamed %q deleted %q; want %q, %q, %q", name, id, v.Renamed, got, live, renamed, deleted)
		}
	}
	accept(spec{id: "1", name: "a", revision: 1}, desired.AcceptResult{Outcome: desired.Accepted, Names: []string{"a"}})
	accept(spec{id: "2", name: "a", revision: 2}, desired.AcceptResult{Outcome: desired.Accepted, Names: []string{"a"}, Replaced: "1"})
	view("a", "2", "")
	if s.Get("1") != nil {
		t.Fatal("a replaced work is still held")
	}

	// After a rename the old name must still be cleared.
	accept(spec{id: "2", name: "b", revision: 3}, desired.AcceptResult{Outcome: desired.Accepted, Names: []string{"a", "b"}})
	view("a", "", "2")
	view("b", "2", "")
	s.ForgetName("a")
	view("a", "", "")
	accept(spec{id: "2", name: "c", revision: 4}, desired.AcceptResult{Outcome: desired.Accepted, Names: []string{"b", "c"}})
	accept(spec{id: "3", name: "b", revision: 5}, desired.AcceptResult{Outcome: desired.Accepted, Names: []string{"b"}})
	view("b", "3", "") // another work needs the name

	// A deletion without metadata uses the known name.
	gone := spec{id: "2", name: "2", revision: 6, deleting: true, noData: true}
	accept(gone, desired.AcceptResult{Outcome: desired.Accepted, Names: []string{"c"}})
	view("c", "", "", "2")
	accept(gone, desired.AcceptResult{Outcome: desired.Duplicate, Names: []string{"c"}})
	accept(spec{id: "4", name: "c", revision: 7}, desired.AcceptResult{Outcome: desired.Accepted, Names: []string{"c"}})
	view("c", "4", "", "2")
	s.Forget(s.Get("2"))
	view("c", "4", "")
	if s.Get("2") != nil {
		t.Fatal("a confirmed deletion is still held")
	}
	s.Forget(s.Get("4"))
	view("c", "4", "") // live works are not forgotten

	// A deletion with an unknown id is accepted.
	accept(spec{id: "9", name: "z", revision: 8, deleting: true}, desired.AcceptResult{Outcome: desired.Accepted, Names: []string{"z"}})
	confirmed := s.Get("9")
	accept(spec{id: "9", name: "z", revision: 9, content: "again"}, desired.AcceptResult{Outcome: desired.Accepted, Names: []string{"z"}})
	s.Forget(confirmed)
	view("z", "9", "")

	want := []codec.ResourceVersion{
		{ResourceID: "3", Tag: s.Get("3").Tag.String()}, {ResourceID: "4", Tag: s.Get("4").Tag.String()}, {ResourceID: "9", Tag: s.Get("9").Tag.String()},
	}
	if d := cmp.Diff(want, s.Versions()); d != "" {
		t.Fatalf("versions (-want +got)\n%s", d)
	}
}

func TestSet_UnusableSpecKeepsLastOne(t *testing.T) {
	s := desired.New()
	s.Subscribed(true)
	s.Accept(spec{id: "1", version: 1, revision: 1, content: "good"}.received(), "")
	s.Accept(spec{id: "1", name: "1", version: 2, revision: 2, content: "bad"}.received(), "too large")
	w := s.Get("1")
	if w.Problem != "too large" || w.Version != 2 || w.Name != "web" || w.Labels["content"] != "good" || w.SpecGeneration != 1 {
		t.Fatalf("got %+v", w)
	}
	s.Accept(spec{id: "1", version: 3, revision: 3, deleting: true, noData: true}.received(), "the data is bad")
	if w = s.Get("1"); w.Problem != "" || !w.Deleting || w.Spec.DeleteOption.PropagationPolicy != "good" {
		t.Fatalf("a deletion without data forgot the delete options: %+v", w)
	}
	s.Accept(spec{id: "1", version: 4, revision: 4, content: "bad"}.received(), "too large")
	if w = s.Get("1"); w.Deleting || w.Spec != nil || w.Problem == "" {
		t.Fatalf("a work created again inherits the deleted one: %+v", w)
	}
	s.Accept(spec{id: "2", name: "x", version: 1, revision: 5}.received(), "no manifests")
	if w = s.Get("2"); w.Spec != nil || w.Problem == "" {
		t.Fatalf("got %+v", w)
	}
	s.Accept(spec{id: "1", version: 4, revision: 6, deleting: true, content: "Orphan"}.received(), "")
	if w = s.Get("1"); w.Spec.DeleteOption.PropagationPolicy != "Orphan" {
		t.Fatalf("a deletion with data brings its delete options: %+v", w)
	}
	// The deletion does not change which spec was in force.
	s.Accept(spec{id: "3", name: "y", version: 1, revision: 7, content: "good"}.received(), "")
	applied := s.Get("3").SpecTag
	s.Accept(spec{id: "3", name: "y", version: 2, revision: 8, deleting: true, content: "Orphan"}.received(), "")
	if w = s.Get("3"); w.Spec.DeleteOption.PropagationPolicy != "Orphan" || w.SpecTag != applied || w.SpecGeneration != 1 {
		t.Fatalf("got %+v", w)
	}
}

// For repeated, delayed and reordered specs: within a subscription of a Hawser broker the highest revision
// wins, for every work.
func TestSet_HighestRevisionWins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := desired.New()
		s.Subscribed(true)
		var all []spec
		highest := map[string]spec{}
		for rev := range rapid.IntRange(1, 20).Draw(t, "n") {
			id := rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "id")
			in := spec{
				id: id, name: "w" + id, revision: uint64(rev + 1), version: int64(rapid.IntRange(0, 3).Draw(t, "version")),
				deleting: rapid.Bool().Draw(t, "deleting"), content: fmt.Sprint("r", rev),
			}
			all = append(all, in)
			highest[id] = in
		}
		repeated := append(all, rapid.SliceOf(rapid.SampledFrom(all)).Draw(t, "repeated")...)
		for _, in := range rapid.Permutation(repeated).Draw(t, "order") {
			s.Accept(in.received(), "")
		}
		for id, in := range highest {
			w := s.Get(id)
			if w == nil || w.Revision != in.revision || w.Deleting != in.deleting {
				t.Fatalf("%s: holds %+v, want revision %d", id, w, in.revision)
			}
			v := s.ByName("w" + id)
			if (v.Live != nil) == in.deleting || len(v.Deleted) == 1 != in.deleting {
				t.Fatalf("%s: the name has %+v", id, v)
			}
		}
	})
}
