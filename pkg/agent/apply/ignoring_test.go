package apply

import (
	"crypto/md5" //nolint:gosec // what the annotation has
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func onPresent(pointers ...string) workv1.IgnoreField {
	return workv1.IgnoreField{Condition: workv1.IgnoreFieldsConditionOnSpokePresent, JSONPointers: pointers}
}

func onChange(pointers ...string) workv1.IgnoreField {
	return workv1.IgnoreField{Condition: workv1.IgnoreFieldsConditionOnSpokeChange, JSONPointers: pointers}
}

// edit sets data of the ConfigMap as another client does.
func (b *bench) edit(more map[string]string) {
	b.f.Edit(b.f.Ref("v1", "ConfigMap", "default", "a"), func(o *unstructured.Unstructured) {
		for k, v := range more {
			if err := unstructured.SetNestedField(o.Object, v, "data", k); err != nil {
				b.t.Error(err)
			}
		}
	})
	b.verbs()
}

func TestOnSpokePresent_FieldIsSetOnlyWhenTheObjectIsMade(t *testing.T) {
	b := serverSide(t, onPresent("/data/l"))
	wantFields(t, b.must(Create, b.apply(config(`{"k":"1","l":"1"}`))), map[string]string{"k": "1", "l": "1"})
	b.verbs()
	b.must(Unchanged, b.apply(config(`{"k":"1","l":"2"}`)))
	b.wantVerbs()
	wantFields(t, b.must(Update, b.apply(config(`{"k":"2","l":"2"}`))), map[string]string{"k": "2", "l": "1"})
	wantFields(t, b.must(Update, b.apply(config(`{"k":"3"}`))), map[string]string{"k": "3", "l": "1"})
	b.edit(map[string]string{"l": "theirs"})
	wantFields(t, b.must(Update, b.apply(config(`{"k":"4","l":"2"}`))), map[string]string{"k": "4", "l": "theirs"})
}

// The other fields are enforced, for any change of the ignored field.
func TestIgnoring_OtherFieldsAreRepaired(t *testing.T) {
	for name, ignore := range map[string]workv1.IgnoreField{"OnSpokePresent": onPresent("/data/l"), "OnSpokeChange": onChange("/data/l")} {
		for known, keep := range map[string]bool{"Remembered": true, "Restarted": false} {
			t.Run(name+known, func(t *testing.T) {
				b := forced(t, ignore)
				var k KnownState
				round := func(want Action, fields map[string]string) {
					t.Helper()
					r := b.applyKnowing(config(`{"k":"1","l":"1"}`), k)
					wantFields(t, b.must(want, r), fields)
					if keep {
						k = r.Known
					}
				}
				round(Create, map[string]string{"k": "1", "l": "1"})
				b.edit(map[string]string{"k": "x"}) // the agent still owns the ignored field
				round(Update, map[string]string{"k": "1", "l": "1"})
				b.edit(map[string]string{"l": "theirs"})
				round(Unchanged, map[string]string{"k": "1", "l": "theirs"})
				b.wantVerbs()
				b.edit(map[string]string{"k": "x"})
				round(Update, map[string]string{"k": "1", "l": "theirs"})
				b.wantVerbs("apply")
				round(Unchanged, map[string]string{"k": "1", "l": "theirs"})
			})
		}
	}
}

func TestOnSpokeChange_ManifestOverwrites(t *testing.T) {
	b := forced(t, onChange("/data/l"))
	b.must(Create, b.apply(config(`{"k":"1","l":"1"}`)))
	b.edit(map[string]string{"l": "theirs"})
	wantFields(t, b.must(Unchanged, b.apply(config(`{"k":"1","l":"1"}`))), map[string]string{"k": "1", "l": "theirs"})
	wantFields(t, b.must(Update, b.apply(config(`{"k":"2","l":"1"}`))), map[string]string{"k": "2", "l": "1"})
	b.edit(map[string]string{"l": "theirs"})
	wantFields(t, b.must(Update, b.apply(config(`{"k":"2"}`))), map[string]string{"k": "2", "l": "theirs"}) // the other client owns the ignored field now
	wantFields(t, b.must(Update, b.apply(config(`{"k":"2","l":"2"}`))), map[string]string{"k": "2", "l": "2"})
	wantFields(t, b.must(Update, b.apply(config(`{"k":"2"}`))), map[string]string{"k": "2"})
}

func TestOnSpokeChange_OverwritingCanConflict(t *testing.T) {
	b := serverSide(t, onChange("/data/l"))
	b.must(Create, b.apply(config(`{"k":"1","l":"1"}`)))
	b.edit(map[string]string{"l": "theirs"})
	if r := b.apply(config(`{"k":"1","l":"2"}`)); !kubeclient.IsFieldConflict(r.Err) {
		t.Errorf("got %v", r.Err)
	}
}

// An annotation that another client removed is put back without overwriting other fields.
func TestOnSpokeChange_RemembersTheManifest(t *testing.T) {
	b := forced(t, onChange("/data/l"))
	first := b.apply(config(`{"k":"1","l":"1"}`))
	b.edit(map[string]string{"l": "theirs"})
	b.f.Edit(first.Ref, func(o *unstructured.Unstructured) { o.SetAnnotations(nil) })
	o := b.must(Update, b.applyKnowing(config(`{"k":"1","l":"1"}`), first.Known))
	wantFields(t, o, map[string]string{"k": "1", "l": "theirs"})
	if o.GetAnnotations()[specHashAnnotation] == "" {
		t.Error("the annotation is still missing")
	}
}

func TestIgnoring_BothConditions(t *testing.T) {
	b := forced(t, onPresent("/data/l"), onChange("/data/m"))
	b.must(Create, b.apply(config(`{"k":"1","l":"1","m":"1"}`)))
	b.edit(map[string]string{"l": "theirs", "m": "theirs"})
	b.must(Unchanged, b.apply(config(`{"k":"1","l":"2","m":"1"}`)))
	wantFields(t, b.must(Update, b.apply(config(`{"k":"1","l":"2","m":"2"}`))), map[string]string{"k": "1", "l": "theirs", "m": "2"})
}

// A change between the agent's read and its write is not undone.
func TestIgnoring_ChangeInBetweenSurvives(t *testing.T) {
	b := forced(t, onPresent("/data/l"))
	first := b.apply(config(`{"k":"1","l":"1"}`))
	a := b.applier()
	s := a.Plan(t.Context(), b.load(config(`{"k":"2","l":"1"}`)), owner, first.Known)
	b.edit(map[string]string{"l": "theirs"})
	wantFields(t, b.must(Update, a.Apply(t.Context(), s, owner)), map[string]string{"k": "2", "l": "theirs"})

	s = a.Plan(t.Context(), b.load(config(`{"k":"3","l":"1"}`)), owner, first.Known)
	b.f.Remove(first.Ref)
	wantFields(t, b.must(Create, a.Apply(t.Context(), s, owner)), map[string]string{"k": "3", "l": "1"})
}

const withEnv = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"},"spec":{"replicas":%d,
	"template":{"spec":{"containers":[{"name":"app","image":"i:%d","env":[{"name":"A","value":"1"},{"name":"MODE","value":"%s"},{"name":"Z","value":"1"}]},{"name":"side","image":"s"}]}}}}`

func envOf(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 2 {
		t.Fatalf("containers: %v, %v", containers, err)
	}
	text := containers[0].(map[string]any)["image"].(string)
	for _, e := range containers[0].(map[string]any)["env"].([]any) {
		text += fmt.Sprintf(" %v=%v", e.(map[string]any)["name"], e.(map[string]any)["value"])
	}
	return text
}

func setEnv(t *testing.T, name, value string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		spec, _, err := unstructured.NestedFieldNoCopy(o.Object, "spec", "template", "spec", "containers")
		if err != nil {
			t.Error(err)
			return
		}
		for _, e := range spec.([]any)[0].(map[string]any)["env"].([]any) {
			if m := e.(map[string]any); m["name"] == name {
				m["value"] = value
			}
		}
	}
}

func TestIgnoring_KeepsItemOfMergedList(t *testing.T) {
	b := forced(t, workv1.IgnoreField{JQPathExpressions: []string{`.spec.template.spec.containers[] | select(.name == "app") | .env[] | select(.name == "MODE")`}})
	first := b.apply(fmt.Sprintf(withEnv, 1, 1, "x"))
	b.must(Create, first)
	want := func(action Action, manifest, text string) {
		t.Helper()
		if got := envOf(t, b.must(action, b.applyKnowing(manifest, first.Known))); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	want(Unchanged, fmt.Sprintf(withEnv, 1, 1, "y"), "i:1 A=1 MODE=x Z=1")
	want(Update, fmt.Sprintf(withEnv, 1, 2, "y"), "i:2 A=1 MODE=x Z=1") // the item keeps its position
	b.f.Edit(first.Ref, setEnv(t, "MODE", "theirs"))
	want(Unchanged, fmt.Sprintf(withEnv, 1, 2, "y"), "i:2 A=1 MODE=theirs Z=1")
	b.f.Edit(first.Ref, setEnv(t, "Z", "theirs"))
	want(Update, fmt.Sprintf(withEnv, 1, 2, "y"), "i:2 A=1 MODE=theirs Z=1")
}

// A condition on a value holds on the manifest, but no longer on the object.
func TestIgnoring_SelectedByItsValue(t *testing.T) {
	b := forced(t, workv1.IgnoreField{JQPathExpressions: []string{`.spec.template.spec.containers[].env[]? | select(.value == "x")`}})
	first := b.apply(fmt.Sprintf(withEnv, 1, 1, "x"))
	b.must(Create, first)
	b.f.Edit(first.Ref, setEnv(t, "MODE", "theirs"))
	if got := envOf(t, b.must(Update, b.apply(fmt.Sprintf(withEnv, 1, 2, "x")))); got != "i:2 A=1 MODE=theirs Z=1" {
		t.Errorf("got %q", got)
	}
}

// Replicas belong to the autoscaler; the rest does not.
func TestIgnoring_ReplicasOfADeployment(t *testing.T) {
	b := forced(t, workv1.IgnoreField{JSONPaths: []string{".spec.replicas"}})
	first := b.apply(fmt.Sprintf(withEnv, 2, 1, "x"))
	b.must(Create, first)
	b.f.Edit(first.Ref, func(o *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(o.Object, int64(5), "spec", "replicas"); err != nil {
			t.Error(err)
		}
	})
	b.must(Unchanged, b.applyKnowing(fmt.Sprintf(withEnv, 2, 1, "x"), first.Known))
	b.f.Edit(first.Ref, setEnv(t, "A", "theirs"))
	o := b.must(Update, b.apply(fmt.Sprintf(withEnv, 2, 1, "x")))
	if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); n != 5 || envOf(t, o) != "i:1 A=1 MODE=x Z=1" {
		t.Errorf("got %d replicas, %s", n, envOf(t, o))
	}
}

// An atomic list is sent with the values of the object at the ignored paths.
func TestIgnoring_KeepsPathsInAtomicList(t *testing.T) {
	const manifest = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"},"spec":{"replicas":1,"list":[{"name":"a","v":"1"},{"name":"%s","v":"1"}]}}`
	b := serverSide(t, workv1.IgnoreField{JSONPaths: []string{".spec.list[*].v"}})
	first := b.apply(fmt.Sprintf(manifest, "b"))
	b.must(Create, first)
	b.f.Edit(first.Ref, func(o *unstructured.Unstructured) {
		list, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "list")
		list.([]any)[0].(map[string]any)["v"] = "theirs"
	})
	// The other client owns the whole list. The agent applies the same list, so both own it.
	second := b.apply(fmt.Sprintf(manifest, "b"))
	b.must(Update, second)
	b.must(Unchanged, b.applyKnowing(fmt.Sprintf(manifest, "b"), second.Known))
	b.appliedBy(&workv1.ServerSideApplyConfig{Force: true, IgnoreFields: []workv1.IgnoreField{{JSONPaths: []string{".spec.list[*].v"}}}})
	o := b.must(Update, b.apply(fmt.Sprintf(manifest, "c")))
	list, _, _ := unstructured.NestedSlice(o.Object, "spec", "list")
	want := []any{map[string]any{"name": "a", "v": "theirs"}, map[string]any{"name": "c", "v": "1"}}
	if d := cmp.Diff(want, list); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestIgnoring_ErrorsAreThoseOfTheManifest(t *testing.T) {
	b := serverSide(t, workv1.IgnoreField{JQPathExpressions: []string{`.data[`}})
	r := b.apply(config(`{"k":"1"}`))
	if r.Action != Reject || !Permanent(r.Err) || r.Err.Error() != `JQ expression error in '.data[': unexpected EOF` {
		t.Errorf("got %s, %v", r.Action, r.Err)
	}
	b.wantVerbs()
}

