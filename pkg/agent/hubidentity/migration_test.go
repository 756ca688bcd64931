package hubidentity_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

const before, after = "a:8090", "b:8090"

// world is a cluster with AppliedManifestWorks of several hubs.
type world struct {
	*testing.T
	f      *clustertest.Fake
	output strings.Builder
	mover  hubidentity.Migration
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, f: clustertest.New()}
	w.f.Put(clustertest.Object("v1", "Namespace", "", "hawser"))
	w.mover = hubidentity.Migration{
		Registry: hubidentity.Registry{Objects: w.f, Records: hubidentity.RecordsOf(w.f.Metadata), Namespace: "hawser", Now: time.Now},
		Abandon: func(ctx context.Context, ref kubeclient.Ref, uid types.UID) error {
			for _, r := range w.f.Refs() { // deletes the record like the garbage collector
				w.f.Edit(r, func(o *unstructured.Unstructured) {
					o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == uid }))
				})
			}
			return w.f.Delete(ctx, ref, uid)
		},
		Printf: func(format string, args ...any) error {
			_, err := fmt.Fprintf(&w.output, format, args...)
			return err
		},
	}
	return w
}

// record creates an AppliedManifestWork of a hub and its missing objects, and adds its owner reference to them.
func (w *world) record(identity, work, id string, names ...string) apply.Owner {
	w.Helper()
	s := appliedwork.Store{Objects: w.f, HubHash: appliedwork.HubHash(identity), AgentID: appliedwork.HubHash(identity)}
	r, err := s.Create(w.Context(), work, map[string]string{"app": work}, appliedwork.Origin{Source: "hub", WorkID: id, Version: 3, Tag: "t"})
	if err != nil {
		w.Fatal(err)
	}
	var entries []appliedwork.Entry
	for _, name := range names {
		ref := w.f.Ref("v1", "ConfigMap", "default", name)
		if w.f.Look(ref) == nil {
			w.f.Put(clustertest.Object("v1", "ConfigMap", "default", name))
		}
		w.f.Edit(ref, func(o *unstructured.Unstructured) {
			o.SetOwnerReferences(append(o.GetOwnerReferences(), r.Owner().Reference()))
		})
		entries = append(entries, appliedwork.Entry{
			ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: name}, Version: "v1", UID: string(w.f.Look(ref).GetUID()),
		})
	}
	if r, err = s.SetEntries(w.Context(), r, entries); err != nil {
		w.Fatal(err)
	}
	return r.Owner()
}

// owners returns the names of the AppliedManifestWorks that own a ConfigMap.
func (w *world) owners(name string) []string {
	w.Helper()
	o := w.f.Look(w.f.Ref("v1", "ConfigMap", "default", name))
	if o == nil {
		w.Fatalf("%s is missing", name)
	}
	var names []string
	for _, r := range o.GetOwnerReferences() {
		rec := w.f.Look(appliedwork.Ref(r.Name))
		if rec == nil || rec.GetUID() != r.UID {
			w.Fatalf("%s belongs to %s, which is missing", name, r.Name)
		}
		names = append(names, r.Name)
	}
	return names
}

func (w *world) wantOwners(name string, want ...string) {
	w.Helper()
	if got := w.owners(name); !slices.Equal(got, want) {
		w.Errorf("%s belongs to %q, want %q", name, got, want)
	}
}

// listed returns the names in the list of an AppliedManifestWork, and its origin.
func (w *world) listed(identity, work string) (names []string, origin appliedwork.Origin) {
	w.Helper()
	r, err := appliedwork.Store{Objects: w.f}.Load(w.Context(), appliedwork.Name(appliedwork.HubHash(identity), work))
	if err != nil || r == nil {
		w.Fatalf("%s of %s: %v", work, identity, err)
	}
	for _, e := range r.Entries() {
		names = append(names, e.Name)
	}
	origin, _ = r.Origin()
	return names, origin
}

func (w *world) uids() map[string]types.UID {
	uids := map[string]types.UID{}
	for _, ref := range w.f.Refs() {
		if ref.Resource == "configmaps" && ref.Namespace == "default" {
			uids[ref.Name] = w.f.Look(ref).GetUID()
		}
	}
	return uids
}

