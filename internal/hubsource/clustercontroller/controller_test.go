package clustercontroller

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	addonv1alpha1 "open-cluster-management.io/api/addon/v1alpha1"
	addonfake "open-cluster-management.io/api/client/addon/clientset/versioned/fake"
	clusterfake "open-cluster-management.io/api/client/cluster/clientset/versioned/fake"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/telemetry"
)

// world is a hub with a controller, in one synctest bubble.
type world struct {
	*testing.T
	kube     *fake.Clientset
	clusters *clusterfake.Clientset
	addons   *addonfake.Clientset
	meta     *metadatafake.FakeMetadataClient
	health   *telemetry.Health
	stop     func()
}

// begin runs a controller until the bubble ends, or until stop.
func begin(t *testing.T, cfg Config, hub ...runtime.Object) *world {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{
		T: t, kube: fake.NewClientset(),
		clusters: clusterfake.NewSimpleClientset(), //nolint:staticcheck // this module generates no apply configurations
		addons:   addonfake.NewSimpleClientset(),   //nolint:staticcheck // nor those
		meta:     metadatafake.NewSimpleMetadataClient(scheme), health: &telemetry.Health{},
	}
	w.clusters.PrependReactor("patch", "managedclusters", func(a clienttesting.Action) (bool, runtime.Object, error) {
		var o metav1.PartialObjectMetadata
		if p, ok := a.(clienttesting.PatchAction); !ok || json.Unmarshal(p.GetPatch(), &o) != nil || o.UID == "" || o.ResourceVersion == "" {
			t.Errorf("%+v patches whatever there is", a)
		}
		return false, nil, nil
	})
	for _, o := range hub {
		w.add(o)
	}
	cfg.Kube, cfg.Clusters, cfg.Addons, cfg.Metadata = w.kube, w.clusters, w.addons, w.meta
	cfg.Registerer, cfg.Health, cfg.Log = prometheus.NewRegistry(), w.health, slog.New(slog.DiscardHandler)
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(w.stop)
	w.pass(time.Second)
	return w
}

func (w *world) add(o runtime.Object) {
	w.Helper()
	tracker := w.kube.Tracker()
	switch o.(type) {
	case *clusterv1.ManagedCluster:
		tracker = w.clusters.Tracker()
	case *addonv1alpha1.ManagedClusterAddOn:
		tracker = w.addons.Tracker()
	case *metav1.PartialObjectMetadata:
		tracker = w.meta.Tracker()
	}
	if err := tracker.Add(o); err != nil {
		w.Fatal(err)
	}
}

// pass lets time pass, and waits until all goroutines are idle.
func (w *world) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (w *world) cluster(name string) *clusterv1.ManagedCluster {
	w.Helper()
	c, err := w.clusters.ClusterV1().ManagedClusters().Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// edit changes a cluster as an operator or its agent does.
func (w *world) edit(name string, changes ...func(*clusterv1.ManagedCluster)) {
	w.Helper()
	c := w.cluster(name).DeepCopy()
	for _, change := range changes {
		change(c)
	}
	if _, err := w.clusters.ClusterV1().ManagedClusters().Update(w.Context(), c, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.pass(time.Second)
}

func sets(kind string, status metav1.ConditionStatus) func(*clusterv1.ManagedCluster) {
	return func(c *clusterv1.ManagedCluster) {
		meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "Test"})
	}
}

// shows compares the state of a cluster, in short form, with want.
func (w *world) shows(name, want string) {
	w.Helper()
	c := w.cluster(name)
	var all []string
	for _, kind := range []string{clusterv1.ManagedClusterConditionHubAccepted, clusterv1.ManagedClusterConditionAvailable, clusterv1.ManagedClusterConditionClockSynced, clusterv1.ManagedClusterConditionDeleting} {
		if condition := meta.FindStatusCondition(c.Status.Conditions, kind); condition != nil {
			all = append(all, strings.TrimPrefix(kind, "ManagedClusterCondition")+"="+string(condition.Status))
		}
	}
	for _, t := range c.Spec.Taints {
		all = append(all, t.Key[strings.LastIndex(t.Key, "/")+1:])
	}
	if len(c.Finalizers) > 0 {
		all = append(all, "held")
	}
	if got := strings.Join(all, " "); got != want {
		w.Errorf("cluster %s shows %q, want %q", name, got, want)
	}
}

