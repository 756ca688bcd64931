package server

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
)

const (
	collectorWorkers     = 5
	collectorSyncTimeout = 30 * time.Second
	// discoveryPeriod is the time until objects of a new CRD are collected. kube-controller-manager looks for
	// new kinds every 30 s.
	discoveryPeriod = time.Second
)

// runGarbageCollector deletes dependents, and serves foreground and orphaning deletion, also for the kinds of
// new CRDs.
func runGarbageCollector(ctx context.Context, cfg *restclient.Config, client kubernetes.Interface) error {
	objects, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	typed := informers.NewSharedInformerFactory(client, 0)
	untyped := metadatainformer.NewSharedInformerFactory(objects, 0)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	started := make(chan struct{})
	gc, err := garbagecollector.NewGarbageCollector(ctx, client, objects, mapper, garbagecollector.DefaultIgnoredResources(),
		informerfactory.NewInformerFactory(typed, untyped), started)
	if err != nil {
		return err
	}
	typed.Start(ctx.Done())
	untyped.Start(ctx.Done())
	close(started)
	var wg sync.WaitGroup
	wg.Go(func() { gc.Run(ctx, collectorWorkers, collectorSyncTimeout) })
	wg.Go(func() { gc.Sync(ctx, client.Discovery(), discoveryPeriod) })
	wg.Wait()
	return nil
}
