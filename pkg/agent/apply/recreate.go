package apply

import (
	"slices"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// recreated has the kinds whose objects may be deleted: the manifest restores everything. For all other kinds
// no hint advises a deletion. A volume or its claim holds data. A StatefulSet can delete its claims, a
// Namespace its content, a definition all its objects, a Node its Pods. The meaning of a custom resource is
// unknown.
var recreated = map[string][]string{
	"":                             {"ConfigMap", "Endpoints", "LimitRange", "PodTemplate", "ReplicationController", "ResourceQuota", "Secret", "Service"},
	"admissionregistration.k8s.io": {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration"},
	"apiregistration.k8s.io":       {"APIService"},
	"apps":                         {"DaemonSet", "Deployment", "ReplicaSet"},
	"autoscaling":                  {"HorizontalPodAutoscaler"},
	"batch":                        {"CronJob", "Job"},
	"coordination.k8s.io":          {"Lease"},
	"discovery.k8s.io":             {"EndpointSlice"},
	"flowcontrol.apiserver.k8s.io": {"FlowSchema", "PriorityLevelConfiguration"},
	"networking.k8s.io":            {"Ingress", "IngressClass", "NetworkPolicy"},
	"node.k8s.io":                  {"RuntimeClass"},
	"policy":                       {"PodDisruptionBudget"},
	"rbac.authorization.k8s.io":    {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"},
	"scheduling.k8s.io":            {"PriorityClass"},
	"storage.k8s.io":               {"CSIDriver", "StorageClass"},
}

// Hints for rejections.
const (
	hintCorrect    = "correct the manifest"
	hintDefinition = ", or the definition of the kind on the cluster: it is tried again when that changes"
	hintRecreate   = "delete the object so that it is created again"
	hintOtherName  = " or give it another name"
	hintStrategies = "or use update strategy CreateOnly or ServerSideApply"
	hintNamespace  = "; deliver the namespace with a work, or make it on the cluster: it is tried again then"
	hintEnds       = "; it is applied when the namespace is gone and created again: the conditions of the namespace show what keeps it"
	hintKindEnds   = "; it is applied when the definition of its kind is gone and created again: the conditions of the CustomResourceDefinition show what keeps it"
	hintRefused    = "; correct the manifest, or change what rejects it on the cluster"
	hintKeep       = "; do not delete the object, nor rename it in this work, which deletes it too: its data would be lost. To replace it, bring one of another name with another work first"
)

// hint returns the next step after a rejection.
func (r *Result) hint() string {
	switch {
	case kubeclient.IsMisfit(r.Err):
		return hintCorrect + hintDefinition
	case r.Live == nil:
		return hintCorrect
	}
	insists := r.insists()
	strategies := r.Config.Strategy.Type == workv1.UpdateStrategyTypeUpdate && !insists
	kind := r.Live.GroupVersionKind()
	switch recreate := slices.Contains(recreated[kind.Group], kind.Kind); {
	case !recreate && strategies:
		return hintCorrect + ", " + hintStrategies + hintKeep
	case !recreate:
		return hintCorrect + hintKeep
	case insists:
		return hintCorrect + hintOtherName + ", or " + hintRecreate
	case strategies:
		return hintCorrect + ", or " + hintRecreate + ", " + hintStrategies
	}
	return hintCorrect + ", or " + hintRecreate
}