func (w *world) csr(name string) *certificatesv1.CertificateSigningRequest {
	w.Helper()
	csr, err := w.kube.CertificatesV1().CertificateSigningRequests().Get(w.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		w.Fatal(err)
	}
	return csr
}

func (w *world) request(csr *certificatesv1.CertificateSigningRequest) {
	w.Helper()
	w.add(csr)
	w.pass(time.Second)
}

// renew renews the Lease of a cluster every minute.
func (w *world) renew(cluster string, minutes int) {
	w.Helper()
	leases := w.kube.CoordinationV1().Leases(cluster)
	for range minutes {
		l, err := leases.Get(w.Context(), ocm.LeaseName, metav1.GetOptions{})
		if err != nil {
			w.Fatal(err)
		}
		l = l.DeepCopy()
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		if _, err := leases.Update(w.Context(), l, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
		w.pass(time.Minute)
	}
}

// forget drops the recorded requests.
func (w *world) forget() {
	w.kube.ClearActions()
	w.clusters.ClearActions()
	w.addons.ClearActions()
	w.meta.ClearActions()
}

// requests returns the requests of the controller since forget, without the renewals of agents.
func (w *world) requests() (all []string) {
	for _, actions := range [][]clienttesting.Action{w.kube.Actions(), w.clusters.Actions(), w.addons.Actions(), w.meta.Actions()} {
		for _, a := range actions {
			if a.GetResource().Resource != "leases" {
				all = append(all, a.GetVerb()+" "+a.GetResource().Resource)
			}
		}
	}
	return all
}

// signer is a CA in files that is valid in a bubble, whose time begins in the year 2000.
func signer(t *testing.T) Signer {
	t.Helper()
	dir := t.TempDir()
	certs, keys := caOf(t, time.Now().Add(-time.Hour), time.Now().Add(10*365*24*time.Hour))
	s := Signer{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), DefaultDuration}
	if err := errors.Join(os.WriteFile(s.CertFile, certs, 0o600), os.WriteFile(s.KeyFile, keys, 0o600)); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestController_ClusterLifecycle: from the first CSR to the deletion, with an operator who accepts the
// cluster.
func TestController_ClusterLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, Config{Mode: On, Signer: signer(t)}, clusterNamed("east"))
		w.shows("east", "unreachable")

		first := csrOf(t, "east-1", "east", "agent", bootstrapUser, newKey(t))
		w.request(first)
		w.pass(time.Hour)
		if c := w.csr("east-1"); len(c.Status.Conditions) > 0 || len(c.Status.Certificate) > 0 {
			t.Fatalf("a first CSR is decided although it is undecided on the hub: %+v", c.Status)
		}
		byPerson := w.csr("east-1").DeepCopy()
		condition(certificatesv1.CertificateApproved, "a person")(byPerson)
		if _, err := w.kube.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), "east-1", byPerson, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		if c := w.csr("east-1"); len(c.Status.Certificate) > 0 {
			t.Fatal("a CSR is signed before the hub accepts its cluster")
		}

		w.edit("east", accepts)
		block, _ := pem.Decode(w.csr("east-1").Status.Certificate)
		if block == nil {
			t.Fatal("an approved CSR was not signed")
		}
		if c, err := x509.ParseCertificate(block.Bytes); err != nil || c.Subject.CommonName != userOf("east", "agent") {
			t.Fatalf("got a certificate of %v: %v", c.Subject, err)
		}
		w.shows("east", "HubAcceptedManagedCluster=True unreachable held")
		if n, err := w.kube.CoreV1().Namespaces().Get(t.Context(), "east", metav1.GetOptions{}); err != nil || n.Labels[clusterv1.ClusterNameLabelKey] != "east" {
			t.Errorf("namespace %v: %v", n, err)
		}
		l, err := w.kube.CoordinationV1().Leases("east").Get(t.Context(), ocm.LeaseName, metav1.GetOptions{})
		if err != nil || l.Labels[clusterv1.ClusterNameLabelKey] != "east" || *l.Spec.HolderIdentity != ocm.LeaseName {
			t.Errorf("lease %v: %v", l, err)
		}

		w.edit("east", sets(clusterv1.ManagedClusterConditionJoined, metav1.ConditionTrue), sets(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue))
		w.renew("east", 1)
		w.shows("east", "HubAcceptedManagedCluster=True Available=True ClockSynced=True held")
		w.forget()
		w.renew("east", 30)
		if r := w.requests(); len(r) > 0 {
			t.Errorf("requests without a change: %v", r)
		}

		// The agent is silent, and later is back.
		w.add(&addonv1alpha1.ManagedClusterAddOn{ObjectMeta: metav1.ObjectMeta{Namespace: "east", Name: "search"}})
		w.pass(3 * time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True Available=True ClockSynced=True held")
		w.pass(time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True Available=Unknown ClockSynced=True unreachable held")
		if a, err := w.addons.AddonV1alpha1().ManagedClusterAddOns("east").Get(t.Context(), "search", metav1.GetOptions{}); err != nil || !meta.IsStatusConditionPresentAndEqual(a.Status.Conditions, "Available", metav1.ConditionUnknown) {
			t.Errorf("the add-on of a disconnected cluster: %v, %v", a, err)
		}
		w.forget()
		w.pass(24 * time.Hour)
		if r := w.requests(); len(r) > 0 {
			t.Errorf("a disconnected cluster causes requests: %v", r)
		}
		w.edit("east", sets(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue))
		w.renew("east", 1)
		w.shows("east", "HubAcceptedManagedCluster=True Available=True ClockSynced=True held")

		// A report of the agent counts for five periods, as a renewal does.
		w.pass(5 * time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True Available=Unknown ClockSynced=True unreachable held")
		w.edit("east", sets(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionFalse))
		w.pass(4 * time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True Available=False ClockSynced=True unavailable held")
		w.pass(time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True Available=Unknown ClockSynced=True unreachable held")
		w.edit("east", sets(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue))

		// The acceptance is withdrawn, and granted again.
		w.edit("east", func(c *clusterv1.ManagedCluster) { c.Spec.HubAcceptsClient = false })
		w.shows("east", "HubAcceptedManagedCluster=False Available=True ClockSynced=True held")
		w.request(csrOf(t, "east-2", "east", "agent", userOf("east", "agent"), newKey(t)))
		if c := w.csr("east-2"); conditionOf(c, certificatesv1.CertificateDenied) != reasonNotAMember {
			t.Errorf("a renewal of a withdrawn cluster has %+v", c.Status)
		}
		w.edit("east", accepts)
		if c := w.csr("east-2"); c != nil {
			t.Errorf("the CSR that was denied holds the agent up: %+v", c.Status)
		}
		w.request(csrOf(t, "east-3", "east", "agent", userOf("east", "agent"), newKey(t)))
		if c := w.csr("east-3"); len(c.Status.Certificate) == 0 {
			t.Errorf("a renewal of a member has %+v", c.Status)
		}
	})
}

// TestController_EndOfACluster: a deletion removes add-ons, works by priority, then Lease and finalizers.
func TestController_EndOfACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, Config{Mode: On}, clusterNamed("east", accepts))
		object := func(k kind, name, priority string) *metav1.PartialObjectMetadata {
			o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "east", Name: name, UID: "x", Annotations: map[string]string{clusterv1.CleanupPriorityAnnotationKey: priority}}}
			o.SetGroupVersionKind(resources[k].GroupVersion().WithKind(map[kind]string{addon: "ManagedClusterAddOn", work: "ManifestWork"}[k]))
			return o
		}
		for _, o := range []*metav1.PartialObjectMetadata{object(addon, "search", ""), object(work, "last", "100"), object(work, "first", "")} {
			gvr := resources[work]
			if o.Kind == "ManagedClusterAddOn" {
				gvr = resources[addon]
			}
			if err := w.meta.Tracker().Create(gvr, o, "east"); err != nil {
				t.Fatal(err)
			}
		}
		w.forget()
		w.edit("east", func(c *clusterv1.ManagedCluster) { now := metav1.Now(); c.DeletionTimestamp = &now })
		w.pass(time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True Deleting=True unreachable")
		var gone []string
		for _, a := range w.meta.Actions() {
			if d, ok := a.(clienttesting.DeleteAction); ok {
				gone = append(gone, d.GetName())
			}
		}
		if !slices.Equal(gone, []string{"search", "first", "last"}) {
			t.Errorf("went in the order %v", gone)
		}
		if _, err := w.kube.CoordinationV1().Leases("east").Get(t.Context(), ocm.LeaseName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("its Lease: %v", err)
		}
		if _, err := w.kube.CoreV1().Namespaces().Get(t.Context(), "east", metav1.GetOptions{}); err != nil {
			t.Errorf("its namespace: %v", err)
		}
	})
}

