// Package informer has the parts that all informers of a hub have in common.
package informer

import (
	"context"
	"errors"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

// Uncached makes the first list return the present state, and not that of a cache of the API server that may
// lag.
func Uncached(o *metav1.ListOptions) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
}

// Prepare makes an informer keep what trim returns for each object of type T. It logs failed lists and watches,
// which are retried. attrs are added to these messages.
func Prepare[T any](i cache.SharedIndexInformer, log *slog.Logger, trim func(T) (any, error), attrs ...any) error {
	return errors.Join(
		i.SetTransform(func(o any) (any, error) {
			if t, ok := o.(T); ok {
				return trim(t)
			}
			return o, nil
		}),
		i.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
			if ctx.Err() == nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				log.WarnContext(ctx, "watch on the hub ended and is started again", append(attrs, "err", err)...)
			}
		}))
}

// Handler calls f for each change of an object of type T. was is the zero value for a new object, is that for a
// deleted one. unseen means that the watch missed the deletion, and a later list lacked the object.
func Handler[T any](f func(was, is T, unseen bool)) cache.ResourceEventHandler {
	var none T
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if is, ok := o.(T); ok {
				f(none, is, false)
			}
		},
		UpdateFunc: func(old, o any) {
			was, _ := old.(T)
			if is, ok := o.(T); ok {
				f(was, is, false)
			}
		},
		DeleteFunc: func(o any) {
			d, unseen := o.(cache.DeletedFinalStateUnknown)
			if unseen {
				o = d.Obj
			}
			if was, ok := o.(T); ok {
				f(was, none, unseen)
			}
		},
	}
}

// Task runs an informer.
func Task(i cache.SharedIndexInformer) taskgroup.Task {
	return taskgroup.Task{Name: "informer", Run: func(ctx context.Context) error {
		i.RunWithContext(ctx)
		return nil
	}}
}

// Synced waits until all informers have their first list. It returns false if ctx ends before.
func Synced(ctx context.Context, all ...cache.SharedIndexInformer) bool {
	synced := make([]cache.InformerSynced, len(all))
	for n, i := range all {
		synced[n] = i.HasSynced
	}
	return cache.WaitForCacheSync(ctx.Done(), synced...)
}
