package install

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// By default a removal keeps the objects that a later installation needs. Objects of others are never deleted.
func TestRemove_KeepsPermanentObjects(t *testing.T) {
	for everything, want := range map[bool][]string{
		false: {
			"configmaps hawser/hawser-install", "customresourcedefinitions.apiextensions.k8s.io manifestworks.work.open-cluster-management.io",
			"namespaces default", "namespaces hawser", "namespaces kube-system", "persistentvolumeclaims hawser/hawser-broker", "secrets hawser/hawser-ca", "secrets hawser/mine",
		},
		true: {"namespaces default", "namespaces kube-system"},
	} {
		hub := newPlane()
		p := hub.installHub(t, wanted, epoch)
		hub.Put(secretOf("mine", nil))
		keep, err := hub.installer().KeepFilter(t.Context(), p, everything)
		if err == nil {
			err = hub.installer().Remove(t.Context(), p, keep)
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(hub.content()))); diff != "" {
			t.Errorf("everything %v (-want +got):\n%s", everything, diff)
		}
	}
}

// A hub that manages itself keeps its namespace when the agent is removed. A Deployment created by hand stays.
func TestRemove_OfOneOfTwo(t *testing.T) {
	hub := newPlane()
	hub.installHub(t, wanted, epoch)
	hub.installCluster(t, hub, "local")
	p, err := Cluster(t.Context(), Managed{Name: "local", Hub: hub, Client: hub}, epoch)
	if err != nil {
		t.Fatal(err)
	}
	keep, err := hub.installer().KeepFilter(t.Context(), p, true)
	if err == nil {
		err = hub.installer().Remove(t.Context(), p, keep)
	}
	if err != nil {
		t.Fatal(err)
	}
	content := hub.content()
	if _, gone := content["deployments.apps hawser/hawser-agent"]; gone {
		t.Error("the agent stays")
	}
	for _, stays := range []string{"namespaces hawser", "deployments.apps hawser/hawser-broker", "secrets hawser/hawser-ca"} {
		if _, ok := content[stays]; !ok {
			t.Errorf("%s was deleted", stays)
		}
	}
}

// A removal leaves nothing on a hub that clusters have joined. If Open Cluster Management was installed later,
// its objects stay.
func TestRemove_CleansHubWithJoinedClusters(t *testing.T) {
	s := wanted
	s.Registration = On
	none := []string{"namespaces default", "namespaces kube-system"}
	for program, want := range map[string][]string{
		"":            none,
		ocmController: {"customresourcedefinitions.apiextensions.k8s.io managedclusteraddons.addon.open-cluster-management.io", "customresourcedefinitions.apiextensions.k8s.io managedclusters.cluster.open-cluster-management.io", "customresourcedefinitions.apiextensions.k8s.io manifestworks.work.open-cluster-management.io", "deployments.apps open-cluster-management-hub/cluster-manager-registration-controller", "namespaces default", "namespaces kube-system", "namespaces open-cluster-management-hub"},
		"placement":   {"customresourcedefinitions.apiextensions.k8s.io managedclusteraddons.addon.open-cluster-management.io", "customresourcedefinitions.apiextensions.k8s.io managedclusters.cluster.open-cluster-management.io", "customresourcedefinitions.apiextensions.k8s.io manifestworks.work.open-cluster-management.io", "deployments.apps open-cluster-management-hub/placement", "namespaces default", "namespaces kube-system", "namespaces open-cluster-management-hub"},
	} {
		hub := newPlane()
		hub.installHub(t, s, epoch)
		if program != "" {
			hub.Put(object("apps/v1", "Deployment", ocmNamespace, program))
		}
		p, err := Installed(t.Context(), hub, epoch)
		if err != nil {
			t.Fatal(err)
		}
		keep, err := hub.installer().KeepFilter(t.Context(), p, true)
		if err == nil {
			err = hub.installer().Remove(t.Context(), p, keep)
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(hub.content()))); diff != "" {
			t.Errorf("with %q (-want +got):\n%s", program, diff)
		}
	}
}

