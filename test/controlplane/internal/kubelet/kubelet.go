// Package kubelet replaces the scheduler and the kubelets of a cluster without containers. It registers nodes,
// binds pods to them, and reports pods Running and Ready (pods of a Job: Succeeded). It completes the deletion
// of pods as soon as the API server sends the event.
//
// It ignores resources, selectors, taints and volumes, and calls no probe.
package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

const (
	workers       = 8
	firstRetry    = 20 * time.Millisecond
	longestRetry  = 2 * time.Second
	warnAfterFail = 5 // conflicts are common, and a retry succeeds
)

// Kubelet acts for all nodes of a cluster.
type Kubelet struct {
	// Client needs no rate limit of its own.
	Client kubernetes.Interface
	// Nodes is the number of nodes, at least 1.
	Nodes int
	Log   *slog.Logger
}

// Run serves the pods of the cluster until ctx is done; then it returns nil.
func (k *Kubelet) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(k.Client, 0)
	pods := factory.Core().V1().Pods()
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](firstRetry, longestRetry))
	enqueue := func(o any) {
		if p, ok := o.(*corev1.Pod); ok && next(p) != nothing {
			queue.Add(cache.MetaObjectToName(p))
		}
	}
	if _, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, o any) { enqueue(o) },
	}); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	lister := pods.Lister()
	factory.Start(ctx.Done())
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for k.serveNext(ctx, queue, lister) {
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	wg.Wait()
	factory.Shutdown()
	return nil
}

// serveNext takes one pod from the queue. It returns false after the queue was shut down.
func (k *Kubelet) serveNext(ctx context.Context, queue workqueue.TypedRateLimitingInterface[cache.ObjectName], lister corelisters.PodLister) bool {
	name, stopped := queue.Get()
	if stopped {
		return false
	}
	defer queue.Done(name)
	err := k.serve(ctx, lister, name)
	if err == nil || ctx.Err() != nil {
		queue.Forget(name)
		return true
	}
	if queue.NumRequeues(name) == warnAfterFail {
		k.Log.Warn("simulated kubelet keeps failing on a pod", "pod", name.String(), "error", err)
	}
	queue.AddRateLimited(name)
	return true
}

// serve performs the next step of a pod. The step changes the pod, and the event of that change starts the next
// step.
func (k *Kubelet) serve(ctx context.Context, lister corelisters.PodLister, name cache.ObjectName) error {
	pod, err := lister.Pods(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	client := k.Client.CoreV1().Pods(pod.Namespace)
	switch next(pod) {
	case remove:
		err = client.Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64),
			Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
		})
	case bind:
		err = client.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: pickNode(pod, k.Nodes)},
		}, metav1.CreateOptions{})
	case start:
		_, err = client.UpdateStatus(ctx, started(pod, metav1.Now()), metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil // the pod was deleted in the meantime
	}
	return err
}
