package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

// tokensRole is the ClusterRole that allows hub-source to request tokens. It is also the name of the
// RoleBindings that grant it in the namespaces of clusters.
const tokensRole = "hawser-hub-source-tokens"

var roleBindings = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}

const (
	// bindingWorks is how long the hub may take until a new binding is effective. bindingAgain is the pause between
	// two attempts.
	bindingWorks = 5 * time.Second
	bindingAgain = 200 * time.Millisecond
)

// bindings are the namespaces in which hub-source may request tokens: those of accepted clusters that requested
// one. With that right in all namespaces, hub-source could act as any service account.
type bindings struct {
	hub      Hub
	log      *slog.Logger
	accepted func(cluster string) bool

	mu    sync.Mutex
	bound map[string]bool // at most the accepted clusters
	// ended are the clusters whose binding is to be removed; toEnd rings when there are some.
	ended map[string]bool
	toEnd taskgroup.Bell
}

func newBindings(h Hub, log *slog.Logger, accepted func(cluster string) bool) *bindings {
	return &bindings{hub: h, log: log, accepted: accepted, bound: map[string]bool{}, ended: map[string]bool{}, toEnd: taskgroup.NewBell()}
}

// do makes a call that needs the right to request tokens in the namespace.
func (b *bindings) do(ctx context.Context, c call) (*unstructured.Unstructured, error) {
	fresh, err := b.bind(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	o, err := b.hub.do(ctx, c)
	if !fresh && lacksRight(err) {
		// Scenario:
		//   t1: this replica creates the binding and loses the lead.
		//   t2: another replica removes the binding.
		//   t3: this replica leads again.
		// Result: its knowledge of the binding is out of date and is dropped.
		b.forget(c.namespace)
		var failed error
		if fresh, failed = b.bind(ctx, c.namespace); failed != nil {
			return nil, failed
		}
	}
	for began := time.Now(); fresh && lacksRight(err) && time.Since(began) <= bindingWorks; {
		// Scenario:
		//   t1: the binding is created.
		//   t2: hub-source makes the call.
		//   t3: the authorizer of the hub sees the binding.
		// Result: the call is tried again.
		if !taskgroup.Sleep(ctx, bindingAgain) {
			return nil, err
		}
		o, err = b.hub.do(ctx, c)
	}
	return o, err
}

// lacksRight reports whether the hub refused a call because hub-source has no right to it.
func lacksRight(err error) bool { return apierrors.IsForbidden(err) && !errors.Is(err, errUnlabelled) }

// bind grants hub-source the right in a namespace. fresh: it did not have the right before.
func (b *bindings) bind(ctx context.Context, namespace string) (fresh bool, err error) {
	b.mu.Lock()
	has := b.bound[namespace]
	b.mu.Unlock()
	if has {
		return false, nil
	}
	subject, err := b.subject(ctx)
	if err != nil {
		return false, err
	}
	_, err = b.hub.do(ctx, call{verb: create, resource: roleBindings, namespace: namespace, name: tokensRole, object: map[string]any{
		"apiVersion": roleBindings.GroupVersion().String(), "kind": "RoleBinding",
		"metadata": map[string]any{"name": tokensRole, "namespace": namespace, "labels": map[string]any{"app.kubernetes.io/managed-by": fieldManager}},
		"roleRef":  map[string]any{"apiGroup": roleBindings.Group, "kind": "ClusterRole", "name": tokensRole},
		"subjects": []any{subject},
	}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return false, err
	}
	b.mu.Lock()
	b.bound[namespace] = true
	b.mu.Unlock()
	if !b.accepted(namespace) {
		b.end(namespace) // acceptance was withdrawn while the binding was created
	}
	return err == nil, nil
}

func (b *bindings) forget(namespace string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.bound, namespace)
}

// subject returns hub-source in the form that a RoleBinding uses.
func (b *bindings) subject(ctx context.Context) (map[string]any, error) {
	r, err := b.hub.Self.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("read hub-source's own user from the hub: %w", err)
	}
	user := r.Status.UserInfo.Username
	if account, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		if namespace, name, ok := strings.Cut(account, ":"); ok {
			return map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": name}, nil
		}
	}
	return map[string]any{"kind": "User", "apiGroup": roleBindings.Group, "name": user}, nil
}

// end removes the right for a cluster that is no longer accepted.
func (b *bindings) end(cluster string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.bound, cluster)
	b.ended[cluster] = true
	b.toEnd.Ring()
}

// Run removes bindings until ctx ends, as soon as the accepted clusters are known. First it removes the
// bindings of clusters whose acceptance ended while no replica led.
func (b *bindings) Run(ctx context.Context, known <-chan struct{}) error {
	listed := false
	var again time.Duration
	for on := taskgroup.Wait(ctx, known); on; on = taskgroup.WaitFor(ctx, b.toEnd, again) {
		again = idle
		if !listed {
			err := b.list(ctx)
			if listed = err == nil; !listed {
				again = lookAgain
				b.log.WarnContext(ctx, "bindings for token requests cannot be read from the hub (deploy/hub-source-registration/rbac.yaml has the role). Bindings of clusters that were denied while no replica led stay for now", "err", err, "retry_in", again)
			}
		}
		for _, cluster := range b.toRemove() {
			if err := b.remove(ctx, cluster); err != nil {
				again = lookAgain
				b.log.WarnContext(ctx, "the right to request tokens of a cluster that is not accepted any more stays for now", "cluster", cluster, "err", err, "retry_in", again)
			}
		}
	}
	return nil
}

// list marks the bindings on the hub for removal whose clusters are not accepted.
func (b *bindings) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	l, err := b.hub.Own.Resource(roleBindings).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + tokensRole})
	if err != nil {
		return err
	}
	for i := range l.Items {
		if cluster := l.Items[i].GetNamespace(); !b.accepted(cluster) {
			b.end(cluster)
		}
	}
	return nil
}

// toRemove returns the clusters whose binding is to be removed. A cluster that was accepted again keeps its
// binding.
func (b *bindings) toRemove() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.ended, func(c string, _ bool) bool { return b.accepted(c) })
	return slices.Collect(maps.Keys(b.ended))
}

func (b *bindings) remove(ctx context.Context, cluster string) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := b.hub.Own.Resource(roleBindings).Namespace(cluster).Delete(ctx, tokensRole, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ended, cluster)
	return nil
}
