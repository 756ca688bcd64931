package apply

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// booked returns an object with managedFields, given as pairs of a manager and its fields.
func booked(t *testing.T, manifest string, pairs ...string) *unstructured.Unstructured {
	t.Helper()
	o := object(t, manifest)
	var entries []metav1.ManagedFieldsEntry
	for i := 0; i < len(pairs); i += 2 {
		entries = append(entries, metav1.ManagedFieldsEntry{
			Manager: pairs[i], Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: o.GetAPIVersion(), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(pairs[i+1]),
		})
	}
	o.SetManagedFields(entries)
	return o
}

func TestLookAt_ForeignFields(t *testing.T) {
	const (
		volume = `{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"a"},"spec":`
		claim  = `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"a","namespace":"default"},"spec":`
		crd    = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a"},"spec":`
		custom = `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"a"}`
		deploy = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"},"spec":`
		job    = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"default"},"spec":`
		hook   = `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration","metadata":{"name":"a"},"webhooks":`
	)
	for name, c := range map[string]struct {
		live, manifest string
		managed        []string
		alone          string // a path that is left alone
		want           string // the manifest with the foreign fields that stay; empty: the manifest
		left, remove   []Foreign
	}{
		"no manager has it": {live: volume + `{"a":1,"claimRef":{"uid":"u"}}}`, manifest: volume + `{"a":1}}`},
		"we have it":        {live: volume + `{"a":1,"claimRef":{"uid":"u"}}}`, manifest: volume + `{"a":1}}`, managed: []string{"work-agent", `{"f:spec":{"f:claimRef":{"f:uid":{}}}}`}},
		"the binder has it": {
			live: volume + `{"a":1,"claimRef":{"uid":"u","name":"n"}}}`, manifest: volume + `{"a":1}}`, want: volume + `{"a":1,"claimRef":{"uid":"u","name":"n"}}}`,
			managed: []string{"kube-controller-manager", `{"f:spec":{"f:claimRef":{".":{},"f:uid":{},"f:name":{}}}}`},
		},
		"the binder completes it": {
			live: volume + `{"claimRef":{"uid":"u","name":"n"}}}`, manifest: volume + `{"claimRef":{"name":"n"}}}`, want: volume + `{"claimRef":{"name":"n","uid":"u"}}}`,
			managed: []string{"work-agent", `{"f:spec":{"f:claimRef":{".":{},"f:name":{}}}}`, "kcm", `{"f:spec":{"f:claimRef":{"f:uid":{}}}}`},
		},
		"the uid of another claim": {
			live: volume + `{"claimRef":{"uid":"u","name":"n"}}}`, manifest: volume + `{"claimRef":{"name":"other"}}}`,
			managed: []string{"work-agent", `{"f:spec":{"f:claimRef":{".":{},"f:name":{}}}}`, "kcm", `{"f:spec":{"f:claimRef":{"f:uid":{}}}}`},
			remove:  []Foreign{{".spec.claimRef.uid", "kcm"}},
		},
		"a class from admission": {
			live: claim + `{"a":1,"storageClassName":"fast","volumeName":"v"}}`, manifest: claim + `{"a":1}}`, want: claim + `{"a":1,"storageClassName":"fast","volumeName":"v"}}`,
			managed: []string{"work-agent", `{"f:spec":{"f:a":{}}}`, "kcm", `{"f:spec":{"f:volumeName":{}}}`},
		},
		"a bundle in a conversion": {
			live: crd + `{"conversion":{"webhook":{"clientConfig":{"url":"x","caBundle":"b"}}}}}`, manifest: crd + `{"conversion":{"webhook":{"clientConfig":{"url":"x"}}}}}`,
			want:    crd + `{"conversion":{"webhook":{"clientConfig":{"url":"x","caBundle":"b"}}}}}`,
			managed: []string{"work-agent", `{"f:spec":{"f:conversion":{".":{},"f:webhook":{".":{},"f:clientConfig":{".":{},"f:url":{}}}}}}`, "cainjector", `{"f:spec":{"f:conversion":{"f:webhook":{"f:clientConfig":{"f:caBundle":{}}}}}}`},
		},
		"a bundle whose conversion left the manifest": {
			live: crd + `{"scope":"x","conversion":{"webhook":{"clientConfig":{"url":"x","caBundle":"b"}}}}}`, manifest: crd + `{"scope":"x"}}`,
			managed: []string{"work-agent", `{"f:spec":{"f:conversion":{".":{},"f:webhook":{".":{},"f:clientConfig":{".":{},"f:url":{}}}}}}`, "cainjector", `{"f:spec":{"f:conversion":{"f:webhook":{"f:clientConfig":{"f:caBundle":{}}}}}}`},
			remove:  []Foreign{{".spec.conversion.webhook.clientConfig.caBundle", "cainjector"}},
		},
		"a bundle in one of two webhooks": {
			live: hook + `[{"name":"x","clientConfig":{"url":"u"}},{"name":"y","clientConfig":{"url":"u","caBundle":"b"}}]}`, manifest: hook + `[{"name":"y","clientConfig":{"url":"u"}}]}`,
			want:    hook + `[{"name":"y","clientConfig":{"url":"u","caBundle":"b"}}]}`,
			managed: []string{"work-agent", `{"f:webhooks":{"k:{\"name\":\"y\"}":{".":{},"f:name":{}}}}`, "i", `{"f:webhooks":{"k:{\"name\":\"y\"}":{"f:clientConfig":{"f:caBundle":{}}}}}`},
		},
		"the status of a custom resource": {
			live: custom + `,"spec":{"a":1},"status":{"phase":"Ready"}}`, manifest: custom + `,"spec":{"a":1}}`, want: custom + `,"spec":{"a":1},"status":{"phase":"Ready"}}`,
			managed: []string{"controller", `{"f:status":{".":{},"f:phase":{}}}`},
		},
		"a status beside an empty one": {
			live: custom + `,"status":{"phase":"Ready"}}`, manifest: custom + `,"status":{}}`, want: custom + `,"status":{"phase":"Ready"}}`,
			managed: []string{"work-agent", `{"f:status":{}}`, "controller", `{"f:status":{"f:phase":{}}}`},
		},
		"an operation of a kind that has none": {
			live: custom + `,"operation":{"sync":{}}}`, manifest: custom + `}`, managed: []string{"controller", `{"f:operation":{".":{},"f:sync":{}}}`},
			remove: []Foreign{{".operation", "controller"}},
		},
		"a container": {
			live: deploy + `{"template":{"spec":{"containers":[{"name":"p","image":"q"},{"name":"main","image":"i"}]}}}}`, manifest: deploy + `{"template":{"spec":{"containers":[{"name":"main","image":"i"}]}}}}`,
			managed: []string{"mesh", `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"p\"}":{".":{},"f:name":{},"f:image":{}}}}}}}`},
			remove:  []Foreign{{`.spec.template.spec.containers[name="p"]`, "mesh"}},
		},
		"a container that is left alone": {
			live: deploy + `{"template":{"spec":{"containers":[{"name":"p","image":"q"},{"name":"main","image":"i"}]}}}}`, manifest: deploy + `{"template":{"spec":{"containers":[{"name":"main","image":"i"}]}}}}`,
			want:    deploy + `{"template":{"spec":{"containers":[{"name":"main","image":"i"},{"name":"p","image":"q"}]}}}}`,
			managed: []string{"mesh", `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"p\"}":{".":{},"f:name":{},"f:image":{}}}}}}}`},
			alone:   `.spec.template.spec.containers[name="p"]`, left: []Foreign{{`.spec.template.spec.containers[name="p"]`, "mesh"}},
		},
		"beside a default of ours": {
			live: deploy + `{"template":{"spec":{"securityContext":{"x":1}}}}}`, manifest: deploy + `{"template":{"spec":{"a":1}}}}`, alone: ".spec.template.spec.securityContext.x",
			want:    deploy + `{"template":{"spec":{"a":1,"securityContext":{"x":1}}}}}`,
			managed: []string{"work-agent", `{"f:spec":{"f:template":{"f:spec":{"f:a":{},"f:securityContext":{}}}}}`, "b", `{"f:spec":{"f:template":{"f:spec":{"f:securityContext":{"f:x":{}}}}}}`, "a", `{"f:spec":{"f:template":{"f:spec":{"f:securityContext":{"f:x":{}}}}}}`},
			left:    []Foreign{{".spec.template.spec.securityContext.x", "a, b"}},
		},
		"beside what no manager has": {
			live: deploy + `{"template":{"metadata":{"labels":{"x":"1"},"y":"server"},"spec":{"a":1}}}}`, manifest: deploy + `{"template":{"spec":{"a":1}}}}`,
			managed: []string{"b", `{"f:spec":{"f:template":{"f:metadata":{".":{},"f:labels":{".":{},"f:x":{}}}}}}`},
			remove:  []Foreign{{".spec.template.metadata.labels", "b"}},
		},
		"the labels of a queue": {
			live: job + `{"suspend":false,"template":{"metadata":{"labels":{"x":"1","uid":"server"}},"spec":{"a":1}}}}`, manifest: job + `{"template":{"spec":{"a":1}}}}`,
			want:    job + `{"suspend":false,"template":{"metadata":{"labels":{"x":"1"}},"spec":{"a":1}}}}`,
			managed: []string{"queue", `{"f:spec":{"f:suspend":{},"f:template":{"f:metadata":{"f:labels":{"f:x":{}}}}}}`},
		},
		"values that the manifest has, and metadata": {
			live: deploy + `{"replicas":3,"list":[1],"x":{"a":1}}}`, manifest: deploy + `{"replicas":1,"list":[2],"x":"text"}}`,
			managed: []string{"b", `{"f:metadata":{"f:labels":{"f:x":{}}},"f:spec":{"f:replicas":{},"f:list":{},"f:x":{"f:a":{}}}}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			live, manifest := booked(t, c.live, c.managed...), object(t, c.manifest)
			v := lookAt(live, manifest, func(f Foreign) bool { return f.Path == c.alone })
			want := c.manifest
			if c.want != "" {
				want = c.want
			}
			if d := cmp.Diff(object(t, want).Object, v.want.Object); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if d := cmp.Diff(object(t, c.manifest).Object, manifest.Object); d != "" {
				t.Errorf("the manifest changed: %s", d)
			}
			if !slices.Equal(v.left, c.left) || !slices.Equal(v.remove, c.remove) {
				t.Errorf("left %v, remove %v", v.left, v.remove)
			}
		})
	}
}

// setBy applies spec to the Deployment as another manager.
func setBy(t *testing.T, f *clustertest.Fake, manager string, spec map[string]any) {
	t.Helper()
	if err := f.Apply(clustertest.Object("apps/v1", "Deployment", "default", "a", "spec", spec), kubeclient.FieldManager{Name: manager}); err != nil {
		t.Fatal(err)
	}
}

// A field that another manager keeps setting is removed three times, then left alone and reported. For another
// manager, or another manifest, the count starts again.
func TestApplier_ForeignFieldIsLeftAloneAfterThreeFights(t *testing.T) {
	const manifest = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"},"spec":{"paused":true}}`
	b := newBench(t)
	r := b.apply(manifest)
	k := r.Known
	fight := func(manager string, want Action, left ...Foreign) {
		t.Helper()
		setBy(t, b.f, manager, map[string]any{"minReadySeconds": int64(7)})
		r := b.applyKnowing(manifest, k)
		seconds, has, _ := unstructured.NestedInt64(b.must(want, r).Object, "spec", "minReadySeconds")
		if stays := has && seconds == 7; stays != (want == Unchanged) || !slices.Equal(r.Known.YieldedFields(), left) || r.Shared != stays {
			t.Fatalf("%s: stays: %t, left %v, shared %t", manager, stays, r.Known.YieldedFields(), r.Shared)
		}
		k = r.Known
	}
	first := Foreign{".spec.minReadySeconds", "first"}
	for range maxFights {
		fight("first", Update)
	}
	fight("first", Unchanged, first)
	fight("first", Unchanged, first)

	// A change of the manifest's own fields is repaired, and the field stays.
	b.f.Edit(r.Ref, func(o *unstructured.Unstructured) { o.Object["spec"].(map[string]any)["paused"] = false })
	r = b.applyKnowing(manifest, k)
	if o := b.must(Update, r); o.Object["spec"].(map[string]any)["minReadySeconds"] != int64(7) || o.Object["spec"].(map[string]any)["paused"] != true || !slices.Equal(r.Known.YieldedFields(), []Foreign{first}) {
		t.Fatalf("got %v, left %v", o.Object["spec"], r.Known.YieldedFields())
	}
	forgiven := r.Known.Forgive()
	for what, c := range map[string]struct {
		k        KnownState
		manifest string
	}{
		"after an hour":             {forgiven, manifest},
		"for a new version":         {r.Known.Forget(), manifest},
		"for another manifest":      {r.Known, strings.Replace(manifest, "true", "false", 1)},
		"when nothing is known":     {KnownState{}, manifest},
		"by a process that follows": {reread(t, r.Known.Text()), manifest},
	} {
		setBy(t, b.f, "first", map[string]any{"minReadySeconds": int64(7)})
		r := b.applyKnowing(c.manifest, c.k)
		if _, has := b.must(Update, r).Object["spec"].(map[string]any)["minReadySeconds"]; has || r.Known.YieldedFields() != nil {
			t.Errorf("%s: it is not removed, left %v", what, r.Known.YieldedFields())
		}
	}
	// After an hour, a single fight is enough.
	k = forgiven
	fight("first", Update)
	fight("first", Unchanged, first)
	for range maxFights {
		fight("second", Update)
	}
}

func reread(t *testing.T, text string) KnownState {
	t.Helper()
	k, ok := ParseKnown(text)
	if !ok {
		t.Fatal(text)
	}
	return k
}

// A field that the server refuses to remove is left alone at once: the manifest has all its values, and the
// work did not change.
func TestApplier_LeavesUnremovableForeignField(t *testing.T) {
	const manifest = `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"a","namespace":"default"},"spec":{"template":{"x":"1"}}}`
	b := newBench(t)
	r := b.apply(manifest)
	ref := r.Ref
	live := b.f.Look(ref)
	b.f.Remove(ref)
	live.SetResourceVersion("")
	live.Object["spec"].(map[string]any)["template"].(map[string]any)["y"] = "theirs"
	live.SetManagedFields(booked(t, manifest, "work-agent", `{"f:spec":{"f:template":{"f:x":{}}}}`, "queue", `{"f:spec":{"f:template":{"f:y":{}}}}`).GetManagedFields())
	b.f.Put(live)
	b.f.TakeCalls()
	r = b.applyKnowing(manifest, r.Known)
	b.must(Unchanged, r)
	if want := []Foreign{{".spec.template.y", "queue"}}; !slices.Equal(r.Known.YieldedFields(), want) {
		t.Errorf("left %v, want %v", r.Known.YieldedFields(), want)
	}
	b.f.TakeCalls()
	r = b.applyKnowing(manifest, r.Known)
	b.must(Unchanged, r)
	if slices.ContainsFunc(b.f.TakeCalls(), clustertest.Call.Write) || len(r.Known.YieldedFields()) != 1 {
		t.Errorf("it is tried again; left %v", r.Known.YieldedFields())
	}
	// A change of the work is refused as before, with an error.
	if r = b.applyKnowing(strings.Replace(manifest, `"1"`, `"2"`, 1), r.Known); !Rejected(r.Err) {
		t.Errorf("got %v", r.Err)
	}
}

// A placeholder of a filled field is no value. It is not sent, and does not conflict with the value of an
// injector or the binder.
func TestUpdate_PlaceholdersOfFilledFields(t *testing.T) {
	const (
		hook  = `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"a"},"webhooks":[{"name":"x.example.com","clientConfig":{"url":"https://u/","caBundle":"BUNDLE"}}]}`
		crd   = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a"},"spec":{"scope":"Cluster","conversion":{"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://u/","caBundle":"BUNDLE"}}}}}`
		claim = `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"a","namespace":"default"},"spec":{"accessModes":["ReadWriteOnce"],"volumeName":"BUNDLE"}}`
	)
	for name, c := range map[string]struct{ manifest, managed string }{
		"webhook":    {hook, `{"f:webhooks":{"k:{\"name\":\"x.example.com\"}":{"f:clientConfig":{"f:caBundle":{}}}}}`},
		"definition": {crd, `{"f:spec":{"f:conversion":{"f:webhook":{"f:clientConfig":{"f:caBundle":{}}}}}}`},
		"claim":      {claim, `{"f:spec":{"f:volumeName":{}}}`},
	} {
		for _, blank := range []string{"", "Cg==", "IA=="} {
			t.Run(name+" "+blank, func(t *testing.T) {
				b := newBench(t)
				manifest := strings.Replace(c.manifest, "BUNDLE", blank, 1)
				r := b.apply(manifest)
				if text := fmt.Sprint(r.Live.Object); strings.Contains(text, "caBundle") || strings.Contains(text, "volumeName") {
					t.Fatalf("made as %s", text)
				}
				b.f.Edit(r.Ref, func(o *unstructured.Unstructured) {
					filled := booked(t, strings.Replace(c.manifest, "BUNDLE", "c2V0", 1), "injector", c.managed)
					for _, field := range []string{"spec", "webhooks"} {
						if filled.Object[field] != nil {
							o.Object[field] = filled.Object[field]
						}
					}
					o.SetManagedFields(append(o.GetManagedFields(), filled.GetManagedFields()...))
				})
				for range 2 { // with the remembered state, and after a restart
					b.f.TakeCalls()
					r = b.applyKnowing(manifest, r.Known)
					if b.must(Unchanged, r); slices.ContainsFunc(b.f.TakeCalls(), clustertest.Call.Write) {
						t.Error("it was written")
					}
					r.Known = KnownState{}
				}
				if text := fmt.Sprint(r.Live.Object); !strings.Contains(text, "c2V0") {
					t.Errorf("it became %s", text)
				}
			})
		}
	}
}

// docs/ocm.md has the table of fields that are left to other managers, row by row.
func TestFilledFields_AreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/ocm.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range FilledFields() {
		kind := "any"
		if f.Kind != "" {
			kind = f.Kind
		}
		if f.Group != "" {
			kind += " (" + f.Group + ")"
		}
		want = append(want, "| "+kind+" | `"+f.Path+"` | "+f.By+" |")
	}
	_, table, _ := strings.Cut(string(text), "| kind | field | set by |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if d := cmp.Diff(want, strings.Split(table, "\n")); d != "" {
		t.Errorf("docs/ocm.md (-want +got)\n%s\nthe rows are\n%s", d, strings.Join(want, "\n"))
	}
}
