package appliedwork_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

const finalizer = "cluster.open-cluster-management.io/applied-manifest-work-cleanup"

var origin = appliedwork.Origin{Source: "hub1", WorkID: "w-1", Version: 3, Tag: "0123"}

func newStore() (*clustertest.Fake, appliedwork.Store) {
	f := clustertest.New()
	return f, appliedwork.Store{Objects: f, HubHash: appliedwork.HubHash("hub.example.com:8090"), AgentID: "agent-1"}
}

func TestHubHash(t *testing.T) {
	// printf 'hub.example.com:8090' | sha256sum
	const want = "40cec1a8e5ea99a037d9b28af3b4adfd461d0eeda669126e016cab30ce28a227"
	if got := appliedwork.HubHash("hub.example.com:8090"); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func TestStore_CreateNotifiesObservers(t *testing.T) {
	f, s := newStore()
	r, err := s.Create(t.Context(), "web", map[string]string{"app": "web"}, origin)
	if err != nil {
		t.Fatal(err)
	}
	o := f.Look(appliedwork.Ref(s.HubHash + "-web"))
	got := map[string]any{"spec": o.Object["spec"], "labels": o.GetLabels(), "annotations": o.GetAnnotations(), "finalizers": o.GetFinalizers()}
	want := map[string]any{
		"spec":   map[string]any{"hubHash": s.HubHash, "agentID": "agent-1", "manifestWorkName": "web"},
		"labels": map[string]string{"app": "web"},
		"annotations": map[string]string{
			"hawser.dev/source": "hub1", "hawser.dev/work-id": "w-1", "hawser.dev/applied-version": "3", "hawser.dev/applied-tag": "0123",
		},
		"finalizers": []string{finalizer},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if !r.HasFinalizer() || r.Deleting() || r.WorkID() != "w-1" || r.AgentID() != "agent-1" || r.Owner() != (apply.Owner{Name: o.GetName(), UID: o.GetUID()}) {
		t.Errorf("got %+v", r)
	}
	if _, err := s.Create(t.Context(), strings.Repeat("x", appliedwork.MaxWorkName+1), nil, origin); err == nil || !strings.Contains(err.Error(), "189 characters") {
		t.Errorf("a name that does not fit: got %v", err)
	}
	if _, err := s.Create(t.Context(), strings.Repeat("x", appliedwork.MaxWorkName), nil, origin); err != nil {
		t.Errorf("a name that just fits: %v", err)
	}
	if none, err := s.Load(t.Context(), "none"); none != nil || err != nil {
		t.Errorf("no record: got %v, %v", none, err)
	}
}

func TestStore_ClaimWritesOnlyDifferences(t *testing.T) {
	f, s := newStore()
	// Another agent or an operator may leave a record like this.
	foreign := clustertest.Object("work.open-cluster-management.io/v1", "AppliedManifestWork", "", appliedwork.Name(s.HubHash, "web"),
		"spec", map[string]any{"hubHash": s.HubHash, "agentID": "old-agent", "manifestWorkName": "web"})
	foreign.SetFinalizers([]string{"example.com/theirs"})
	foreign.SetAnnotations(map[string]string{"theirs": "1"})
	foreign.SetLabels(map[string]string{"theirs": "1", "app": "old"})
	f.Put(foreign)
	r, err := s.Load(t.Context(), foreign.GetName())
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "web", "tier": "front"}
	if r, err = s.Claim(t.Context(), r, labels, origin); err != nil {
		t.Fatal(err)
	}
	o := f.Look(appliedwork.Ref(foreign.GetName()))
	if r.AgentID() != "agent-1" || !slices.Equal(o.GetFinalizers(), []string{"example.com/theirs", finalizer}) || o.GetAnnotations()["theirs"] != "1" || r.WorkID() != "w-1" {
		t.Errorf("got %v", o.Object)
	}
	if d := cmp.Diff(map[string]string{"theirs": "1", "app": "web", "tier": "front"}, o.GetLabels()); d != "" {
		t.Errorf("labels (-want +got):\n%s", d)
	}
	f.TakeCalls()
	if again, err := s.Claim(t.Context(), r, labels, origin); err != nil || again != r || len(f.TakeCalls()) != 0 {
		t.Errorf("a second claim: %v, %v", again, err)
	}
	next := origin
	next.Version = 4
	if _, err := s.Claim(t.Context(), r, labels, next); err != nil || f.Look(appliedwork.Ref(foreign.GetName())).GetAnnotations()["hawser.dev/applied-version"] != "4" {
		t.Errorf("another version: %v", err)
	}
	older := origin
	older.Tag = "4567"
	if _, err := s.Claim(t.Context(), r, labels, older); !apierrors.IsConflict(err) {
		t.Errorf("a claim upon an old record: got %v", err)
	}
}

func TestStore_EntriesAndRelease(t *testing.T) {
	f, s := newStore()
	r, err := s.Create(t.Context(), "web", nil, origin)
	if err != nil {
		t.Fatal(err)
	}
	first := r
	if r, err = s.SetEntries(t.Context(), r, []appliedwork.Entry{configMap("b", ""), configMap("a", "u")}); err != nil {
		t.Fatal(err)
	}
	check(t, []appliedwork.Entry{configMap("a", "u"), configMap("b", "")}, r.Entries())
	f.TakeCalls()
	if same, err := s.SetEntries(t.Context(), r, []appliedwork.Entry{configMap("b", ""), configMap("a", "u")}); err != nil || same != r || len(f.TakeCalls()) != 0 {
		t.Errorf("an equal list was written: %v", err)
	}
	if _, err := s.SetEntries(t.Context(), first, []appliedwork.Entry{configMap("c", "")}); !apierrors.IsConflict(err) {
		t.Errorf("a write upon an old record: %v", err)
	}

	if r, err = s.Delete(t.Context(), r); err != nil || r == nil || !r.Deleting() {
		t.Fatalf("delete: %v, %v", r, err)
	}
	if r, err = s.SetEntries(t.Context(), r, nil); err != nil || len(r.Entries()) != 0 {
		t.Fatalf("empty list: %v, %v", r, err)
	}
	if gone, err := s.RemoveFinalizer(t.Context(), r); err != nil || !gone {
		t.Fatalf("release: %v, %v", gone, err)
	}
	if f.Look(appliedwork.Ref(appliedwork.Name(s.HubHash, "web"))) != nil {
		t.Fatal("the record is still there")
	}
	if gone, err := s.RemoveFinalizer(t.Context(), r); err != nil || !gone {
		t.Fatalf("release of a deleted record: %v, %v", gone, err)
	}
}

func TestStore_ReleaseKeepsFinalizersOfOthers(t *testing.T) {
	f, s := newStore()
	r, err := s.Create(t.Context(), "web", nil, origin)
	if err != nil {
		t.Fatal(err)
	}
	ref := appliedwork.Ref(r.Owner().Name)
	f.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers(append(o.GetFinalizers(), "example.com/theirs")) })
	if r, err = s.Load(t.Context(), ref.Name); err != nil {
		t.Fatal(err)
	}
	if r, err = s.Delete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if gone, err := s.RemoveFinalizer(t.Context(), r); err != nil || gone {
		t.Fatalf("got %v, %v; want a record that another finalizer holds", gone, err)
	}
	if r, err = s.Load(t.Context(), ref.Name); err != nil || r == nil || r.HasFinalizer() {
		t.Fatalf("got %+v, %v", r, err)
	}
	if gone, err := s.RemoveFinalizer(t.Context(), r); err != nil || gone {
		t.Fatalf("got %v, %v", gone, err)
	}
}

