package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	"open-cluster-management.io/api/client/work/clientset/versioned/fake"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// fakeHub is the ManifestWork API of a hub. It is the clientset's own fake with the behavior of a
// kube-apiserver: uids, generations, resource versions with their conflicts, and finalizers.
type fakeHub struct {
	t       testing.TB
	client  *fake.Clientset
	watched chan struct{} // closed when the informer watches

	mu       sync.Mutex
	versions int
}

var manifestWorks = schema.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: "manifestworks"}

func newFakeHub(t testing.TB) *fakeHub {
	h := &fakeHub{t: t, watched: make(chan struct{}), client: fake.NewSimpleClientset()} //nolint:staticcheck // NewClientset needs apply configurations, which the module lacks
	h.client.PrependReactor("patch", "manifestworks", h.patch)
	var once sync.Once
	h.client.PrependWatchReactor("manifestworks", func(action k8stesting.Action) (bool, watch.Interface, error) {
		defer once.Do(func() { close(h.watched) })
		w, err := h.client.Tracker().Watch(manifestWorks, action.GetNamespace())
		return true, w, err
	})
	return h
}

// patch performs a patch of hub-source, with its preconditions.
func (h *fakeHub) patch(action k8stesting.Action) (bool, runtime.Object, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, ok := action.(k8stesting.PatchAction)
	if !ok {
		return false, nil, nil
	}
	w := h.get(p.GetNamespace(), p.GetName())
	if w == nil {
		return true, nil, apierrors.NewNotFound(manifestWorks.GroupResource(), p.GetName())
	}
	var want struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	if err := json.Unmarshal(p.GetPatch(), &want); err != nil {
		return true, nil, err
	}
	if want.Metadata.UID != string(w.UID) || want.Metadata.ResourceVersion != w.ResourceVersion {
		return true, nil, apierrors.NewConflict(manifestWorks.GroupResource(), w.Name, fmt.Errorf("it is at %s", w.ResourceVersion))
	}
	if _, _, err := k8stesting.ObjectReaction(h.client.Tracker())(action); err != nil {
		return true, nil, err
	}
	return true, h.store(h.get(w.Namespace, w.Name)), nil
}

// get returns a work, nil if there is none.
func (h *fakeHub) get(namespace, name string) *workv1.ManifestWork {
	o, err := h.client.Tracker().Get(manifestWorks, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		h.t.Errorf("hub: %v", err)
	}
	w, _ := o.(*workv1.ManifestWork)
	return w.DeepCopy()
}

// store writes a work. A deleted work without finalizers is removed.
func (h *fakeHub) store(w *workv1.ManifestWork) *workv1.ManifestWork {
	h.versions++
	w.ResourceVersion = strconv.Itoa(h.versions)
	var err error
	switch tracker := h.client.Tracker(); {
	case w.DeletionTimestamp != nil && len(w.Finalizers) == 0:
		err = tracker.Delete(manifestWorks, w.Namespace, w.Name)
	case h.get(w.Namespace, w.Name) == nil:
		err = tracker.Create(manifestWorks, w, w.Namespace)
	default:
		err = tracker.Update(manifestWorks, w, w.Namespace)
	}
	if err != nil {
		h.t.Errorf("hub: %v", err)
	}
	return w
}

// apply creates a work, or changes its spec and labels, as kubectl does.
func (h *fakeHub) apply(w *workv1.ManifestWork) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.get(w.Namespace, w.Name)
	if old == nil {
		w = w.DeepCopy()
		w.UID, w.Generation = types.UID("uid-of-"+w.Name), 1
		h.store(w)
		return
	}
	before, err := json.Marshal(old.Spec)
	if err != nil {
		h.t.Fatal(err)
	}
	after, err := json.Marshal(w.Spec)
	if err != nil {
		h.t.Fatal(err)
	}
	if string(before) != string(after) {
		old.Generation++
	}
	old.Spec, old.Labels = w.Spec, w.Labels
	h.store(old)
}

// remove deletes a work as kubectl does.
func (h *fakeHub) remove(namespace, name string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.get(namespace, name)
	now := metav1.Now()
	w.DeletionTimestamp = &now
	w.Generation++
	h.store(w)
}

// work returns the present state of a work, nil if there is none.
func (h *fakeHub) work(namespace, name string) *workv1.ManifestWork {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.get(namespace, name)
}

// metadata returns the part of the hub's other API that hub-source reads: the namespace whose uid identifies
// the hub, and the list of works.
func (h *fakeHub) metadata(t *testing.T) metadata.Interface {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "hub"},
	})
	c.PrependReactor("list", manifestWorks.Resource, func(action k8stesting.Action) (bool, runtime.Object, error) {
		works, err := h.client.WorkV1().ManifestWorks(action.GetNamespace()).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return true, nil, err
		}
		list := &metav1.List{}
		for _, w := range works.Items {
			list.Items = append(list.Items, runtime.RawExtension{Object: &metav1.PartialObjectMetadata{ObjectMeta: w.ObjectMeta}})
		}
		return true, list, nil
	})
	return c
}

