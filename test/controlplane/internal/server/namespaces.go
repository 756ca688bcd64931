package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/kubernetes/pkg/controller/namespace/deletion"
)

const (
	// To empty a namespace, two lists of each kind follow each other. The cache of an idle kind answers a
	// consistent list after up to 100 ms. That is seconds of waiting without work. Parallel tests each end with a
	// namespace: with 4 workers some waited for a minute.
	namespaceWorkers = 32
	// kube-controller-manager waits 5 s before it empties a namespace, and seconds to minutes before each retry.
	namespaceFirstRetry   = 50 * time.Millisecond
	namespaceLongestRetry = time.Second
)

// runNamespaceController empties namespaces that are being deleted, and then removes their finalizer.
func runNamespaceController(ctx context.Context, cfg *restclient.Config, client kubernetes.Interface, log *slog.Logger) error {
	objects, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	deleter := deletion.NewNamespacedResourcesDeleter(ctx, client.CoreV1().Namespaces(), objects, client.CoreV1(),
		client.Discovery().ServerPreferredNamespacedResources, corev1.FinalizerKubernetes)
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](namespaceFirstRetry, namespaceLongestRetry))
	enqueue := func(o any) {
		if ns, ok := o.(*corev1.Namespace); ok && ns.DeletionTimestamp != nil {
			queue.Add(ns.Name)
		}
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	if _, err := factory.Core().V1().Namespaces().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, o any) { enqueue(o) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	var wg sync.WaitGroup
	for range namespaceWorkers {
		wg.Go(func() {
			for emptyNext(ctx, queue, deleter, log) {
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	wg.Wait()
	factory.Shutdown()
	return nil
}

// emptyNext takes one namespace from the queue. It returns false after the queue was shut down.
func emptyNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], deleter deletion.NamespacedResourcesDeleterInterface, log *slog.Logger) bool {
	name, stopped := queue.Get()
	if stopped {
		return false
	}
	defer queue.Done(name)
	err := deleter.Delete(ctx, name)
	if err == nil {
		queue.Forget(name)
		return true
	}
	// The usual reasons for a retry are objects whose deletion takes time, and a namespace that has changed.
	var remaining *deletion.ResourcesRemainingError
	if !errors.As(err, &remaining) && !apierrors.IsConflict(err) && ctx.Err() == nil {
		log.Warn("namespace cannot be emptied yet", "namespace", name, "error", err)
	}
	queue.AddRateLimited(name)
	return true
}
