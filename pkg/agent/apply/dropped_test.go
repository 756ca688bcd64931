package apply

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
)

func TestDroppedFrom(t *testing.T) {
	const container = `"containers":[{"name":"a","image":"i"},{"name":"b","image":"i"}]`
	for name, tc := range map[string]struct {
		sent, answer    string
		unknown         []string
		unknown1, quiet string // the first unknown field, and the silently dropped fields
	}{
		"all is there":                        {sent: `{"spec":{"a":1}}`, answer: `{"spec":{"a":1,"b":2}}`},
		"another value":                       {sent: `{"spec":{"cpu":"1000m","n":1,"l":[1],"m":{"a":1}}}`, answer: `{"spec":{"cpu":"1","n":1.5,"l":"x","m":7}}`},
		"pruned":                              {sent: `{"spec":{"f1":"x","f2":"x"}}`, answer: `{"spec":{"f1":"x"}}`, unknown: []string{"spec.f2"}, unknown1: "spec.f2"},
		"pruned, without a value of its own":  {sent: `{"spec":{"f2":{},"f3":false}}`, answer: `{"spec":{}}`, unknown: []string{"spec.f2", "spec.f3"}, unknown1: "spec.f2 spec.f3"},
		"pruned, and null":                    {sent: `{"spec":{"f2":null}}`, answer: `{"spec":{}}`, unknown: []string{"spec.f2"}},
		"warned of, and there":                {sent: `{"spec":{"f2":"x"}}`, answer: `{"spec":{"f2":"x"}}`, unknown: []string{"spec.f2"}},
		"pruned with what is around it":       {sent: `{"spec":{"m":{"f2":"x"}}}`, answer: `{}`, unknown: []string{"spec.m.f2"}, unknown1: "spec.m.f2"},
		"in a list":                           {sent: `{"l":[{"name":"a"},{"name":"b","f2":"x"}]}`, answer: `{"l":[{"name":"z"},{"name":"a"},{"name":"b"}]}`, unknown: []string{"l[1].f2"}, unknown1: "l[1].f2"},
		"in a list whose items nothing names": {sent: `{"l":[{"f1":"x","f2":"x"}]}`, answer: `{"l":[{"f0":"x"},{"f1":"x"}]}`, unknown: []string{"l[0].f2"}, unknown1: "l[0].f2"},
		"of a longer name":                    {sent: `{"spec":{"f2":"x"}}`, answer: `{"spec":{}}`, unknown: []string{"spec.f22"}, quiet: "spec.f2"},
		"without a warning":                   {sent: `{"spec":{"f1":"x","f2":{"a":1}}}`, answer: `{"spec":{"f1":"x"}}`, quiet: "spec.f2"},
		"left out because it is empty":        {sent: `{"spec":{"a":"","b":0,"c":false,"d":{},"e":[],"f":null,"g":{"h":{"i":""}}}}`, answer: `{"spec":{}}`},
		"a container that a webhook adds":     {sent: `{` + container + `}`, answer: `{"containers":[{"name":"sidecar"},{"name":"b","image":"j"},{"name":"a","image":"k"}]}`},
		"a container that a webhook removes":  {sent: `{` + container + `}`, answer: `{"containers":[{"name":"a","image":"i"}]}`, quiet: "containers[1]"},
		"a list in another order":             {sent: `{"l":["a","b"]}`, answer: `{"l":["b"]}`},
		"metadata and status":                 {sent: `{"metadata":{"clusterName":"x","labels":{"a":"b"}},"status":{"a":1}}`, answer: `{"metadata":{}}`, unknown: []string{"metadata.clusterName", "status"}},
		"text of a Secret":                    {sent: `{"stringData":{"a":"b"}}`, answer: `{"data":{"a":"Yg=="}}`},
	} {
		t.Run(name, func(t *testing.T) {
			sent := object(t, `{"apiVersion":"v1","kind":"X",`+tc.sent[1:]).Object
			answer := map[string]any{}
			if tc.answer != "{}" {
				answer = object(t, `{"apiVersion":"v1","kind":"X",`+tc.answer[1:]).Object
			}
			var unknown, quiet string
			if d := droppedFrom(sent, sent, answer, tc.unknown); d != nil {
				unknown, quiet = strings.Join(d.Unknown, " "), strings.Join(d.Silent, " ")
			}
			if unknown != tc.unknown1 || quiet != tc.quiet {
				t.Errorf("unknown %q, silent %q; want %q, %q", unknown, quiet, tc.unknown1, tc.quiet)
			}
		})
	}
}

// A field that is not in the manifest is not missing: the object had it before.
func TestDroppedFrom_OnlyTheManifest(t *testing.T) {
	d := droppedFrom(map[string]any{"spec": map[string]any{"a": "x"}}, map[string]any{"spec": map[string]any{"a": "x", "b": "x"}}, map[string]any{"spec": map[string]any{"a": "x"}}, nil)
	if d != nil {
		t.Errorf("got %+v", d)
	}
}