func TestStore_HoldPutsTheFinalizerBack(t *testing.T) {
	f, s := newStore()
	r, err := s.Create(t.Context(), "web", nil, origin)
	if err != nil {
		t.Fatal(err)
	}
	ref := appliedwork.Ref(r.Owner().Name)
	f.Edit(ref, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	if r, err = s.Load(t.Context(), ref.Name); err != nil || r.HasFinalizer() {
		t.Fatalf("%v, %v", r, err)
	}
	if r, err = s.AddFinalizer(t.Context(), r); err != nil || !r.HasFinalizer() {
		t.Fatalf("%v, %v", r, err)
	}
}

var owner = apply.Owner{Name: "hash-web", UID: "amw-1"}

func owned(o *unstructured.Unstructured, by ...apply.Owner) *unstructured.Unstructured {
	refs := o.GetOwnerReferences()
	for _, b := range by {
		refs = append(refs, b.Reference())
	}
	o.SetOwnerReferences(refs)
	return o
}

func TestDecide(t *testing.T) {
	now := metav1.Now()
	live := func(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		o := owned(clustertest.Object("v1", "ConfigMap", "default", "a"), owner)
		o.SetUID("u")
		if change != nil {
			change(o)
		}
		return o
	}
	ref := func(r metav1.OwnerReference) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) { o.SetOwnerReferences(append(o.GetOwnerReferences(), r)) }
	}
	other := apply.Owner{Name: "hash-other", UID: "amw-2"}.Reference()
	otherVersion := other
	otherVersion.APIVersion = "work.open-cluster-management.io/v1alpha1"
	for name, c := range map[string]struct {
		uid    string
		live   *unstructured.Unstructured
		orphan bool
		want   appliedwork.RemovalAction
	}{
		"ours":                            {"u", live(nil), false, appliedwork.Delete},
		"an intent":                       {"", live(nil), false, appliedwork.Delete},
		"not marked as ours":              {"u", live(func(o *unstructured.Unstructured) { o.SetOwnerReferences(nil) }), false, appliedwork.Drop},
		"marked by a former owner":        {"u", live(func(o *unstructured.Unstructured) { o.SetOwnerReferences([]metav1.OwnerReference{other}) }), false, appliedwork.Drop},
		"shared with another work":        {"u", live(ref(other)), false, appliedwork.Disown},
		"shared, and created again":       {"x", live(ref(other)), false, appliedwork.Disown},
		"shared with something else":      {"u", live(ref(metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p"})), false, appliedwork.Delete},
		"shared in an unknown version":    {"u", live(ref(otherVersion)), false, appliedwork.Delete},
		"created again by another client": {"x", live(nil), false, appliedwork.Drop},
		"being deleted":                   {"u", live(func(o *unstructured.Unstructured) { o.SetDeletionTimestamp(&now) }), false, appliedwork.Await},
		"to be orphaned":                  {"u", live(nil), true, appliedwork.Disown},
	} {
		if got := appliedwork.Decide(configMap("a", c.uid), c.live, owner, c.orphan); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestRemover_OneFailureKeepsNoOther(t *testing.T) {
	for _, inFlight := range []int{0, 20} {
		oneFailureKeepsNoOther(t, inFlight)
	}
}

func oneFailureKeepsNoOther(t *testing.T, inFlight int) {
	t.Helper()
	f := clustertest.New()
	entries := []appliedwork.Entry{}
	put := func(name string, change func(*unstructured.Unstructured)) {
		o := owned(clustertest.Object("v1", "ConfigMap", "default", name), owner)
		if change != nil {
			change(o)
		}
		entries = append(entries, configMap(name, string(f.Put(o).GetUID())))
	}
	put("a", nil)
	put("b-unreadable", nil)
	put("c-held", func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"example.com/hold"}) })
	put("d-undeletable", nil)
	put("e-shared", func(o *unstructured.Unstructured) { owned(o, apply.Owner{Name: "hash-other", UID: "amw-2"}) })
	entries = append(entries, configMap("f-gone", "u"), entry("example.com", "v1", "ropes", "default", "a", "u"))
	forbidden := errors.New("forbidden")
	f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "get" && c.Ref.Name == "b-unreadable" || c.Verb == "delete" && c.Ref.Name == "d-undeletable" {
			return forbidden
		}
		return nil
	}
	var read []appliedwork.Entry
	r := appliedwork.Remover{Client: f, InFlight: inFlight, Saw: func(e appliedwork.Entry, _ *unstructured.Unstructured) { read = append(read, e) }}
	remaining, err := r.Remove(t.Context(), entries, owner, nil)
	check(t, slices.Concat(entries[:1], entries[2:]), read)
	want := "failed to get resource /v1, Resource=configmaps with key default/b-unreadable: forbidden\ndelete configmaps default/d-undeletable: forbidden"
	if err == nil || err.Error() != want {
		t.Fatalf("got %v\nwant %s", err, want)
	}
	check(t, entries[:4], remaining) // a stays until the cluster shows that it is absent
	f.Refuse = nil
	if remaining, err = r.Remove(t.Context(), remaining, owner, nil); err != nil {
		t.Fatal(err)
	}
	check(t, entries[1:4], remaining)
	remaining, err = r.Remove(t.Context(), remaining, owner, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, entries[2:3], remaining)
	if o := f.Look(f.Ref("v1", "ConfigMap", "default", "e-shared")); o == nil || len(o.GetOwnerReferences()) != 1 || o.GetOwnerReferences()[0].UID != "amw-2" {
		t.Errorf("the shared object: %v", o)
	}
}

