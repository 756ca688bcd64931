package consistency

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
)

// Watch reports all events of the objects of one cluster to a history. When the kube-apiserver comes back it
// continues at its position. If that is not possible it starts with a new list. Then it misses events, but
// neither a fall of a counter nor a deletion.
type Watch struct {
	Cluster   string
	Client    kubernetes.Interface
	Namespace string
	History   *History
}

// counterField of a ConfigMap's data has the counter.
const counterField = "n"

// retryEvery is the time between attempts at a kube-apiserver that is away.
const retryEvery = 200 * time.Millisecond

// Run watches until ctx ends.
func (w Watch) Run(ctx context.Context) {
	objects := w.Client.CoreV1().ConfigMaps(w.Namespace)
	selector := metav1.ListOptions{LabelSelector: Label}
	for ctx.Err() == nil {
		var list *corev1.ConfigMapList
		err := wait.PollUntilContextCancel(ctx, retryEvery, true, func(ctx context.Context) (ok bool, err error) {
			list, err = objects.List(ctx, selector)
			return err == nil, nil
		})
		if err != nil {
			return // ctx ended
		}
		w.listed(list)
		w.follow(ctx, objects, list.ResourceVersion)
	}
}

func (w Watch) listed(list *corev1.ConfigMapList) {
	found := map[string]Object{}
	for _, o := range list.Items {
		if n, ok := w.counter(&o); ok {
			found[o.Name] = Object{UID: o.UID, Counter: n}
		}
	}
	w.History.Listed(w.Cluster, found)
}

func (w Watch) counter(o *corev1.ConfigMap) (int64, bool) {
	n, err := strconv.ParseInt(o.Data[counterField], 10, 64)
	if err != nil {
		w.History.Unreadable(Key{w.Cluster, o.Name}, o.Data[counterField])
	}
	return n, err == nil
}

// follow handles events until the API server no longer serves the version.
func (w Watch) follow(ctx context.Context, objects typedcorev1.ConfigMapInterface, version string) {
	from := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
		o.LabelSelector = Label
		return objects.Watch(ctx, o)
	}}
	events, err := toolswatch.NewRetryWatcherWithContext(ctx, version, from)
	if err != nil {
		panic(fmt.Sprintf("a list has resource version %q: %v", version, err))
	}
	defer events.Stop()
	for e := range events.ResultChan() {
		o, ok := e.Object.(*corev1.ConfigMap)
		if !ok {
			return // an error: the version is too old
		}
		switch e.Type {
		case apiwatch.Added, apiwatch.Modified:
			if n, ok := w.counter(o); ok {
				w.History.RecordObject(Key{w.Cluster, o.Name}, o.UID, n)
			}
		case apiwatch.Deleted:
			w.History.RecordDeletion(Key{w.Cluster, o.Name})
		}
	}
}