// TestController_AcceptsForConfiguredUsers: two clients request one name, and exactly one of them is accepted.
func TestController_AcceptsForConfiguredUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, Config{Mode: On, Signer: signer(t), AutoApprovedUsers: []string{bootstrapUser}},
			csrOf(t, "east-a", "east", "a", bootstrapUser, newKey(t)), csrOf(t, "east-b", "east", "b", bootstrapUser, newKey(t)), csrOf(t, "west-a", "west", "a", "mallory", newKey(t)))
		w.add(clusterNamed("east"))
		w.add(clusterNamed("west"))
		w.pass(time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True unreachable held")
		w.shows("west", "unreachable")
		if a, b, c := w.csr("east-a"), w.csr("east-b"), w.csr("west-a"); len(a.Status.Certificate) == 0 || len(b.Status.Conditions) > 0 || len(c.Status.Conditions) > 0 {
			t.Errorf("CSRs have %+v, %+v and %+v, want a certificate for the first one only", a.Status, b.Status, c.Status)
		}
		if c := w.cluster("east"); c.Annotations[MemberAnnotation] == "" || len(c.Annotations[KeyAnnotation]) != 64 {
			t.Errorf("a restore without status would not know the owner of the name: %v", c.Annotations)
		}
		// If an operator withdraws the acceptance, it stays so for all requests.
		w.edit("east", func(c *clusterv1.ManagedCluster) { c.Spec.HubAcceptsClient = false })
		w.request(csrOf(t, "east-c", "east", "a", bootstrapUser, newKey(t)))
		w.shows("east", "HubAcceptedManagedCluster=False unreachable held")
		if c := w.cluster("east"); c.Annotations[KeyAnnotation] != NoKey {
			t.Errorf("a restore without status would not know that it was denied: %v", c.Annotations)
		}
	})
}