func TestRemover_DeletesObjectInUnservedVersion(t *testing.T) {
	f := clustertest.New()
	o := f.Put(owned(clustertest.Object("apps/v1", "Deployment", "default", "a"), owner))
	e := entry("apps", "v1beta1", "deployments", "default", "a", string(o.GetUID()))
	r := appliedwork.Remover{Client: f}
	if remaining, err := r.Remove(t.Context(), []appliedwork.Entry{e}, owner, nil); err != nil || len(remaining) != 1 {
		t.Fatalf("got %v, %v", remaining, err)
	}
	if remaining, err := r.Remove(t.Context(), []appliedwork.Entry{e}, owner, nil); err != nil || len(remaining) != 0 {
		t.Fatalf("got %v, %v", remaining, err)
	}
	if f.Look(f.Ref("apps/v1", "Deployment", "default", "a")) != nil {
		t.Fatal("the object survived")
	}
}

// vanishing is a cluster that calls before ahead of each request.
type vanishing struct {
	*clustertest.Fake
	before func(verb string)
}

func (c vanishing) Get(ctx context.Context, ref kubeclient.Ref) (*unstructured.Unstructured, error) {
	c.before("get")
	return c.Fake.Get(ctx, ref)
}

func (c vanishing) Patch(ctx context.Context, ref kubeclient.Ref, patch []byte, subresource string) (*unstructured.Unstructured, error) {
	c.before("patch")
	return c.Fake.Patch(ctx, ref, patch, subresource)
}