// duplicateOwners is a cluster whose agent was moved to another address before identities existed: every object
// also has a former owner.
func (w *world) duplicateOwners() {
	w.record(before, "web", "id-web", "both", "dropped")
	w.record(after, "web", "id-web", "both", "new")
	w.record(before, "left", "id-left", "left-a", "left-b")
	w.record(before, "other", "id-1", "x", "y") // another work with the same name
	w.record(after, "other", "id-2", "x")
	w.record("third:8090", "web", "id-web", "both")
}

func (w *world) wantMoved(uids map[string]types.UID) {
	w.Helper()
	hash := appliedwork.HubHash(after)
	for _, ref := range w.f.Refs() {
		if strings.HasPrefix(ref.Name, appliedwork.HubHash(before)) {
			w.Errorf("%s is left", ref.Name)
		}
	}
	w.f.CollectGarbage()
	if got := w.uids(); !maps.Equal(got, uids) {
		w.Errorf("uids before and after differ:\n%v\n%v", uids, got)
	}
	third := appliedwork.Name(appliedwork.HubHash("third:8090"), "web")
	w.wantOwners("both", appliedwork.Name(hash, "web"), third)
	w.wantOwners("new", appliedwork.Name(hash, "web"))
	w.wantOwners("dropped", appliedwork.Name(hash, "web"))
	w.wantOwners("left-a", appliedwork.Name(hash, "left"))
	w.wantOwners("left-b", appliedwork.Name(hash, "left"))
	w.wantOwners("x", appliedwork.Name(hash, "other"))
	w.wantOwners("y")
	if got, _ := w.listed(after, "web"); !slices.Equal(got, []string{"both", "dropped", "new"}) {
		w.Errorf("web has %q", got)
	}
	got, origin := w.listed(after, "left")
	if !slices.Equal(got, []string{"left-a", "left-b"}) || origin != (appliedwork.Origin{Source: "hub", WorkID: "id-left", Version: 3, Tag: "t"}) {
		w.Errorf("left has %q and is of %+v", got, origin)
	}
	rec := w.f.Look(appliedwork.Ref(appliedwork.Name(hash, "left")))
	if spec := rec.Object["spec"].(map[string]any); spec["hubHash"] != hash || spec["agentID"] != hash || spec["manifestWorkName"] != "left" {
		w.Errorf("left is %v", spec)
	}
}

func TestMigration_RepairsDuplicateOwners(t *testing.T) {
	w := newWorld(t)
	w.duplicateOwners()
	uids := w.uids()
	if err := w.mover.Move(t.Context(), before, after, ""); err != nil {
		t.Fatal(err)
	}
	w.wantMoved(uids)
	if output := w.output.String(); !strings.Contains(output, "configmaps default/y") || !strings.Contains(output, "3 AppliedManifestWorks") {
		t.Errorf("the output is\n%s", output)
	}
	if err := w.mover.Move(t.Context(), before, after, ""); !errors.Is(err, hubidentity.ErrNothing) {
		t.Errorf("a second time: %v", err)
	}
	w.wantMoved(uids)
}

// After any failed write and any interruption, another run completes the move, and no object is lost in the
// meantime.
func TestMigration_AnyInterruption(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t)
		w.duplicateOwners()
		uids := w.uids()
		writes, failed := 0, false
		w.f.Refuse = func(c clustertest.Call) error {
			if c.Write() {
				if writes++; writes == n {
					failed = true
				}
				if failed {
					return apierrors.NewInternalError(errors.New("the cluster is away"))
				}
			}
			return nil
		}
		err := w.mover.Move(t.Context(), before, after, "")
		w.f.Refuse = nil
		if !failed {
			if n < 10 {
				t.Fatalf("only %d writes", writes)
			}
			return
		}
		if err == nil {
			t.Fatalf("write %d failed without an error", n)
		}
		w.f.CollectGarbage()
		if got := w.uids(); !maps.Equal(got, uids) {
			t.Fatalf("write %d failed: uids differ:\n%v\n%v", n, uids, got)
		}
		if err := w.mover.Move(t.Context(), before, after, ""); err != nil && !errors.Is(err, hubidentity.ErrNothing) {
			t.Fatalf("again after write %d: %v", n, err)
		}
		// Objects that had lost their last owner before the interruption are not reported again.
		w.wantMoved(uids)
	}
}

