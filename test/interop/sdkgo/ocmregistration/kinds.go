package main

import (
	"context"
	"encoding/json"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	addonv1alpha1 "open-cluster-management.io/api/addon/v1alpha1"
	addonv1beta1 "open-cluster-management.io/api/addon/v1beta1"
	addonclientset "open-cluster-management.io/api/client/addon/clientset/versioned"
	addonclient "open-cluster-management.io/api/client/addon/clientset/versioned/typed/addon/v1alpha1"
	addoninformers "open-cluster-management.io/api/client/addon/informers/externalversions"
	clusterinformers "open-cluster-management.io/api/client/cluster/informers/externalversions"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/addon"
	addonalpha "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/addon/v1alpha1"
	addonbeta "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/addon/v1beta1"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/cluster"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/csr"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/event"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/lease"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/store"
	"open-cluster-management.io/sdk-go/pkg/cloudevents/generic"
)

// maker creates the client of one data type.
type maker struct {
	dataType string
	make     func(context.Context, *klusterlet) (kind, error)
}

var makers = []maker{
	{cluster.ManagedClusterEventDataType.String(), clusters},
	{csr.CSREventDataType.String(), requests},
	{lease.LeaseEventDataType.String(), leases},
	{event.EventEventDataType.String(), events},
	{addonalpha.ManagedClusterAddOnEventDataType.String(), addonsAlpha},
	{addonbeta.ManagedClusterAddOnEventDataType.String(), addonsBeta},
}

func clusters(ctx context.Context, k *klusterlet) (kind, error) {
	held := store.NewAgentInformerWatcherStore[*clusterv1.ManagedCluster]()
	holder, err := cluster.NewClientHolder(ctx, clientOptions(k, cluster.NewManagedClusterCodec(), held))
	if err != nil {
		return kind{}, err
	}
	client := holder.ManagedClusters()
	return kind{
		create: creating(client.Create), patch: patching(client.Patch), list: listing(held),
		informer: clusterinformers.NewSharedInformerFactory(holder.ClusterInterface(), 0).Cluster().V1().ManagedClusters().Informer(),
	}, nil
}

func requests(ctx context.Context, k *klusterlet) (kind, error) {
	held := store.NewAgentInformerWatcherStore[*certificatesv1.CertificateSigningRequest]()
	holder, err := csr.NewAgentClientHolder(ctx, clientOptions(k, csr.NewCSRCodec(), held))
	if err != nil {
		return kind{}, err
	}
	return kind{create: creating(holder.Clients().Create), list: listing(held), informer: holder.Informer()}, nil
}

func leases(ctx context.Context, k *klusterlet) (kind, error) {
	held := store.NewSimpleStore[*coordinationv1.Lease]() // this client has no informer
	client, err := lease.NewLeaseClient(ctx, clientOptions(k, lease.NewLeaseCodec(), held), k.cluster)
	if err != nil {
		return kind{}, err
	}
	update := func(ctx context.Context, raw json.RawMessage) (any, error) {
		l := &coordinationv1.Lease{}
		if err := json.Unmarshal(raw, l); err != nil {
			return nil, err
		}
		return client.Update(ctx, l, metav1.UpdateOptions{})
	}
	return kind{update: update, list: listing(held)}, nil
}

func events(ctx context.Context, k *klusterlet) (kind, error) {
	held := store.NewSimpleStore[*eventsv1.Event]() // stays empty: Events have no subscribers
	o := clientOptions(k, event.NewEventCodec(), held).WithSubscription(false).WithResyncEnabled(false)
	holder, err := event.NewClientHolder(ctx, o)
	if err != nil {
		return kind{}, err
	}
	client := holder.Events(k.cluster)
	return kind{create: creating(client.Create), patch: patching(client.Patch)}, nil
}

func addonsAlpha(ctx context.Context, k *klusterlet) (kind, error) {
	held := store.NewAgentInformerWatcherStore[*addonv1alpha1.ManagedClusterAddOn]()
	events, err := clientOptions(k, addonalpha.NewManagedClusterAddOnCodec(), held).AgentClient(ctx)
	if err != nil {
		return kind{}, err
	}
	set := alphaSet{alpha: addonalpha.NewAddonClientWrapper(addonalpha.NewManagedClusterAddOnClient(events, held))}
	factory := addoninformers.NewSharedInformerFactoryWithOptions(set, 0, addoninformers.WithNamespace(k.cluster))
	return kind{
		patch: patching(set.alpha.ManagedClusterAddOns(k.cluster).Patch), list: listing(held),
		informer: factory.Addon().V1alpha1().ManagedClusterAddOns().Informer(),
	}, nil
}

// alphaSet is the part of the clientset that agents up to OCM v1.2 have.
type alphaSet struct {
	addonclientset.Interface
	alpha addonclient.AddonV1alpha1Interface
}

func (s alphaSet) AddonV1alpha1() addonclient.AddonV1alpha1Interface { return s.alpha }

func addonsBeta(ctx context.Context, k *klusterlet) (kind, error) {
	held := store.NewAgentInformerWatcherStore[*addonv1beta1.ManagedClusterAddOn]()
	set, err := addon.ManagedClusterAddOnInterface(ctx, clientOptions(k, addonbeta.NewManagedClusterAddOnCodec(), held))
	if err != nil {
		return kind{}, err
	}
	factory := addoninformers.NewSharedInformerFactoryWithOptions(set, 0, addoninformers.WithNamespace(k.cluster))
	return kind{
		patch: patching(set.AddonV1beta1().ManagedClusterAddOns(k.cluster).Patch), list: listing(held),
		informer: factory.Addon().V1beta1().ManagedClusterAddOns().Informer(),
	}, nil
}

// creating makes a client's Create accept JSON.
func creating[T any](create func(context.Context, *T, metav1.CreateOptions) (*T, error)) func(context.Context, json.RawMessage) (any, error) {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		o := new(T)
		if err := json.Unmarshal(raw, o); err != nil {
			return nil, err
		}
		return create(ctx, o, metav1.CreateOptions{})
	}
}

// patching returns a client's Patch with a merge patch of the status, the only one that klusterlets send. The
// client of Events ignores the subresource.
func patching[T any](
	patch func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*T, error),
) func(context.Context, string, []byte) (any, error) {
	return func(ctx context.Context, name string, b []byte) (any, error) {
		return patch(ctx, name, types.MergePatchType, b, metav1.PatchOptions{}, "status")
	}
}

// listing lists what a client holds.
func listing[T generic.ResourceObject](held store.ClientWatcherStore[T]) func(context.Context) ([]any, error) {
	return func(ctx context.Context) ([]any, error) {
		all, err := held.ListAll(ctx)
		var out []any
		for _, o := range all {
			out = append(out, o)
		}
		return out, err
	}
}