func (c vanishing) Delete(ctx context.Context, ref kubeclient.Ref, uid types.UID) error {
	c.before("delete")
	return c.Fake.Delete(ctx, ref, uid)
}

// A definition is removed while one of its objects is removed, at any moment between two calls. This is no
// failure, and the next look finds that nothing is left.
func TestRemover_ToleratesRemovedKind(t *testing.T) {
	for name, c := range map[string]struct {
		call, version string
		orphan        bool
	}{
		"before the object is read":             {"get", "v1", false},
		"before it is read in another version":  {"second get", "v0", false},
		"before it is deleted":                  {"delete", "v1", false},
		"before the owner reference is removed": {"patch", "v1", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := clustertest.New()
			definition := f.Put(clustertest.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "ropes.example.com", "spec", map[string]any{
				"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "ropes", "kind": "Rope"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true}},
			}))
			o := f.Put(owned(clustertest.Object("example.com/v1", "Rope", "default", "a"), owner))
			gets, happened := 0, false
			client := vanishing{f, func(verb string) {
				if verb == "get" {
					if gets++; gets == 2 {
						verb = "second get"
					}
				}
				if verb == c.call && !happened {
					happened = true
					f.Remove(f.Ref("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", definition.GetName()))
				}
			}}
			r := appliedwork.Remover{Client: client, Done: func(d appliedwork.RemovalAction, err error) {
				if err != nil {
					t.Errorf("%s is counted as failed: %v", d, err)
				}
			}}
			entries := []appliedwork.Entry{entry("example.com", c.version, "ropes", "default", "a", string(o.GetUID()))}
			orphan := func(appliedwork.Entry) bool { return c.orphan }
			remaining, err := r.Remove(t.Context(), entries, owner, orphan)
			if err != nil || !happened {
				t.Fatalf("the definition went: %t, got %v", happened, err)
			}
			if remaining, err = r.Remove(t.Context(), remaining, owner, orphan); err != nil || len(remaining) > 0 {
				t.Fatalf("got %v, %v", remaining, err)
			}
		})
	}
}