func TestRegistry_ClaimRefuseAndMove(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	a := hubidentity.BrokerRef{Cluster: "c", Broker: "a:8090", StoreID: "e1", Roots: []string{"ca"}}
	b := hubidentity.BrokerRef{Cluster: "c", Broker: "b:8090", StoreID: "e2", Roots: []string{"ca"}}
	w.record("former", "web", "id", "one")
	unclaimed, err := w.mover.Admit(ctx, "hub1", a, nil)
	if err != nil || unclaimed[appliedwork.HubHash("former")] != 1 {
		t.Fatalf("first claim: %v, %v", unclaimed, err)
	}
	var refused *hubidentity.RefusedError
	for range 2 {
		if _, err := w.mover.Admit(ctx, "hub1", b, nil); !errors.As(err, &refused) {
			t.Fatalf("another broker: %v", err)
		}
	}
	if err := w.mover.Move(ctx, "hub1", "hub1", "x:1"); !errors.Is(err, hubidentity.ErrNothing) {
		t.Errorf("to a broker that was not refused: %v", err)
	}
	if err := w.mover.Move(ctx, "hub1", "hub1", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := w.mover.Admit(ctx, "hub1", b, nil); err != nil {
		t.Errorf("after the move: %v", err)
	}
	if _, err := w.mover.Admit(ctx, "hub1", a, nil); !errors.As(err, &refused) {
		t.Errorf("the previous broker: %v", err)
	}
	if _, err := w.mover.Admit(ctx, "hub2", b, nil); !errors.As(err, &refused) || refused.Claim.Identity != "hub1" {
		t.Errorf("another flag: %v", err)
	}
	if err := w.mover.Move(ctx, "hub1", "hub2", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := w.mover.Admit(ctx, "hub2", b, nil); err != nil {
		t.Errorf("the flag after the move: %v", err)
	}
	book, err := w.mover.Claims(ctx)
	if err != nil || len(book) != 1 || book[appliedwork.HubHash("hub2")].Broker != "b:8090" || len(book[appliedwork.HubHash("hub2")].Rejected) != 0 {
		t.Errorf("got %+v, %v", book, err)
	}
	if err := w.mover.Move(ctx, "unknown", "hub2", ""); !errors.Is(err, hubidentity.ErrNothing) {
		t.Errorf("from an unknown hub: %v", err)
	}
	// The hash of an unknown identity is accepted, too.
	if err := w.mover.Move(ctx, appliedwork.HubHash("former"), "hub2", ""); err != nil {
		t.Fatal(err)
	}
	w.wantOwners("one", appliedwork.Name(appliedwork.HubHash("hub2"), "web"))
}

// Two agents that claim at the same time do not overwrite each other.
func TestRegistry_WritesAreConditional(t *testing.T) {
	w := newWorld(t)
	raced := false
	w.f.Refuse = func(c clustertest.Call) error {
		if c.Write() && c.Ref.Name == hubidentity.ClaimsName && !raced {
			raced = true
			return apierrors.NewConflict(c.Ref.GroupResource(), c.Ref.Name, errors.New("another one was first"))
		}
		return nil
	}
	if _, err := w.mover.Admit(t.Context(), "hub1", hubidentity.BrokerRef{Cluster: "c", Broker: "a:8090"}, nil); err != nil || !raced {
		t.Fatalf("got %v", err)
	}
	w.f.Refuse = func(c clustertest.Call) error {
		if c.Ref.Name == hubidentity.ClaimsName {
			return apierrors.NewForbidden(c.Ref.GroupResource(), c.Ref.Name, errors.New("no"))
		}
		return nil
	}
	_, err := w.mover.Admit(t.Context(), "hub1", hubidentity.BrokerRef{Cluster: "c", Broker: "b:8090"}, nil)
	var refused *hubidentity.RefusedError
	if err == nil || errors.As(err, &refused) || !strings.Contains(err.Error(), "deploy/agent/rbac.yaml") {
		t.Errorf("got %v", err)
	}
}