// TestController_CountsDisconnectionFromItsStart: a Lease that is old when hub-source starts is no proof,
// because no renewal was written meanwhile.
func TestController_CountsDisconnectionFromItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "east", Name: ocm.LeaseName}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now().Add(-time.Hour)}}}
		w := begin(t, Config{Mode: On}, clusterNamed("east", accepts, finalized, isAccepted, isAvailable), old)
		w.pass(4 * time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True Available=True held")
		w.pass(time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True Available=Unknown unreachable held")
	})
}

// TestController_TriesAgain: a request that the hub refuses for some time is retried, and other clusters are
// not affected.
func TestController_TriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, Config{Mode: On})
		refused := 0
		w.kube.PrependReactor("create", "namespaces", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if c, ok := a.(clienttesting.CreateAction); ok && c.GetObject().(metav1.Object).GetName() == "east" && refused < 5 {
				refused++
				return true, nil, errors.New("not now")
			}
			return false, nil, nil
		})
		w.add(clusterNamed("east", accepts))
		w.add(clusterNamed("west", accepts))
		w.pass(time.Second / 2)
		w.shows("east", "")
		w.shows("west", "HubAcceptedManagedCluster=True unreachable held")
		w.pass(time.Minute)
		w.shows("east", "HubAcceptedManagedCluster=True unreachable held")
		if refused != 5 {
			t.Errorf("refused %d times", refused)
		}
	})
}