// A version is removed but not the kind: the object is read in another version.
func TestRemover_ToleratesRemovedVersion(t *testing.T) {
	for _, call := range []string{"delete", "patch"} {
		f := clustertest.New()
		o := f.Put(owned(clustertest.Object("apps/v1", "Deployment", "default", "a"), owner))
		orphan := func(appliedwork.Entry) bool { return call == "patch" }
		f.Refuse = func(c clustertest.Call) error {
			if c.Verb == call {
				return &kubeclient.NotServedError{Resource: c.Ref.GroupVersionResource}
			}
			return nil
		}
		entries := []appliedwork.Entry{entry("apps", "v1", "deployments", "default", "a", string(o.GetUID()))}
		r := appliedwork.Remover{Client: f}
		for range 2 {
			remaining, err := r.Remove(t.Context(), entries, owner, orphan)
			if err != nil || len(remaining) != 1 {
				t.Fatalf("%s: got %v, %v; want the object to stay on the list", call, remaining, err)
			}
		}
		f.Refuse = nil
		remaining, err := r.Remove(t.Context(), entries, owner, orphan)
		if err == nil {
			remaining, err = r.Remove(t.Context(), remaining, owner, orphan)
		}
		if err != nil || len(remaining) > 0 {
			t.Fatalf("%s: got %v, %v", call, remaining, err)
		}
	}
}

func TestRemover_OrphanAndObjectRecreatedBetweenReadAndDelete(t *testing.T) {
	f := clustertest.New()
	o := f.Put(owned(clustertest.Object("v1", "ConfigMap", "default", "a"), owner))
	ref := f.Ref("v1", "ConfigMap", "default", "a")
	r := appliedwork.Remover{Client: f}
	remaining, err := r.Remove(t.Context(), []appliedwork.Entry{configMap("a", string(o.GetUID()))}, owner, func(appliedwork.Entry) bool { return true })
	if live := f.Look(ref); err != nil || len(remaining) != 0 || live == nil || live.GetOwnerReferences() != nil {
		t.Fatalf("orphan: got %v, %v, %v", remaining, err, live)
	}

	o = f.Put(owned(clustertest.Object("v1", "ConfigMap", "default", "a"), owner))
	uid := o.GetUID()
	f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "delete" {
			return apierrors.NewConflict(ref.GroupResource(), "a", errors.New("another uid"))
		}
		return nil
	}
	remaining, err = r.Remove(t.Context(), []appliedwork.Entry{configMap("a", string(uid))}, owner, nil)
	if err != nil || len(remaining) != 1 {
		t.Fatalf("conflict: got %v, %v; want the entry to be looked at again", remaining, err)
	}
	f.Refuse = nil
	f.Remove(ref)
	f.Put(clustertest.Object("v1", "ConfigMap", "default", "a"))
	if f.Look(ref).GetUID() == types.UID(remaining[0].UID) {
		t.Fatal("the test needs another uid")
	}
	if remaining, err = r.Remove(t.Context(), remaining, owner, nil); err != nil || len(remaining) != 0 || f.Look(ref) == nil {
		t.Fatalf("created again: got %v, %v", remaining, err)
	}
}