// Objects of OCM's agent are adopted unchanged: it writes the same hash.
func TestIgnoring_HashIsOCMs(t *testing.T) {
	const manifest = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","creationTimestamp":null,"uid":"u"},"data":{"k":"v w","l":"1"},"list":[1,2.5,true,null,"x"]}`
	const rendered = `&{map[apiVersion:v1 data:map[k:v w] kind:ConfigMap list:[1 2.5 true <nil> x] metadata:map[name:a namespace:default]]}`
	sum := md5.Sum([]byte(rendered)) //nolint:gosec // see above
	b := serverSide(t, onPresent("/data/l"))
	o := object(t, manifest)
	o.SetUID("")
	o.SetAnnotations(map[string]string{specHashAnnotation: hex.EncodeToString(sum[:])})
	unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
	if err := b.f.Apply(o, kubeclient.FieldManager{Name: "work-agent"}); err != nil {
		t.Fatal(err)
	}
	b.must(Update, b.apply(manifest))
	b.wantVerbs("patch") // the owner reference
}

// Whatever others do to an object, the fields of the manifest end up as wanted. Ignored fields keep the value
// of the other client, and then nothing is written.
func TestIgnoring_Converges(t *testing.T) {
	keys := []string{"a", "b", "c", "d"}
	value := rapid.SampledFrom([]string{"1", "2", "3"})
	rapid.Check(t, func(rt *rapid.T) {
		ignored := rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 3, rapid.ID[string]).Draw(rt, "ignored")
		change := rapid.Bool().Draw(rt, "on change")
		var pointers []string
		for _, k := range ignored {
			pointers = append(pointers, "/data/"+k)
		}
		f := onPresent(pointers...)
		if change {
			f = onChange(pointers...)
		}
		b := (&bench{t: t, f: clustertest.New()}).appliedBy(&workv1.ServerSideApplyConfig{Force: true, IgnoreFields: []workv1.IgnoreField{f}})
		ref := b.f.Ref("v1", "ConfigMap", "default", "a")
		manifest := rapid.MapOfN(rapid.SampledFrom(keys), value, 1, 4)
		wanted := manifest.Draw(rt, "manifest")
		var k KnownState
		for range rapid.IntRange(1, 5).Draw(rt, "rounds") {
			before, changed := b.f.Look(ref), false
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				next := manifest.Draw(rt, "manifest")
				wanted, changed = next, !maps.Equal(next, wanted)
			case 1:
				b.f.Edit(ref, func(o *unstructured.Unstructured) {
					m := map[string]any{}
					for name, v := range manifest.Draw(rt, "edit") {
						m[name] = v
					}
					o.Object["data"] = m
				})
				before = b.f.Look(ref)
			case 2:
				k = KnownState{} // a restart
			}
			raw := config(jsonOf(wanted))
			r := b.applyKnowing(raw, k)
			if r.Err != nil {
				rt.Fatalf("got %v", r.Err)
			}
			k = r.Known
			got := data(t, b.f.Look(ref))
			for name, v := range wanted {
				alone := before != nil && slices.Contains(ignored, name) && (!change || !changed)
				if !alone && got[name] != v {
					rt.Fatalf("%s is %q, want %q", name, got[name], v)
				}
			}
			if before != nil && (!change || !changed) {
				for _, name := range ignored {
					was, has := data(t, before)[name]
					is, still := got[name]
					if was != is || has != still {
						rt.Fatalf("ignored %s was %q (%t) and is %q (%t)", name, was, has, is, still)
					}
				}
			}
			b.verbs()
			if again := b.applyKnowing(raw, k); again.Action != Unchanged || len(b.verbs()) > 0 {
				rt.Fatalf("applied twice, written twice: %s, %v", again.Action, again.Err)
			}
		}
	})
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
