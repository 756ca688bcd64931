package clustercontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	addonv1alpha1 "open-cluster-management.io/api/addon/v1alpha1"
	addonversioned "open-cluster-management.io/api/client/addon/clientset/versioned"
	clusterversioned "open-cluster-management.io/api/client/cluster/clientset/versioned"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/kubeerror"
	"github.com/hawser-io/hawser/internal/ocm"
)

// fieldManager names the writer in managedFields.
const fieldManager = "hawser-hub-source"

// page is the number of objects in one list request.
const page = 500

// resources are the resources of the kinds. Hubs of all versions serve add-ons of v1alpha1.
var resources = [...]schema.GroupVersionResource{
	addon: {Group: "addon.open-cluster-management.io", Version: "v1alpha1", Resource: "managedclusteraddons"},
	work:  {Group: "work.open-cluster-management.io", Version: "v1", Resource: "manifestworks"},
}

// hub holds the clients for reads and writes beside the informers.
type hub struct {
	kube     kubernetes.Interface
	clusters clusterversioned.Interface
	addons   addonversioned.Interface
	meta     metadata.Interface
	metrics  metrics
}

// perform executes the effects in their order. It stops at the first failed request: then everything is decided
// again.
func (h hub) perform(ctx context.Context, s clusterState, e effects) (err error) { //nolint:cyclop // one condition for each effect, in their order
	c := s.cluster
	if e.namespace {
		err = h.makeNamespace(ctx, s.name)
	}
	if err == nil && e.change != nil {
		c, err = h.patch(ctx, "patch_cluster", c, e.change.patch(c))
	}
	if err == nil && e.lease {
		err = h.makeLease(ctx, s.name)
	}
	if err == nil && e.addons != nil {
		err = h.disconnectAddons(ctx, s.name, *e.addons)
	}
	for i := 0; err == nil && i < len(e.remove); i++ {
		err = h.remove(ctx, s.name, e.remove[i])
	}
	if err == nil && len(e.conditions) > 0 {
		c, err = h.patch(ctx, "patch_status", c, map[string]any{
			"metadata": precondition(c), "status": map[string]any{"conditions": with(c.Status.Conditions, e.conditions...)},
		}, "status")
	}
	for i := 0; err == nil && i < len(e.decisions); i++ {
		err = h.decideCSR(ctx, e.decisions[i])
	}
	if err == nil && e.release {
		err = h.release(ctx, c)
	}
	return err
}

// patch returns the change as a merge patch.
func (n *change) patch(c *clusterv1.ManagedCluster) map[string]any {
	m, spec := precondition(c), map[string]any{}
	if n.finalizers != nil {
		m["finalizers"] = n.finalizers
	}
	if n.taints != nil {
		spec["taints"] = n.taints
	}
	annotations := map[string]any{}
	if n.claim != "" {
		annotations[KeyAnnotation] = n.claim
	}
	if n.member {
		annotations[MemberAnnotation] = "true"
	}
	m["annotations"] = annotations
	if n.accept {
		spec["hubAcceptsClient"] = true
	}
	return map[string]any{"metadata": m, "spec": spec}
}

// precondition makes a patch fail with a conflict if the object has changed, or is another object of the same
// name.
func precondition(o metav1.Object) map[string]any {
	return map[string]any{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion()}
}

func (h hub) patch(ctx context.Context, operation string, c *clusterv1.ManagedCluster, patch map[string]any, subresources ...string) (*clusterv1.ManagedCluster, error) {
	b, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encode patch of ManagedCluster %s: %w", c.Name, err)
	}
	n, err := h.clusters.ClusterV1().ManagedClusters().Patch(ctx, c.Name, types.MergePatchType, b, metav1.PatchOptions{FieldManager: fieldManager}, subresources...)
	return n, h.metrics.did(operation, err)
}

// cluster reads a cluster from the hub itself, nil if it does not exist. The role has list, and no get.
func (h hub) cluster(ctx context.Context, name string) (*clusterv1.ManagedCluster, error) {
	list, err := h.clusters.ClusterV1().ManagedClusters().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if h.metrics.did("get_cluster", err) != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// with returns a copy of conditions with the given ones set.
func with(conditions []metav1.Condition, set ...metav1.Condition) []metav1.Condition {
	all := append([]metav1.Condition{}, conditions...)
	for _, c := range set {
		meta.SetStatusCondition(&all, c)
	}
	return all
}

func (h hub) namespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	n, err := h.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, h.metrics.did("get_namespace", nil)
	}
	return n, h.metrics.did("get_namespace", err)
}

// makeNamespace creates the namespace of a cluster, or adds the label of the cluster to the existing one.
func (h hub) makeNamespace(ctx context.Context, name string) error {
	labels := map[string]string{clusterv1.ClusterNameLabelKey: name}
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	_, err := h.kube.CoreV1().Namespaces().Create(ctx, n, metav1.CreateOptions{FieldManager: fieldManager})
	if !apierrors.IsAlreadyExists(err) {
		return h.metrics.did("create_namespace", err)
	}
	if n, err = h.namespace(ctx, name); err != nil || n == nil || n.Labels[clusterv1.ClusterNameLabelKey] == name {
		return err
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID, "labels": labels}})
	if err != nil {
		return fmt.Errorf("encode patch of Namespace %s: %w", name, err)
	}
	_, err = h.kube.CoreV1().Namespaces().Patch(ctx, name, types.MergePatchType, b, metav1.PatchOptions{FieldManager: fieldManager})
	return h.metrics.did("patch_namespace", err)
}