func TestRemover_GrantsGoLast(t *testing.T) {
	f := clustertest.New()
	role := f.Put(owned(clustertest.Object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "a"), owner))
	held := clustertest.Object("v1", "ConfigMap", "default", "held")
	held.SetFinalizers([]string{"example.com/hold"})
	cm := f.Put(owned(held, owner))
	// In the order of the list, the role would be removed first.
	entries := []appliedwork.Entry{
		entry("rbac.authorization.k8s.io", "v1", "clusterroles", "", "a", string(role.GetUID())),
		configMap("held", string(cm.GetUID())),
	}
	r := appliedwork.Remover{Client: f}
	remaining, err := r.Remove(t.Context(), entries, owner, nil)
	if err != nil {
		t.Fatal(err)
	}
	check(t, []appliedwork.Entry{entries[1], entries[0]}, remaining)
	roleRef := f.Ref("rbac.authorization.k8s.io/v1", "ClusterRole", "", "a")
	if f.Look(roleRef) == nil {
		t.Fatal("the role went while an object was left that it may be needed for")
	}
	remaining, err = r.Remove(t.Context(), entries[:1], owner, nil)
	if err != nil || len(remaining) != 1 || f.Look(roleRef) != nil {
		t.Fatalf("the last role: %v, %v", remaining, err)
	}
}

// A queued deletion is no failure, and an unsent one does not count as a write.
func TestRemover_WaitsItsTurn(t *testing.T) {
	f := clustertest.New()
	o := f.Put(owned(clustertest.Object("v1", "ConfigMap", "default", "a"), owner))
	e := configMap("a", string(o.GetUID()))
	for _, fails := range []bool{false, true} {
		f.Refuse = func(c clustertest.Call) error {
			if c.Verb == "delete" {
				return &kubeclient.SlowError{What: "configmaps", Fails: fails}
			}
			return nil
		}
		r := appliedwork.Remover{Client: f, Done: func(d appliedwork.RemovalAction, err error) { t.Errorf("the removal ends as %s: %v", d, err) }}
		remaining, err := r.Remove(t.Context(), []appliedwork.Entry{e}, owner, nil)
		if (err != nil) != fails {
			t.Errorf("fails %v: %v", fails, err)
		}
		check(t, []appliedwork.Entry{e}, remaining)
	}
}

// An object that a work now has under another name is not deleted, and its entry is removed.
func TestRemover_KeepsObjectListedUnderAnotherName(t *testing.T) {
	f := clustertest.New()
	o := f.Put(owned(clustertest.Object("apps/v1", "Deployment", "default", "a"), owner))
	e := entry("apps", "v1", "deployments", "default", "a", string(o.GetUID()))
	other := entry("extensions", "v1beta1", "deployments", "default", "a", "").ResourceIdentifier
	r := appliedwork.Remover{Client: f, Wanted: map[types.UID]workv1.ResourceIdentifier{o.GetUID(): other}}
	if remaining, err := r.Remove(t.Context(), []appliedwork.Entry{e}, owner, nil); err != nil || len(remaining) != 0 {
		t.Fatalf("got %v, %v", remaining, err)
	}
	if o := f.Look(f.Ref("apps/v1", "Deployment", "default", "a")); o == nil || o.GetDeletionTimestamp() != nil {
		t.Fatal("it was deleted")
	}
}

// If the object under the other name cannot be read, it may be the same.
func TestUndecided(t *testing.T) {
	m := manifests(t, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"}}`)[0]
	unread := []apply.Result{{Manifest: m, Presence: conditions.Unreadable}}
	for _, c := range []struct {
		e       appliedwork.Entry
		results []apply.Result
		want    bool
	}{
		{entry("extensions", "v1beta1", "deployments", "default", "a", "u"), unread, true},
		{entry("extensions", "v1beta1", "deployments", "default", "b", "u"), unread, false},
		{entry("extensions", "v1beta1", "replicasets", "default", "a", "u"), unread, false},
		{entry("extensions", "v1beta1", "deployments", "default", "a", "u"), []apply.Result{{Manifest: m, Presence: conditions.Absent}}, false},
	} {
		if got := appliedwork.Undecided(c.e, c.results); got != c.want {
			t.Errorf("%v: got %v", c.e, got)
		}
	}
	unknown := apply.Manifest{Object: m.Object, Meta: workv1.ManifestResourceMeta{Group: "apps", Kind: "Deployment", Name: "a", Namespace: "default"}}
	e := entry("extensions", "v1beta1", "deployments", "default", "a", "u")
	if got := appliedwork.StaleEntries([]appliedwork.Entry{e}, []apply.Manifest{unknown}); len(got) != 0 {
		t.Errorf("the kind of the manifest is not known: %v", got)
	}
}
