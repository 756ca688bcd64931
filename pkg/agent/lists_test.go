package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/drift"
)

// read returns the objects of works that were read.
func (r *rig) read() (objects []string) {
	for _, call := range r.requests() {
		if object, is := strings.CutPrefix(call, "get "); is && !strings.HasPrefix(object, "appliedmanifestworks") {
			objects = append(objects, object)
		}
	}
	slices.Sort(objects)
	return slices.Compact(objects)
}

// TestCore_RestartReadsOnlyChangedObjects: of the others it only sees the metadata.
func TestCore_RestartReadsOnlyChangedObjects(t *testing.T) {
	r := newJournaledRig(t)
	r.apply(hubWork("w-1", "web", 1, completed, configMap("a", "1"), configMap("b", "1")))
	r.settle(time.Minute) // the proofs are saved periodically
	change := func(kind, name string) {
		r.f.Edit(r.ref(kind, name), func(o *unstructured.Unstructured) { o.SetAnnotations(map[string]string{"changed": r.now.String()}) })
	}
	for _, c := range []struct {
		name   string
		change func()
		want   []string
	}{
		{"nothing changed", func() {}, nil},
		{"one object changed", func() { change("ConfigMap", "b") }, []string{"configmaps default/b"}},
		{"the record is not as it was", func() {
			r.f.Edit(appliedwork.Ref(r.core.keyOf("web")), func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"other": "1"}) })
		}, []string{"configmaps default/a", "configmaps default/b", "deployments.apps default/web"}},
		{"no lists", func() { r.denied = "configmaps" }, []string{"configmaps default/a", "configmaps default/b"}},
	} {
		r.start()
		c.change()
		r.requests()
		r.subscribe(accepted)
		r.settle(5 * time.Second)
		if got := r.read(); !slices.Equal(got, c.want) {
			t.Errorf("%s: read %q, want %q", c.name, got, c.want)
		}
		r.settle(time.Minute)
	}
}

func TestParseProof(t *testing.T) {
	known, _ := apply.ParseKnown("uid" + strings.Repeat("A", 86)) // two hashes in base64
	if known.UID != "uid" {
		t.Fatalf("known %+v", known)
	}
	p := proof{record: "u 12", object: drift.Signature([]byte{0xff, 0, '\t'})}
	for entry, want := range map[string]proof{
		p.text() + known.Text():       p,
		known.Text():                  {}, // of a former release
		"!! !!\t" + known.Text():      {},
		p.text() + "short":            {},
		proof{}.text() + "not a text": {},
	} {
		if got, _ := parseProof(entry); got != want {
			t.Errorf("%q: got %+v, want %+v", entry, got, want)
		}
	}
	if _, k := parseProof(p.text() + known.Text()); k.Text() != known.Text() {
		t.Errorf("got %q, want %q", k.Text(), known.Text())
	}
	ref := ref{Namespace: "n", Name: "a.b:c"}
	ref.Group, ref.Version, ref.Resource = "", "v1", "configmaps"
	if got, ok := refOf(objectName(ref)); !ok || got != ref {
		t.Errorf("got %v, %t, want %v", got, ok, ref)
	}
	if _, ok := refOf("a/b"); ok {
		t.Error("a text that names no object")
	}
}

// FuzzParseProof: a proof that is read is written in a way that is read as the same one.
func FuzzParseProof(f *testing.F) {
	known := "uid" + strings.Repeat("A", 86)
	for _, entry := range []string{known, proof{"u 1", "u 2"}.text() + known, "dSAx \t" + known, "\t"} {
		f.Add(entry)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		p, _ := parseProof(entry)
		if again, _ := parseProof(p.text() + known); p.object != "" && again != p {
			t.Errorf("%q: got %+v, then %+v", entry, p, again)
		}
	})
}
