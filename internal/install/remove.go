package install

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// works are the works of hubs, records the AppliedManifestWorks of agents, clusters the ManagedClusters that
// joined a hub.
var (
	works    = schema.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: "manifestworks"}
	records  = schema.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: "appliedmanifestworks"}
	clusters = schema.GroupVersionResource{Group: clusterv1.GroupName, Version: "v1", Resource: "managedclusters"}
)

// doomed are objects of a hub that are deleted while the program that removes their finalizers still runs.
type doomed struct {
	schema.GroupVersionResource
	namespace string // empty: all
	// called is their name for display. first is the precondition of their removal, and stuck a question about
	// possible obstacles.
	called, first, stuck string
	// counts reports whether to wait for an object.
	counts func(metav1.PartialObjectMetadata) bool
}

// DeleteWorks deletes the works in a namespace of the hub, in all if it is empty. It waits until they are gone,
// which means that their clusters have deleted the objects.
func (i Installer) DeleteWorks(ctx context.Context, hub metadata.Interface, namespace string) error {
	return i.deleteAll(ctx, hub, doomed{
		works, namespace, "works", "their clusters delete the objects",
		"are the agents of their clusters running, are clusters that joined accepted, and does a finalizer keep an object there",
		func(metav1.PartialObjectMetadata) bool { return true },
	})
}

// DeleteClusters deletes the ManagedClusters of a hub with registration. It waits until the running hub-source
// has removed its finalizers. A cluster that requests again in between has no finalizer. With registration
// controllers of Open Cluster Management the clusters are not touched.
func (i Installer) DeleteClusters(ctx context.Context, hub metadata.Interface, p Plan) error {
	if p.Settings.Registration != On {
		return nil
	}
	others, err := ocmRuns(ctx, i.Client)
	if err != nil {
		return err
	}
	if others {
		i.Printf("ManagedClusters stay: Open Cluster Management manages them")
		return nil
	}
	return i.deleteAll(ctx, hub, doomed{
		clusters, "", "ManagedClusters", "hub-source removes their add-ons and finalizers",
		"does hub-source run, and do they or their add-ons have finalizers of other controllers",
		func(c metav1.PartialObjectMetadata) bool { return len(c.Finalizers) > 0 },
	})
}

// deleteAll deletes objects and waits until those that count are gone. In a dry run it prints them.
func (i Installer) deleteAll(ctx context.Context, hub metadata.Interface, d doomed) error {
	if !i.Dry {
		return i.deleteAndWait(ctx, hub, d)
	}
	names, err := i.there(ctx, hub, d)
	for _, name := range names {
		i.Printf("%s would be deleted", name)
	}
	return err
}

func (i Installer) deleteAndWait(ctx context.Context, hub metadata.Interface, d doomed) error {
	reported := -1
	for {
		found, err := hub.Resource(d.GroupVersionResource).Namespace(d.namespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil // the definition does not exist
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s of the hub: %w", d.called, err)
		}
		if err == nil {
			waited := 0
			for _, o := range found.Items {
				if d.counts(o) {
					waited++
				}
				if o.DeletionTimestamp != nil {
					continue
				}
				if err := hub.Resource(d.GroupVersionResource).Namespace(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return fmt.Errorf("%s: %w", kubeclient.Ref{GroupVersionResource: d.GroupVersionResource, Namespace: o.Namespace, Name: o.Name}, err)
				}
			}
			if waited == 0 {
				return nil
			}
			if reported != waited {
				reported = waited
				i.Printf("waiting for %d %s to be gone: %s first", waited, d.called, d.first)
			}
		}
		if !taskgroup.Sleep(ctx, pause) {
			return fmt.Errorf("%d %s are not gone: %s", reported, d.called, d.stuck)
		}
	}
}

// Works returns the works in a namespace of the hub, in all if it is empty, that are not being deleted.
func (i Installer) Works(ctx context.Context, hub metadata.Interface, namespace string) ([]string, error) {
	return i.there(ctx, hub, doomed{GroupVersionResource: works, namespace: namespace, called: "works"})
}