// Clusters that have joined are deleted while hub-source runs, because only hub-source removes their
// finalizers. A cluster that requests again does not delay that. Clusters of Open Cluster Management stay.
func TestDeleteClusters_WaitsForHubSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		named := func(name string, finalizers ...string) *metav1.PartialObjectMetadata {
			return &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: clusters.GroupVersion().String(), Kind: "ManagedCluster"},
				ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers},
			}
		}
		var deleted []string
		fleet := func() *metadatafake.FakeMetadataClient {
			deleted = nil
			client := metadatafake.NewSimpleMetadataClient(scheme, named("member", "hub-source's"), named("asks"))
			client.PrependReactor("delete", clusters.Resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
				deleted = append(deleted, a.(clienttesting.DeleteAction).GetName())
				if len(deleted) > 2 {
					return false, nil, nil
				}
				// These deletions have no effect: "asks" is created again, and "member" keeps its finalizer
				// until the next list.
				return true, nil, nil
			})
			return client
		}
		hub, joined := newPlane(), Plan{Settings: Settings{Registration: On}}
		if err := hub.installer().DeleteClusters(t.Context(), fleet(), Plan{}); err != nil || deleted != nil {
			t.Errorf("of a hub that none joins: deleted %q, error %v", deleted, err)
		}
		if err := hub.installer().DeleteClusters(t.Context(), fleet(), joined); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(deleted, []string{"asks", "member", "asks", "member"}) || !slices.Equal(hub.output, []string{"waiting for 1 ManagedClusters to be gone: hub-source removes their add-ons and finalizers first"}) {
			t.Errorf("deleted %q, printed %q", deleted, hub.output)
		}
		stuck := fleet()
		stuck.PrependReactor("delete", clusters.Resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := hub.installer().DeleteClusters(ctx, stuck, joined); err == nil || !strings.HasPrefix(err.Error(), "1 ManagedClusters are not gone: does hub-source run") {
			t.Errorf("error %v", err)
		}
		hub.Put(object("v1", "Namespace", "", ocmNamespace))
		hub.Put(object("apps/v1", "Deployment", ocmNamespace, ocmController))
		if err := hub.installer().DeleteClusters(t.Context(), fleet(), joined); err != nil || deleted != nil {
			t.Errorf("of Open Cluster Management: deleted %q, error %v", deleted, err)
		}
	})
}

// Works are deleted once. The installer waits until their clusters have deleted the objects.
func TestDeleteWorks_WaitsForTheClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		work := func(namespace, name string) *metav1.PartialObjectMetadata {
			return &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: works.GroupVersion().String(), Kind: "ManifestWork"},
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			}
		}
		client := metadatafake.NewSimpleMetadataClient(scheme, work("cluster1", "a"), work("cluster1", "b"), work("cluster2", "c"))
		lists, deletions := 0, 0
		client.PrependReactor("list", works.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			lists++
			return false, nil, nil
		})
		client.PrependReactor("delete", works.Resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
			deletions++
			if a.GetNamespace() != "cluster1" {
				t.Errorf("deletes in %s", a.GetNamespace())
			}
			return false, nil, nil
		})
		hub := newPlane()
		if err := hub.installer().DeleteWorks(t.Context(), client, "cluster1"); err != nil {
			t.Fatal(err)
		}
		if lists != 2 || deletions != 2 || len(hub.output) != 1 {
			t.Errorf("%d lists, %d deletions, printed %q", lists, deletions, hub.output)
		}
		// No agent removes the finalizer of this work.
		held := work("cluster1", "held")
		held.DeletionTimestamp, held.Finalizers = &metav1.Time{Time: epoch}, []string{"x"}
		client = metadatafake.NewSimpleMetadataClient(scheme, held)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := hub.installer().DeleteWorks(ctx, client, "cluster1"); err == nil || !strings.HasPrefix(err.Error(), "1 works are not gone") {
			t.Errorf("error %v", err)
		}
	})
}
