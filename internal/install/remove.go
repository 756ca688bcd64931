package install

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/cluster"
)

// works is what hubs have, records what agents have of each of them.
var (
	works   = schema.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: "manifestworks"}
	records = schema.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: "appliedmanifestworks"}
)

// DeleteWorks deletes the works in a namespace of the hub, of all if it is empty,
// and waits until they are gone: until their clusters have deleted the objects.
func (i Installer) DeleteWorks(ctx context.Context, hub metadata.Interface, namespace string) error {
	said := -1
	for {
		found, err := hub.Resource(works).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil // the definition is gone
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("works of the hub: %w", err)
		}
		if err == nil {
			if len(found.Items) == 0 {
				return nil
			}
			for _, w := range found.Items {
				if w.DeletionTimestamp != nil {
					continue
				}
				if err := hub.Resource(works).Namespace(w.Namespace).Delete(ctx, w.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return fmt.Errorf("work %s/%s: %w", w.Namespace, w.Name, err)
				}
			}
			if said != len(found.Items) {
				said = len(found.Items)
				i.Say("waiting for %d works to be gone: their clusters delete what they have first", said)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d works are not gone: are the agents of their clusters running, and does a finalizer hold an object there", said)
		case <-time.After(pause):
		}
	}
}

// HasRecords tells whether a cluster still has records of works.
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

// Keeps tells which objects of a plan stay when the rest is removed: what a later
// installation goes on from. everything leaves nothing of a plan, but for a
// namespace that others still run in.
func Keeps(ctx context.Context, client cluster.Client, p Plan, everything bool) (func(*unstructured.Unstructured) bool, error) {
	shared, err := sharedNamespace(ctx, client, p)
	if err != nil {
		return nil, err
	}
	lasting := []string{"CustomResourceDefinition", "Namespace", "PersistentVolumeClaim"}
	return func(o *unstructured.Unstructured) bool {
		if everything {
			return shared && o.GetKind() == "Namespace"
		}
		return slices.Contains(lasting, o.GetKind()) || o.GetName() == authoritySecret || o.GetName() == signerSecret || o.GetName() == settingsName
	}, nil
}

// sharedNamespace tells whether a program that is not in the plan runs in the
// namespace: hub and agent can be on one cluster.
func sharedNamespace(ctx context.Context, client cluster.Client, p Plan) (bool, error) {
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

// Remove deletes what a plan has, or had in an earlier run, and this package put there,
// the last first. What keep names stays.
func (i Installer) Remove(ctx context.Context, p Plan, keep func(*unstructured.Unstructured) bool) error {
	objects := slices.Concat(p.Objects, p.Last)
	slices.Reverse(objects)
	earlier, err := i.former(ctx, p)
	if err != nil {
		return err
	}
	for _, o := range slices.Concat(earlier, objects) {
		have, err := get(ctx, i.Client, o)
		var unknown *cluster.NoKindError
		switch {
		case errors.As(err, &unknown):
			continue
		case err != nil:
			return err
		case have == nil:
			continue
		case !ours(have) || keep(o):
			i.Say("%s stays", nameOf(o))
			continue
		}
		if err := i.remove(ctx, have); err != nil {
			return err
		}
		i.Say("%s deleted", nameOf(o))
	}
	return nil
}

// remove deletes an object as it was read.
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