// startHubSource runs hub-source, as source src1, on a hub in memory.
func startHubSource(t *testing.T, addr string) *fakeHub {
	t.Helper()
	cert, key := certify(t, pki.Source, src1)
	creds, err := identity.Files{CA: certs.CACert(), Cert: cert, Key: key}.Client("", func(err error) { t.Errorf("certificates: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	d, err := transportgrpc.NewDialer(transportgrpc.Options{Target: addr, Credentials: creds, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return runHubSource(t, d)
}

// runHubSource is startHubSource with any dialer.
func runHubSource(t *testing.T, d transport.Dialer) *fakeHub {
	t.Helper()
	h := newFakeHub(t)
	health := &telemetry.Health{}
	s, err := hubsource.New(hubsource.Config{
		ID: src1, Works: h.client, Metadata: h.metadata(t), Dialer: d,
		Registerer: prometheus.NewRegistry(), Health: health, Log: logOf(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("hub source: %v", err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	eventually(t, "the informer's watch", func() bool {
		select {
		case <-h.watched:
			return true
		default:
			return false
		}
	})
	eventually(t, "the hub source at its broker", func() bool { return health.Ready() == nil })
	return h
}

// TestC36_HubAndOCMAgent_Lifecycle: a hub, Hawser's hub-source and broker, and an OCM agent. A work is created,
// relabelled, changed, reported and deleted.
func TestC36_HubAndOCMAgent_Lifecycle(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	hub, agent := startHubSource(t, b.addr), startAgent(t, cluster1, b.addr)
	w := newWork(cluster1, "w", 0)
	hub.apply(w)
	const id = "uid-of-w"
	held := agent.awaitAdded(id)
	if held.Name != "w" || held.Generation != 1 || len(held.ManagedFields) != 0 {
		t.Errorf("the agent got %v", held.ObjectMeta)
	}
	agent.report("w", "is there")
	shows := func(message string) func() bool {
		return func() bool { return appliedMessage(hub.work(cluster1, "w").Status) == message }
	}
	eventually(t, "the status on the hub", shows("is there"))

	w.Labels = map[string]string{"team": "blue"}
	hub.apply(w)
	agent.await(t, 0, "the label", func(l outputLine) bool { return ofID("modified", id)(l) && l.Work.Labels["team"] == "blue" })
	w.Spec.Workload.Manifests[0] = configMap("w", "changed", 0)
	hub.apply(w)
	agent.await(t, 0, "generation 2", func(l outputLine) bool { return ofID("modified", id)(l) && l.Work.Generation == 2 })
	agent.report("w", "is changed")
	eventually(t, "the status on the hub", shows("is changed"))

	hub.remove(cluster1, "w")
	agent.await(t, 0, "the deletion", func(l outputLine) bool { return ofID("modified", id)(l) && l.Work.DeletionTimestamp != nil })
	if hub.work(cluster1, "w") == nil {
		t.Error("the work left the hub before the agent was done")
	}
	agent.finalizers("w") // the finalizer came with the work
	eventually(t, "the end of the work on the hub", func() bool { return hub.work(cluster1, "w") == nil })
}

// TestC35_HubStatus_OnlyNewerCounts: on the hub a status of an older sequence or generation never replaces a
// newer one. A status of a generation that the hub does not have yet waits for it.
func TestC35_HubStatus_OnlyNewerCounts(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	hub, agent := startHubSource(t, b.addr), b.connect(t, pki.Agent, cluster1)
	hub.apply(newWork(cluster1, "w", 0))
	changed := newWork(cluster1, "w", 0)
	for n := range 3 {
		changed.Spec.Workload.Manifests[0] = configMap("w", strconv.Itoa(n+1), 0)
		hub.apply(changed)
	}
	if g := hub.work(cluster1, "w").Generation; g != 4 {
		t.Fatalf("generation %d, want 4", g)
	}
	b.wire.await(t, 0, "generation 4 at the broker", func(p passed) bool {
		return !p.sent && p.id() == "uid-of-w" && versionOf(t, p.event) == 4
	})
	report := func(sequence, version int64, message string) {
		agent.publish(statusOf(t, number(sequence), withID("uid-of-w", newWork(cluster1, "w", version)), message))
		b.wire.await(t, 0, "status "+message, func(p passed) bool {
			return p.sent && p.peer.Role == string(identity.Source) && extension(p.event, codec.ExtSequenceID) == number(sequence)
		})
	}
	seen := map[string]bool{}
	shows := func(message string) func() bool {
		return func() bool {
			m := appliedMessage(hub.work(cluster1, "w").Status)
			seen[m] = true
			return m == message
		}
	}
	report(10, 4, "ten")
	eventually(t, "the status on the hub", shows("ten"))
	report(11, 3, "of generation 3")
	report(12, 5, "of generation 5")
	if outcome := agent.publish(statusOf(t, number(9), withID("uid-of-w", newWork(cluster1, "w", 4)), "nine")); outcome != codec.OutcomeStale {
		t.Errorf("status 9 after 10: %s", outcome)
	}
	if got := appliedMessage(hub.work(cluster1, "w").Status); got != "ten" {
		t.Errorf("the hub, at generation 4, shows %q", got)
	}
	changed.Spec.Workload.Manifests[0] = configMap("w", "fifth", 0)
	hub.apply(changed)
	eventually(t, "the status on the hub", shows("of generation 5"))
	if delete(seen, ""); len(seen) != 2 {
		t.Errorf("the hub showed %v, want only ten and that of generation 5", seen)
	}
}
