package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// Cluster is a [Reader] of a Kubernetes cluster.
type Cluster struct {
	Kube    kubernetes.Interface
	Objects dynamic.Interface
}

const (
	// nodesPerPage is the page size of node lists. It bounds the memory for a large cluster.
	nodesPerPage = 250
	// maxClaims bounds the claims with non-reserved names that are sent to the hub.
	maxClaims = 20
	// spokeOnly is the label of claims that are not sent to the hub.
	spokeOnly = "open-cluster-management.io/spoke-only"

	claimID      = "id.k8s.io"
	claimVersion = "kubeversion.open-cluster-management.io"
)

// reservedClaims have the same meaning in all clusters; they come first.
var reservedClaims = []string{claimID, claimVersion, "platform.open-cluster-management.io", "product.open-cluster-management.io"}

var claims = schema.GroupVersionResource{Group: "cluster.open-cluster-management.io", Version: "v1alpha1", Resource: "clusterclaims"}

// Healthy implements [Reader]. A cluster that forbids the request counts as healthy.
func (c *Cluster) Healthy(ctx context.Context) error {
	err := c.Kube.Discovery().RESTClient().Get().AbsPath("/livez").Do(ctx).Error()
	if err == nil || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("the API server of the cluster is not well: %w", err)
}

// Facts implements [Reader].
func (c *Cluster) Facts(ctx context.Context) (Facts, error) {
	f := Facts{Healthy: true}
	var errs []error
	if v, err := c.Kube.Discovery().ServerVersion(); err == nil {
		f.Version = v.GitVersion
	} else {
		errs = append(errs, fmt.Errorf("read the version: %w", err))
	}
	errs = append(errs, c.nodes(ctx, &f))
	var err error
	if f.Claims, err = c.claims(ctx, f.Version); err != nil {
		errs = append(errs, err)
	}
	if f.Version == "" {
		f.Claims = nil // the claims contain the version, which is unknown
	}
	return f, errors.Join(errs...)
}

// nodes sums up the capacity of the nodes.
func (c *Cluster) nodes(ctx context.Context, f *Facts) error {
	capacity, allocatable := clusterv1.ResourceList{}, clusterv1.ResourceList{}
	page := metav1.ListOptions{Limit: nodesPerPage}
	for {
		l, err := c.Kube.CoreV1().Nodes().List(ctx, page)
		if err != nil {
			return fmt.Errorf("list the nodes: %w", err)
		}
		for i := range l.Items {
			n := &l.Items[i]
			add(capacity, n.Status.Capacity)
			if !n.Spec.Unschedulable {
				add(allocatable, n.Status.Allocatable)
			}
		}
		if page.Continue = l.Continue; page.Continue == "" {
			f.Capacity, f.Allocatable = capacity, allocatable
			return nil
		}
	}
}

func add(to clusterv1.ResourceList, of corev1.ResourceList) {
	for name, q := range of {
		sum := to[clusterv1.ResourceName(name)]
		sum.Add(q)
		to[clusterv1.ResourceName(name)] = sum
	}
}

// claims returns the ClusterClaims and the claims that are known without them. After an error it returns none:
// the hub would regard missing claims as deleted, and move works.
func (c *Cluster) claims(ctx context.Context, version string) ([]clusterv1.ManagedClusterClaim, error) {
	ns, err := c.Kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the namespace %s: %w", metav1.NamespaceSystem, err)
	}
	known := map[string]string{claimID: string(ns.UID), claimVersion: version}
	l, err := c.Objects.Resource(claims).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err): // the kind does not exist
		l = &unstructured.UnstructuredList{}
	case err != nil:
		return nil, fmt.Errorf("list the ClusterClaims: %w", err)
	}
	for i := range l.Items {
		o := &l.Items[i]
		if _, private := o.GetLabels()[spokeOnly]; private {
			continue
		}
		if value, ok, err := unstructured.NestedString(o.Object, "spec", "value"); ok && err == nil {
			known[o.GetName()] = value
		}
	}
	return sortedClaims(known), nil
}

// sortedClaims returns the reserved claims, then at most maxClaims of the others.
func sortedClaims(known map[string]string) (all []clusterv1.ManagedClusterClaim) {
	others := 0
	for name, value := range known {
		all = append(all, clusterv1.ManagedClusterClaim{Name: name, Value: value})
		if !slices.Contains(reservedClaims, name) {
			others++
		}
	}
	rank := func(name string) int {
		if i := slices.Index(reservedClaims, name); i >= 0 {
			return i
		}
		return len(reservedClaims)
	}
	slices.SortFunc(all, func(a, b clusterv1.ManagedClusterClaim) int {
		return cmp.Or(rank(a.Name)-rank(b.Name), strings.Compare(a.Name, b.Name))
	})
	return all[:len(all)-max(0, others-maxClaims)]
}