func TestDroppedFrom_IsBounded(t *testing.T) {
	spec := map[string]any{}
	for i := range 100 {
		spec[fmt.Sprint(i, strings.Repeat("x", 1000))] = "x"
	}
	d := droppedFrom(map[string]any{"spec": spec}, map[string]any{"spec": spec}, map[string]any{"spec": map[string]any{}}, nil)
	if len(d.Silent) != maxDropped+1 || len(d.Error()) > 5000 {
		t.Errorf("%d fields, %d bytes", len(d.Silent), len(d.Error()))
	}
}

// prunes makes the cluster drop spec.f2, like a schema without the field, until known is set.
func (b *bench) prunes(reports bool) (known *bool) {
	known = new(bool)
	b.f.Prune = func(o *unstructured.Unstructured) []string {
		if spec, ok := o.Object["spec"].(map[string]any); ok && !*known && spec["f2"] != nil {
			delete(spec, "f2")
			if reports {
				return []string{"spec.f2"}
			}
		}
		return nil
	}
	return known
}

const withF2 = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"},"spec":{"f1":"x","f2":"x"}}`

func TestApplier_DroppedFields(t *testing.T) {
	for _, strategy := range []workv1.UpdateStrategyType{workv1.UpdateStrategyTypeUpdate, workv1.UpdateStrategyTypeCreateOnly} {
		for _, reports := range []bool{true, false} {
			t.Run(fmt.Sprint(strategy, reports), func(t *testing.T) {
				b := newBench(t)
				b.spec.ManifestConfigs = []workv1.ManifestConfigOption{{
					ResourceIdentifier: workv1.ResourceIdentifier{Group: "apps", Resource: "deployments", Namespace: "default", Name: "a"},
					UpdateStrategy:     &workv1.UpdateStrategy{Type: strategy},
				}}
				known := b.prunes(reports)
				missing := func(r Result, action Action) {
					t.Helper()
					if (r.Err != nil) != reports || Rejected(r.Err) != reports || !r.Known.Incomplete() || !r.Accepted() || r.Action != action || r.Live == nil {
						t.Fatalf("got %s %v, %v, %+v", r.Action, r.Err, r.Live, r.Known.dropped)
					}
					if reports != strings.Contains(fmt.Sprint(r.Err), "does not know spec.f2, and dropped") || reports == slices.Contains(r.Known.Missing(), "spec.f2") {
						t.Fatalf("got %v, missing %q", r.Err, r.Known.Missing())
					}
				}
				a := b.applier()
				r := a.Apply(t.Context(), a.Suppose(t.Context(), b.load(withF2), owner), owner)
				missing(r, Create)
				parsed, ok := ParseKnown(r.Known.Text()) // after a restart
				if !ok || parsed.Text() != r.Known.Text() {
					t.Fatalf("%q is %+v", r.Known.Text(), parsed)
				}
				b.f.TakeCalls()
				missing(b.applyKnowing(withF2, parsed), Unchanged)
				missing(b.applyKnowing(withF2, parsed.Retry()), Update)
				*known = true
				missing(b.applyKnowing(withF2, parsed), Unchanged)
				healed := b.applyKnowing(withF2, parsed.Retry())
				b.must(Update, healed)
				if healed.Known.Incomplete() || !healed.Retried {
					t.Errorf("got %+v", healed)
				}
				b.must(Unchanged, b.applyKnowing(withF2, healed.Known))
			})
		}
	}
}

// A failed retry changes nothing: the object stays unchanged.
func TestApplier_FailedRetryKeepsObject(t *testing.T) {
	for _, reports := range []bool{true, false} {
		b := newBench(t)
		b.prunes(reports)
		const job = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"default"},"spec":{"f2":"x","template":{"a":"x"}}}`
		first := b.apply(job)
		prune := b.f.Prune
		b.f.Prune = func(o *unstructured.Unstructured) []string {
			_ = unstructured.SetNestedField(o.Object, "y", "spec", "template", "a") // a change that no update may make
			return prune(o)
		}
		r := b.applyKnowing(job, first.Known.Retry())
		if fmt.Sprint(r.Err) != fmt.Sprint(first.Err) || r.Known != first.Known || r.Live == nil || r.Action != Update {
			t.Errorf("got %s %v, %+v", r.Action, r.Err, r.Known)
		}
	}
}

// The definition was just written: fields that the server drops until it takes effect are retried at once.
func TestApplier_WaitsForADefinition(t *testing.T) {
	b := newBench(t)
	known := b.prunes(true)
	a, tries := b.applier(), 0
	prune := b.f.Prune
	b.f.Prune = func(o *unstructured.Unstructured) []string {
		tries++
		*known = tries == attempts
		return prune(o)
	}
	s := a.Suppose(t.Context(), b.load(withF2), owner)
	s.Redefined = true
	r := a.Apply(t.Context(), s, owner)
	if o := b.must(Update, r); r.Known.Incomplete() || !holds(o.Object["spec"], map[string]any{"f2": "x"}) {
		t.Errorf("got %v", o.Object)
	}
	tries, *known = attempts, false // the field stays unknown
	s = a.Plan(t.Context(), b.load(strings.Replace(withF2, `"f1"`, `"f3"`, 1)), owner, KnownState{})
	s.Redefined = true
	if r := a.Apply(t.Context(), s, owner); !Rejected(r.Err) || tries != 2*attempts+1 {
		t.Errorf("%d tries: %v", tries, r.Err)
	}
}
