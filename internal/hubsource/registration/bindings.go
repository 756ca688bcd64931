package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// tokensRole is the ClusterRole that lets hub-source ask for tokens, and the name of the
// RoleBindings by which it has that right in the namespaces of clusters.
const tokensRole = "hawser-hub-source-tokens"

var roleBindings = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}

const (
	// bindingWorks is how long the hub may take until a new binding counts, bindingAgain how often
	// that is tried.
	bindingWorks = 5 * time.Second
	bindingAgain = 200 * time.Millisecond
)

// bindings are where hub-source may ask for tokens: in the namespaces of accepted clusters that
// asked for one. A right to ask for tokens everywhere would be one to be anybody.
type bindings struct {
	hub      Hub
	log      *slog.Logger
	accepted func(cluster string) bool

	mu    sync.Mutex
	bound map[string]bool // at most the accepted clusters
	// ended are clusters whose binding is to go; toEnd rings when there are some.
	ended map[string]bool
	toEnd taskgroup.Bell
}

func newBindings(h Hub, log *slog.Logger, accepted func(cluster string) bool) *bindings {
	return &bindings{hub: h, log: log, accepted: accepted, bound: map[string]bool{}, ended: map[string]bool{}, toEnd: taskgroup.NewBell()}
}

// do makes a call for which hub-source needs the right to ask for tokens in the namespace.
func (b *bindings) do(ctx context.Context, c call) (*unstructured.Unstructured, error) {
	fresh, err := b.bind(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	o, err := b.hub.do(ctx, c)
	if !fresh && lacksRight(err) {
		// t1 we bind and lead no more, t2 another replica takes the right back, t3 we lead again:
		// what we know of the binding is over.
		b.forget(c.namespace)
		var failed error
		if fresh, failed = b.bind(ctx, c.namespace); failed != nil {
			return nil, failed
		}
	}
	for began := time.Now(); fresh && lacksRight(err) && time.Since(began) <= bindingWorks; {
		// t1 the binding is created, t2 we ask, t3 the hub's authorizer sees the binding:
		// therefore it is tried again.
		if !taskgroup.Sleep(ctx, bindingAgain) {
			return nil, err
		}
		o, err = b.hub.do(ctx, c)
	}
	return o, err
}

// lacksRight reports whether the hub refused hub-source a call.
func lacksRight(err error) bool { return apierrors.IsForbidden(err) && !errors.Is(err, errUnlabelled) }

// bind gives hub-source the right in a namespace. fresh: it did not have it before.
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
		b.end(namespace) // t1 it asks, t2 acceptance is withdrawn, t3 the binding is made
	}
	return err == nil, nil
}

func (b *bindings) forget(namespace string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.bound, namespace)
}

// subject is hub-source as a RoleBinding names it.
func (b *bindings) subject(ctx context.Context) (map[string]any, error) {
	r, err := b.hub.Self.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask the hub who we are: %w", err)
	}
	user := r.Status.UserInfo.Username
	if account, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		if namespace, name, ok := strings.Cut(account, ":"); ok {
			return map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": name}, nil
		}
	}
	return map[string]any{"kind": "User", "apiGroup": roleBindings.Group, "name": user}, nil
}

// end takes the right back, for a cluster that is not accepted any more.
func (b *bindings) end(cluster string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.bound, cluster)
	b.ended[cluster] = true
	b.toEnd.Ring()
}

// Run removes bindings until ctx ends, once it is known which clusters are accepted: at first what
// has no reason any more, for acceptance also ends while nobody leads.
func (b *bindings) Run(ctx context.Context, known <-chan struct{}) error {
	for listed, again := false, time.Duration(0); ; {
		var timer <-chan time.Time
		if again > 0 {
			timer = time.After(again)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-known:
			known = nil
		case <-b.toEnd:
		case <-timer:
		}
		if known != nil {
			continue
		}
		again = 0
		if !listed {
			err := b.list(ctx)
			if listed = err == nil; !listed {
				again = lookAgain
				b.log.WarnContext(ctx, "which rights to ask for tokens there are on the hub cannot be read (deploy/hub-source-registration/rbac.yaml has the role), those of clusters that were denied while nobody led stay for now", "err", err, "retry_in", again)
			}
		}
		for _, cluster := range b.toRemove() {
			if err := b.remove(ctx, cluster); err != nil {
				again = lookAgain
				b.log.WarnContext(ctx, "the right to ask for tokens of a cluster that is not accepted any more stays for now", "cluster", cluster, "err", err, "retry_in", again)
			}
		}
	}
}

// list has those end that are on the hub although their clusters are not accepted.
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

// toRemove are the clusters whose binding is to go. One that was accepted again keeps it.
func (b *bindings) toRemove() (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.ended {
		if b.accepted(c) {
			delete(b.ended, c)
			continue
		}
		all = append(all, c)
	}
	return all
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