// makeLease creates the Lease that the agent renews: the agent has no right to create it.
func (h hub) makeLease(ctx context.Context, cluster string) error {
	holder := ocm.LeaseName
	_, err := h.kube.CoordinationV1().Leases(cluster).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: ocm.LeaseName, Namespace: cluster, Labels: map[string]string{clusterv1.ClusterNameLabelKey: cluster}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}, metav1.CreateOptions{FieldManager: fieldManager})
	if apierrors.IsAlreadyExists(err) {
		err = nil // the informer lags
	}
	return h.metrics.did("create_lease", err)
}

// disconnectAddons sets Available on the add-ons to the condition of their cluster, Unknown. A hub need not
// serve add-ons.
func (h hub) disconnectAddons(ctx context.Context, cluster string, why metav1.Condition) error {
	why.Type = addonv1alpha1.ManagedClusterAddOnConditionAvailable
	client := h.addons.AddonV1alpha1().ManagedClusterAddOns(cluster)
	list, err := client.List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return h.metrics.did("list_addons", nil)
	}
	if h.metrics.did("list_addons", err) != nil {
		return err
	}
	for i := range list.Items {
		a := &list.Items[i]
		if c := meta.FindStatusCondition(a.Status.Conditions, why.Type); c != nil && c.Status == why.Status && c.Reason == why.Reason {
			continue
		}
		b, err := json.Marshal(map[string]any{"metadata": precondition(a), "status": map[string]any{"conditions": with(a.Status.Conditions, why)}})
		if err != nil {
			return fmt.Errorf("encode patch of ManagedClusterAddOn %s/%s: %w", cluster, a.Name, err)
		}
		_, err = client.Patch(ctx, a.Name, types.MergePatchType, b, metav1.PatchOptions{FieldManager: fieldManager}, "status")
		if h.metrics.did("patch_addon", err) != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// remaining reads the objects that a cluster still has. Works are read only when no add-on is left.
func (h hub) remaining(ctx context.Context, cluster string) (r remaining, err error) {
	if r.addons, err = h.list(ctx, cluster, addon); err != nil || len(r.addons) > 0 {
		return r, err
	}
	r.works, err = h.list(ctx, cluster, work)
	return r, err
}

func (h hub) list(ctx context.Context, cluster string, k kind) (all []object, err error) {
	for o := (metav1.ListOptions{Limit: page}); ; {
		list, err := h.meta.Resource(resources[k]).Namespace(cluster).List(ctx, o)
		if apierrors.IsNotFound(err) {
			return nil, h.metrics.did("list_remaining", nil) // the hub does not serve this kind
		}
		if h.metrics.did("list_remaining", err) != nil {
			return nil, err
		}
		for i := range list.Items {
			all = append(all, objectOf(k, &list.Items[i]))
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

func (h hub) remove(ctx context.Context, cluster string, o object) error {
	err := h.meta.Resource(resources[o.kind]).Namespace(cluster).Delete(ctx, o.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.uid}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // the object is deleted, or another one has its name
		err = nil
	}
	return h.metrics.did("delete_remaining", err)
}

func (h hub) release(ctx context.Context, c *clusterv1.ManagedCluster) error {
	gone := kubeerror.IgnoreNotFound(h.kube.CoordinationV1().Leases(c.Name).Delete(ctx, ocm.LeaseName, metav1.DeleteOptions{}))
	if err := h.metrics.did("delete_lease", gone); err != nil {
		return err
	}
	m := precondition(c)
	m["finalizers"] = slices.DeleteFunc(append([]string{}, c.Finalizers...), func(f string) bool {
		return f == clusterv1.ManagedClusterFinalizer || f == resourceFinalizer
	})
	_, err := h.patch(ctx, "remove_finalizer", c, map[string]any{"metadata": m})
	return err
}

func (h hub) decideCSR(ctx context.Context, v csrDecision) error {
	csrs := h.kube.CertificatesV1().CertificateSigningRequests()
	if v.action == drop {
		err := csrs.Delete(ctx, v.csr.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.csr.UID}})
		return h.metrics.did("delete_csr", kubeerror.IgnoreNotFound(err))
	}
	t := certificatesv1.CertificateApproved
	if v.action == deny {
		t = certificatesv1.CertificateDenied
	}
	csr := conditioned(v.csr, t, v.reason, v.message)
	_, err := csrs.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{FieldManager: fieldManager})
	return h.metrics.did("approve_csr", err)
}

// conditioned returns a copy of a CSR with one more condition.
func conditioned(csr *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType, reason, message string) *certificatesv1.CertificateSigningRequest {
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.Now(),
	})
	return csr
}

// writeStatus writes the status of a CSR.
func (h hub) writeStatus(ctx context.Context, operation string, csr *certificatesv1.CertificateSigningRequest) error {
	_, err := h.kube.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, csr, metav1.UpdateOptions{FieldManager: fieldManager})
	return h.metrics.did(operation, err)
}