// TestController_IsInactiveBesideOCM: in the mode auto it is inactive while the controllers of Open Cluster
// Management run. It becomes active when they are removed, and inactive when they return.
func TestController_IsInactiveBesideOCM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ocm := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: OCMNamespace, Name: OCMDeployment}}
		w := begin(t, Config{Mode: Auto}, clusterNamed("east"), ocm)
		w.shows("east", "")
		if err := w.kube.AppsV1().Deployments(OCMNamespace).Delete(t.Context(), OCMDeployment, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(lookForOCM + time.Second)
		w.shows("east", "unreachable")
		w.add(ocm)
		w.pass(lookForOCM)
		w.add(clusterNamed("west"))
		w.pass(time.Second)
		w.shows("west", "")
		if err := w.health.Ready(); err != nil {
			t.Error(err)
		}
	})
}

// TestController_ReportsWhyItIsIdle: if it is unknown whether other controllers run, the hub is queried
// repeatedly, and nothing is done meanwhile.
func TestController_ReportsWhyItIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := signer(t)
		w := begin(t, Config{Mode: Off, Signer: s}, clusterNamed("east"))
		w.shows("east", "")
		w.stop()

		w = begin(t, Config{Mode: On, Signer: s})
		c := &Controller{cfg: Config{Kube: w.kube, Log: slog.New(slog.DiscardHandler), Signer: s}}
		var refuse atomic.Bool
		refuse.Store(true)
		w.kube.PrependReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
			return refuse.Load(), nil, apierrors.NewForbidden(appsv1.Resource("deployments"), OCMDeployment, errors.New("no role"))
		})
		done := make(chan string, 1)
		go func() { done <- c.await(t.Context(), func(string) bool { return true }) }()
		w.pass(time.Minute)
		if err := c.check(); err == nil || !strings.Contains(err.Error(), "registrationControllers.mode") {
			t.Errorf("the health check reports %v", err)
		}
		refuse.Store(false)
		if shownBy := <-done; shownBy != "" {
			t.Errorf("found %s", shownBy)
		}
		if err := c.check(); err != nil {
			t.Error(err)
		}
		c.active.Store(true)
		if err := c.check(); err != nil {
			t.Error(err)
		}
		if err := os.Remove(s.KeyFile); err != nil {
			t.Fatal(err)
		}
		if err := c.check(); err == nil || !strings.Contains(err.Error(), "nothing is signed") {
			t.Errorf("without the key of the CA the health check reports %v", err)
		}
		c.active.Store(false)
		if err := c.check(); err != nil {
			t.Errorf("where others sign, the health check reports %v", err)
		}
		if _, err := New(Config{Mode: Auto, Signer: s, Registerer: prometheus.NewRegistry(), Health: &telemetry.Health{}}); err != nil {
			t.Errorf("where others may sign: %v", err)
		}
		if _, err := New(Config{Mode: On, Signer: s, Registerer: prometheus.NewRegistry(), Health: &telemetry.Health{}}); err == nil {
			t.Error("began with a CA that cannot sign")
		}
	})
}

func TestOCMShownBy(t *testing.T) {
	replicas := func(n int32) *appsv1.Deployment { return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &n}} }
	held := func(holder string, ago time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: start.Add(-ago)}}}
	}
	for n, c := range []struct {
		d    *appsv1.Deployment
		l    *coordinationv1.Lease
		want bool
	}{
		{nil, nil, false},
		{&appsv1.Deployment{}, nil, true},
		{replicas(1), nil, true},
		{replicas(0), nil, false},
		{replicas(0), held("x", time.Minute), true},
		{nil, held("x", time.Hour), false},
		{nil, held("", time.Minute), false},
		{nil, &coordinationv1.Lease{}, false},
	} {
		if got := ocmShownBy(c.d, c.l, start); (got != "") != c.want {
			t.Errorf("case %d: shown by %q", n, got)
		}
	}
}
