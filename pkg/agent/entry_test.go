package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

var entryTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// onDisk encodes a work as a journal entry and decodes it.
func onDisk(t testing.TB, w *desired.Work) *desired.Work {
	t.Helper()
	e, err := encodeEntry(w, entryTime)
	if err != nil {
		t.Fatal(err)
	}
	b, err := codec.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if e, err = codec.Unmarshal(b); err != nil {
		t.Fatal(err)
	}
	got, err := decodeEntry(e, testCluster)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// Every held work can be encoded, and decodes to the same work.
func TestEntry_IsTheWork(t *testing.T) {
	r := &rig{t: t, now: entryTime}
	rapid.Check(t, func(rt *rapid.T) {
		set := desired.New()
		set.Subscribed(rapid.Bool().Draw(rt, "hawser"))
		for n := range rapid.IntRange(1, 4).Draw(rt, "events") {
			var manifests []string
			if rapid.Bool().Draw(rt, "usable") {
				manifests = append(manifests, configMap("a", rapid.SampledFrom([]string{"", "1", "<&>"}).Draw(rt, "value")))
			}
			w := hubWork("w-1", rapid.SampledFrom([]string{"web", "other"}).Draw(rt, "name"), int64(n), manifests...)
			action := rapid.SampledFrom([]codec.Action{codec.UpdateRequest, codec.UpdateRequest, codec.DeleteRequest}).Draw(rt, "action")
			what := rapid.SampledFrom([]string{"", "", "of an OCM broker", "no data", "bad metadata", "no metadata", "unversioned", "tracing"}).Draw(rt, "what")
			e := r.event(w, action, func(e *codec.Event) {
				switch what {
				case "of an OCM broker":
					e.SetExtension(codec.ExtRevision, nil)
				case "no data":
					e.DataEncoded = nil
				case "bad metadata":
					e.SetExtension(codec.ExtMetadata, "{")
				case "no metadata":
					e.SetExtension(codec.ExtMetadata, nil)
				case "unversioned":
					e.SetExtension(codec.ExtResourceVersion, int32(0))
				case "tracing":
					e.SetExtension(codec.ExtLogTracing, `{"logging.open-cluster-management.io/a":"1"}`)
				}
			})
			spec, err := manifestwork.DecodeSpec(e)
			if spec == nil {
				rt.Fatal(err)
			}
			problem := ""
			if err != nil {
				problem = err.Error()
			}
			set.Accept(spec, problem)
		}
		for _, w := range set.All() {
			got := onDisk(t, w)
			// The labels in force are those of the latest metadata that can be read.
			got.Labels = w.Labels
			if d := cmp.Diff(w, got); d != "" {
				rt.Fatalf("(-held +read)\n%s", d)
			}
		}
	})
}

// An OCM broker assigns no revisions. Former releases wrote "0" then, which is no revision. Their entries are
// read like those of this release.
func TestEntry_WithoutRevision(t *testing.T) {
	r := &rig{t: t, now: entryTime}
	for _, action := range []codec.Action{codec.UpdateRequest, codec.DeleteRequest} {
		e := r.event(hubWork("w-1", "web", 3, configMap("a", "1")), action, func(e *codec.Event) { e.SetExtension(codec.ExtRevision, nil) })
		spec, err := manifestwork.DecodeSpec(e)
		if err != nil {
			t.Fatal(err)
		}
		set := desired.New()
		set.Subscribed(false)
		set.Accept(spec, "")
		held := set.Get("w-1")
		if d := cmp.Diff(held, onDisk(t, held)); d != "" || held.Revision != 0 {
			t.Errorf("%s (-held +read)\n%s", action, d)
		}
		written, err := encodeEntry(held, entryTime)
		if err != nil {
			t.Fatal(err)
		}
		former := written.Clone()
		former.SetExtension(codec.ExtRevision, "0")
		got, err := decodeEntry(former, testCluster)
		if err != nil {
			t.Fatalf("%s, of a former release: %v", action, err)
		}
		if d := cmp.Diff(held, got); d != "" {
			t.Errorf("%s, of a former release (-held +read)\n%s", action, d)
		}
	}
}

func TestEntry_OfNoUse(t *testing.T) {
	set := desired.New()
	set.Subscribed(true)
	r := &rig{t: t, now: entryTime}
	spec, err := manifestwork.DecodeSpec(r.event(hubWork("w-1", "web", 1, configMap("a", "1")), codec.UpdateRequest, nil))
	if err != nil {
		t.Fatal(err)
	}
	set.Accept(spec, "")
	for name, c := range map[string]struct {
		change func(*codec.Event)
		want   string
	}{
		"no version":    {func(e *codec.Event) { e.SetExtension(codec.ExtResourceVersion, nil) }, codec.ExtResourceVersion},
		"no generation": {func(e *codec.Event) { e.SetExtension(entryGeneration, nil) }, "neither a spec"},
		"bad one":       {func(e *codec.Event) { e.SetExtension(entryGeneration, "x") }, entryGeneration},
		"bad revision":  {func(e *codec.Event) { e.SetExtension(codec.ExtRevision, "00") }, codec.ExtRevision},
		"bad tag":       {func(e *codec.Event) { e.SetExtension(entryTag, "x") }, codec.ExtTag},
		"no data":       {func(e *codec.Event) { e.DataEncoded = nil }, "the spec is missing"},
		"bad name":      {func(e *codec.Event) { e.SetExtension(entryName, 7) }, entryName},
	} {
		e, err := encodeEntry(set.Get("w-1"), entryTime)
		if err != nil {
			t.Fatal(err)
		}
		c.change(&e)
		if _, err := decodeEntry(e, testCluster); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// Any entry from disk decodes or gives an error. A decoded entry can be encoded again.
func FuzzDecodeEntry(f *testing.F) {
	r := &rig{now: entryTime}
	for _, w := range []*desired.Work{
		{Ref: manifestwork.Ref{ResourceID: "w-1", Name: "web", Cluster: "c1"}, Source: "hub", Problem: "too large"},
		{Ref: manifestwork.Ref{ResourceID: "w-1", Name: "web", Cluster: "c1", Generation: 3}, Source: "hub", Version: 3, Deleting: true},
	} {
		e, err := encodeEntry(w, r.now)
		if err != nil {
			f.Fatal(err)
		}
		b, err := codec.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := codec.Unmarshal(b)
		if err != nil {
			return
		}
		w, err := decodeEntry(e, testCluster)
		if err != nil {
			return
		}
		again := onDisk(t, w)
		if again.ResourceID != w.ResourceID || again.Tag != w.Tag || again.Name != w.Name || again.Version != w.Version || again.Deleting != w.Deleting || (again.Spec == nil) != (w.Spec == nil) {
			t.Fatalf("read %+v, then %+v", w, again)
		}
	})
}
