package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

var (
	configMaps         = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	selfSubjectReviews = authenticationv1.SchemeGroupVersion.WithResource("selfsubjectreviews")
)

func newRotate(env Env) *cobra.Command {
	rotate := &cobra.Command{Use: "rotate", Short: "Make a cluster use a new certificate", Args: cobra.NoArgs}
	var c connection
	of := rotation{env: env}
	cmd := &cobra.Command{
		Use:   "cluster CLUSTER…",
		Short: "Invalidate the certificates of clusters, once each has a new one",
		Long: `Invalidate the certificates of clusters, once each has a new one.

The Hawser agent renews its certificate at once, with a new key, and reconnects with it.
From then on no older certificate of the cluster is valid. No event is delivered twice or
late. A klusterlet renews at its own time; until then its certificate stays valid.

If a key was stolen, do not rotate: the thief can renew first, and your agent would be
rejected. Deny the cluster (hawser reject cluster), and let it join again.`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.onClusters(of.cluster),
	}
	c.add(cmd, "the hub (default the current one)")
	cmd.Flags().BoolVar(&of.wait, "wait", false, "wait until each has connected with a new one")
	rotate.AddCommand(cmd)
	return rotate
}

// rotation holds the arguments of one command.
type rotation struct {
	env  Env
	wait bool
	from time.Time // certificates from this time on are new; zero before the first cluster
}

// cluster requests a new certificate of one cluster.
func (r *rotation) cluster(ctx context.Context, hub hubAPI, name string) error {
	c, err := hub.cluster(ctx, name)
	switch {
	case err != nil:
		return err
	case c == nil:
		return unknownCluster(ctx, hub, name)
	case !c.Spec.HubAcceptsClient || c.DeletionTimestamp != nil:
		return hint(fmt.Errorf("cluster %s is not accepted, or is being detached: it gets no certificate", name), "to accept it: hawser accept %s", name)
	}
	if r.from.IsZero() {
		if r.from, err = hub.nextSecond(ctx); err != nil {
			return err
		}
	}
	// hub-source updates the ConfigMap but does not create it.
	if err := hub.setEarliest(ctx, "", earliest.Entry{}); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, earliest.RotateAnnotation, earliest.Entry{At: r.from})
	if _, err := hub.Resource(clusterKind).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	if !r.wait {
		return printf(r.env.Stdout, "cluster %s is to renew its certificate; once it has connected with the new one, those from before %s become invalid\n", name, earliest.Entry{At: r.from})
	}
	err = await(ctx, r.env, "cluster "+name, func(ctx context.Context) (string, error) {
		e, err := hub.earliestOf(ctx, name)
		if err != nil || !e.At.Before(r.from) {
			return "", err
		}
		return "its agent has to connect with a new certificate", nil
	})
	if err != nil {
		return err
	}
	return printf(r.env.Stdout, "cluster %s has connected with a new certificate, and those from before %s are invalid\n", name, earliest.Entry{At: r.from})
}

// nextSecond waits until the next second has begun and returns it, by the clock of the hub's API. The issue
// time of a certificate has a resolution of 1 s.
//
// Scenario:
//
//	t1: a certificate is issued.
//	t2: in the same second an operator requests a new one.
//
// Result: with a limit at t2 the old certificate would count as new; with the next second it does not.
func (h hubAPI) nextSecond(ctx context.Context) (time.Time, error) {
	now, err := h.now(ctx)
	if err != nil {
		return now, err
	}
	if !taskgroup.Sleep(ctx, time.Second) {
		return now, ctx.Err()
	}
	return now.Add(time.Second), nil
}

// now returns the time by the clock of the hub's API, because the clock of this machine may be wrong.
func (h hubAPI) now(ctx context.Context) (time.Time, error) {
	review := &unstructured.Unstructured{Object: map[string]any{}}
	review.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"))
	o, err := h.Resource(selfSubjectReviews).Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time of the hub: %w", err)
	}
	at := o.GetCreationTimestamp().Time
	if at.IsZero() {
		return at, errors.New("the hub returned no time")
	}
	return at, nil
}

// earliestOf returns the hub's entry of a cluster, zero if there is none.
func (h hubAPI) earliestOf(ctx context.Context, cluster string) (e earliest.Entry, err error) {
	o, err := h.Resource(configMaps).Namespace(earliest.Namespace).Get(ctx, earliest.ConfigMap, metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return e, err
	}
	if text, has, _ := unstructured.NestedString(o.Object, "data", cluster); has {
		return earliest.Parse(text)
	}
	return e, nil
}

// setEarliest stores an entry of a cluster on the hub. With cluster "" it only creates the ConfigMap. On a hub
// without registration the namespace is missing, and nothing is stored.
func (h hubAPI) setEarliest(ctx context.Context, cluster string, e earliest.Entry) error {
	data := map[string]any{}
	if cluster != "" {
		data[cluster] = e.String()
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": earliest.ConfigMap, "namespace": earliest.Namespace}, "data": data,
	}}
	patch, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	at := h.Resource(configMaps).Namespace(earliest.Namespace)
	for {
		_, err = at.Patch(ctx, earliest.ConfigMap, types.MergePatchType, patch, metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			return err
		}
		_, err = at.Create(ctx, o, metav1.CreateOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsAlreadyExists(err):
			return err
		}
	}
}

// end invalidates all certificates of a cluster that were issued until now. until is the uid of a
// ManagedCluster; while that exists, they stay valid.
func (h hubAPI) end(ctx context.Context, cluster string, until types.UID) error {
	now, err := h.now(ctx)
	if err == nil {
		// The limit also covers certificates issued in this second.
		err = h.setEarliest(ctx, cluster, earliest.Entry{At: now.Add(time.Second), Until: string(until)})
	}
	if err != nil {
		return hint(fmt.Errorf("the certificates of cluster %s stay valid: %w", cluster, err), "run it again after this is fixed")
	}
	return nil
}
