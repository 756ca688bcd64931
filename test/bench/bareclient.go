package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// bareClient sends the requests of an agent's first start as fast as the kube-apiserver answers them, without
// any other work: the limit of the machine for that start.
type bareClient struct{ objects dynamic.Interface }

// deployments is a resource whose objects the agent reads.
var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

// ofMixed are the resources of the objects of one work.
var ofMixed = []schema.GroupVersionResource{
	{Version: "v1", Resource: "serviceaccounts"}, configMaps, {Version: "v1", Resource: "services"}, deployments, gauges,
}

func newBareClient(cluster *restclient.Config) (bareClient, error) {
	c := restclient.CopyConfig(cluster)
	c.QPS = -1 // client-go does not limit the rate
	objects, err := dynamic.NewForConfig(c)
	return bareClient{objects}, err
}

func bareOf(i int) string { return fmt.Sprintf("bare-%03d", i) }

// run creates the objects and the AppliedManifestWorks of all works, writes the status of the latter twice, as
// the agent does, and reads Deployments, until it has sent n requests. As many are in flight as the agent has.
func (p bareClient) run(ctx context.Context, n int) (time.Duration, error) {
	var creates, others []func(context.Context) error
	for i := range workCount {
		all, err := bareObjects(i)
		if err != nil {
			return 0, err
		}
		for k, o := range all {
			creates = append(creates, func(ctx context.Context) error {
				_, err := p.at(k, o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{})
				return err
			})
		}
		status := fmt.Appendf(nil, `{"status":{"appliedResources":[{"group":"","version":"v1","resource":"configmaps","name":%q,"namespace":%q,"uid":""}]}}`, bareOf(i), spaceOf(i))
		for range 2 {
			others = append(others, func(ctx context.Context) error {
				_, err := p.objects.Resource(appliedwork.Resource).Patch(ctx, bareOf(i), types.MergePatchType, status, metav1.PatchOptions{}, "status")
				return err
			})
		}
	}
	for i := range max(0, n-len(creates)-len(others)) {
		others = append(others, func(ctx context.Context) error {
			_, err := p.objects.Resource(deployments).Namespace(spaceOf(i%workCount)).Get(ctx, bareOf(i%workCount), metav1.GetOptions{})
			return err
		})
	}
	began := time.Now()
	for _, requests := range [][]func(context.Context) error{creates, others} {
		sending, ctx := errgroup.WithContext(ctx)
		sending.SetLimit(kubeclient.DefaultInFlight)
		for _, send := range requests {
			sending.Go(func() error { return send(ctx) })
		}
		if err := sending.Wait(); err != nil {
			return 0, fmt.Errorf("bare client: %w", err)
		}
	}
	return time.Since(began), nil
}

// bareObjects returns the AppliedManifestWork of a work, and its objects in the order of ofMixed.
func bareObjects(i int) ([]*unstructured.Unstructured, error) {
	var work struct {
		Spec struct {
			Workload struct{ Manifests []map[string]any }
		}
	}
	if err := yaml.Unmarshal(fmt.Appendf(nil, mixed, bareOf(i), spaceOf(i), cluster), &work); err != nil {
		return nil, err
	}
	all := []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": workv1.GroupVersion.String(), "kind": "AppliedManifestWork", "metadata": map[string]any{"name": bareOf(i)},
		"spec": map[string]any{"hubHash": "bench", "agentID": "bench", "manifestWorkName": bareOf(i)},
	}}}
	for _, m := range work.Spec.Workload.Manifests {
		all = append(all, &unstructured.Unstructured{Object: m})
	}
	return all, nil
}

// at returns the client for the object at an index of bareObjects.
func (p bareClient) at(k int, namespace string) dynamic.ResourceInterface {
	if k == 0 {
		return p.objects.Resource(appliedwork.Resource)
	}
	return p.objects.Resource(ofMixed[k-1]).Namespace(namespace)
}

// clear deletes what run created.
func (p bareClient) clear(ctx context.Context) error {
	deleting, ctx := errgroup.WithContext(ctx)
	deleting.SetLimit(kubeclient.DefaultInFlight)
	background := metav1.DeletePropagationBackground
	for i := range workCount {
		for k := range len(ofMixed) + 1 {
			deleting.Go(func() error {
				return p.at(k, spaceOf(i)).Delete(ctx, bareOf(i), metav1.DeleteOptions{PropagationPolicy: &background})
			})
		}
	}
	return deleting.Wait()
}