// there returns the names of the objects that are not being deleted.
func (i Installer) there(ctx context.Context, hub metadata.Interface, d doomed) (names []string, err error) {
	found, err := hub.Resource(d.GroupVersionResource).Namespace(d.namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // the definition does not exist
	}
	if err != nil {
		return nil, fmt.Errorf("%s of the hub: %w", d.called, err)
	}
	for _, o := range found.Items {
		if o.DeletionTimestamp == nil {
			names = append(names, kubeclient.Ref{GroupVersionResource: d.GroupVersionResource, Namespace: o.Namespace, Name: o.Name}.String())
		}
	}
	return names, nil
}

// HasRecords reports whether a cluster still has AppliedManifestWorks.
func HasRecords(ctx context.Context, client metadata.Interface) (bool, error) {
	found, err := client.Resource(records).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("records of works on the cluster: %w", err)
	}
	return len(found.Items) > 0, nil
}

// KeepFilter returns a predicate for the objects of a plan that stay when the rest is removed, for a later
// installation. With everything, only namespaces with other programs stay, and definitions that Open Cluster
// Management needs on this hub.
func (i Installer) KeepFilter(ctx context.Context, p Plan, everything bool) (func(*unstructured.Unstructured) bool, error) {
	shared, err := sharedNamespace(ctx, i.Client, p)
	if err != nil {
		return nil, err
	}
	// OCM's Deployments. They may have been installed later, into a namespace and definitions with Hawser's label.
	theirs, err := i.List(drift.Scope{GroupVersionResource: appsv1.SchemeGroupVersion.WithResource("deployments"), Namespace: ocmNamespace}).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("programs of Open Cluster Management: %w", err)
	}
	ocm := len(theirs.Items) > 0
	lasting := []string{"CustomResourceDefinition", "Namespace", "PersistentVolumeClaim"}
	return func(o *unstructured.Unstructured) bool {
		switch {
		case !everything:
			return slices.Contains(lasting, o.GetKind()) || o.GetName() == authoritySecret || o.GetName() == signerSecret || o.GetName() == settingsName
		case o.GetKind() == "CustomResourceDefinition", o.GetKind() == "Namespace" && o.GetName() == ocmNamespace:
			return ocm
		}
		return shared && o.GetKind() == "Namespace"
	}, nil
}

// sharedNamespace reports whether a program outside of the plan runs in the namespace: hub and agent can be on
// one cluster.
func sharedNamespace(ctx context.Context, client kubeclient.Client, p Plan) (bool, error) {
	for _, name := range []string{"hawser-broker", "hawser-hub-source", "hawser-agent"} {
		d := object("apps/v1", "Deployment", namespace, name)
		if slices.ContainsFunc(p.Objects, func(o *unstructured.Unstructured) bool {
			return o.GetKind() == d.GetKind() && o.GetName() == name
		}) {
			continue
		}
		if have, err := get(ctx, client, d); err != nil || have != nil {
			return true, err
		}
	}
	return false, nil
}

// Remove deletes the objects of a plan, or of an earlier run, that this package created, in reverse order.
// Objects for which keep returns true stay.
func (i Installer) Remove(ctx context.Context, p Plan, keep func(*unstructured.Unstructured) bool) error {
	objects := slices.Concat(p.Objects, p.Last)
	slices.Reverse(objects)
	earlier, err := i.former(ctx, p)
	if err != nil {
		return err
	}
	for _, o := range slices.Concat(earlier, objects) {
		have, err := get(ctx, i.Client, o)
		switch {
		case errors.As(err, new(*kubeclient.NoKindError)):
			continue
		case err != nil:
			return err
		case have == nil:
			continue
		case !ours(have) || keep(o):
			i.Printf("%s stays", nameOf(o))
			continue
		}
		if i.Dry {
			i.Printf("%s would be deleted", nameOf(o))
			continue
		}
		if err := i.remove(ctx, have); err != nil {
			return err
		}
		i.Printf("%s deleted", nameOf(o))
	}
	return nil
}

// remove deletes an object in the state in which it was read.
func (i Installer) remove(ctx context.Context, have *unstructured.Unstructured) error {
	ref, err := refOf(ctx, i.Client, have)
	if err == nil {
		err = i.Client.Delete(ctx, ref, have.GetUID())
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: %w", nameOf(have), err)
	}
	return nil
}
