package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// The resources of a hub's API that the registration verbs use.
var (
	clusterKind     = schema.GroupVersionResource{Group: clusterv1.GroupName, Version: "v1", Resource: "managedclusters"}
	signingRequests = certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
)

// hubAPI is the API of a hub, with the rights of the user.
type hubAPI struct{ dynamic.Interface }

// hub returns the API of the hub in the context of the kubeconfig.
func (c *connection) hub() (hubAPI, error) {
	cfg, err := c.config(c.context)
	if err != nil {
		return hubAPI{}, err
	}
	cfg.QPS, cfg.Burst = moveQPS, moveBurst
	api, err := dynamic.NewForConfig(cfg)
	return hubAPI{api}, err
}

// onClusters returns the run function of a command that calls f for each given cluster in turn.
func (c *connection) onClusters(f func(ctx context.Context, hub hubAPI, name string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, clusters []string) error {
		if err := c.check(cmd); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		hub, err := c.hub()
		if err != nil {
			return err
		}
		var failed []error
		for _, name := range clusters {
			if err := f(ctx, hub, name); err != nil {
				failed = append(failed, err)
			}
		}
		if len(failed) == 1 {
			return failed[0]
		}
		return errors.Join(failed...)
	}
}

// cluster returns a ManagedCluster, or nil if the hub has none of that name.
func (h hubAPI) cluster(ctx context.Context, name string) (*clusterv1.ManagedCluster, error) {
	o, err := h.Resource(clusterKind).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && !unnamed(err) {
		return nil, nil
	}
	if err != nil {
		return nil, notServed(err)
	}
	return typed[clusterv1.ManagedCluster](o)
}

// clusters returns all ManagedClusters.
func (h hubAPI) clusters(ctx context.Context) ([]clusterv1.ManagedCluster, error) {
	l, err := h.Resource(clusterKind).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, notServed(err)
	}
	return typedAll[clusterv1.ManagedCluster](l)
}

// requests returns the CertificateSigningRequests of a cluster, including those of its add-ons.
func (h hubAPI) requests(ctx context.Context, cluster string) ([]certificatesv1.CertificateSigningRequest, error) {
	l, err := h.Resource(signingRequests).List(ctx, metav1.ListOptions{LabelSelector: clusterv1.ClusterNameLabelKey + "=" + cluster})
	if err != nil {
		return nil, err
	}
	return typedAll[certificatesv1.CertificateSigningRequest](l)
}

// setAccepted sets on the hub whether a cluster is accepted. For one that is not, hub-source no longer approves
// agents automatically.
func (h hubAPI) setAccepted(ctx context.Context, name string, accepted bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"hubAcceptsClient":true}}`)
	if !accepted {
		patch = fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}},"spec":{"hubAcceptsClient":false}}`, clustercontroller.KeyAnnotation, clustercontroller.NoKey)
	}
	_, err := h.Resource(clusterKind).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// decide approves or denies an undecided request. undecided is false if the request had been decided before.
func (h hubAPI) decide(ctx context.Context, name string, as certificatesv1.RequestConditionType, reason, message string) (undecided bool, err error) {
	for {
		o, err := h.Resource(signingRequests).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		r, err := typed[certificatesv1.CertificateSigningRequest](o)
		if err != nil {
			return false, err
		}
		if !pending(r) {
			return false, nil
		}
		now := metav1.Now()
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: as, Status: "True", Reason: reason, Message: message, LastUpdateTime: now, LastTransitionTime: now,
		})
		changed, err := untyped(r, o.GroupVersionKind())
		if err != nil {
			return false, err
		}
		_, err = h.Resource(signingRequests).Update(ctx, changed, metav1.UpdateOptions{}, "approval")
		if apierrors.IsConflict(err) && ctx.Err() == nil {
			continue // a concurrent decision or label: read again
		}
		return err == nil, err
	}
}

// discard deletes a request.
func (h hubAPI) discard(ctx context.Context, r *certificatesv1.CertificateSigningRequest) error {
	only := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}
	if err := h.Resource(signingRequests).Delete(ctx, r.Name, only); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("certificate request %s: %w", r.Name, err)
	}
	return nil
}

// unnamed reports whether an API server lacks the kind, not the object. Its error then has no details, and
// client-go fills in the requested ones.
func unnamed(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return true
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Type == metav1.CauseTypeUnexpectedServerResponse })
}

// notServed adds the remedy if a hub does not serve ManagedClusters.
func notServed(err error) error {
	if apierrors.IsNotFound(err) && unnamed(err) {
		return hint(errors.New("this hub has no ManagedClusters: clusters can not join it yet"), "run hawser install hub --registration, and is --context the hub's?")
	}
	return err
}

// typed converts an object to its Go type.
func typed[T any](o *unstructured.Unstructured) (*T, error) {
	t := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, t); err != nil {
		return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return t, nil
}

func typedAll[T any](l *unstructured.UnstructuredList) ([]T, error) {
	all := make([]T, 0, len(l.Items))
	for i := range l.Items {
		t, err := typed[T](&l.Items[i])
		if err != nil {
			return nil, err
		}
		all = append(all, *t)
	}
	return all, nil
}

func untyped(t any, kind schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(t)
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{Object: m}
	o.SetGroupVersionKind(kind)
	return o, nil
}

// lookPause is the poll interval of await.
const lookPause = 500 * time.Millisecond

// await polls look until nothing is missing, and prints each missing item once.
func await(ctx context.Context, env Env, of string, look func(ctx context.Context) (missing string, err error)) error {
	output := ""
	for {
		missing, err := look(ctx)
		switch {
		case err != nil && !timeIsOver(ctx):
			return err
		case err == nil && missing == "":
			return nil
		case err == nil && missing != output:
			output = missing
			if err := printf(env.Stdout, "waiting for %s: %s\n", of, lines(missing)); err != nil {
				return err
			}
		}
		if !taskgroup.Sleep(ctx, lookPause) {
			return fmt.Errorf("waited for %s: %s", of, output)
		}
	}
}

// timeIsOver reports whether the deadline has passed. A client-side rate limiter fails a request by the clock,
// shortly before the context ends.
func timeIsOver(ctx context.Context) bool {
	end, bounded := ctx.Deadline()
	return ctx.Err() != nil || bounded && !time.Now().Before(end)
}

// names returns the sorted names of a list.
func names[T any](of []T, name func(T) string) []string {
	all := make([]string, len(of))
	for i := range of {
		all[i] = name(of[i])
	}
	slices.Sort(all)
	return all
}
