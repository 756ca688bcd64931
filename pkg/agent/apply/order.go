package apply

import (
	"cmp"
	"slices"
)

const (
	rankOther      = 1000
	rankUnparsable = 1001
)

// ranks orders kinds, independent of their group, so that dependencies come first.
var ranks = func() map[string]int {
	m := map[string]int{}
	for rank, kinds := range [][]string{
		{"PriorityClass", "Namespace", "CustomResourceDefinition", "StorageClass", "PersistentVolume", "PodSecurityPolicy"},
		{"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"},
		{"NetworkPolicy", "ResourceQuota", "LimitRange", "PodDisruptionBudget", "ServiceAccount"},
		{"Secret", "ConfigMap", "PersistentVolumeClaim"},
		{"Service"},
		{"DaemonSet", "Pod", "ReplicationController", "ReplicaSet", "Deployment", "HorizontalPodAutoscaler", "StatefulSet", "Job", "CronJob"},
		{"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
	} {
		for _, k := range kinds {
			m[k] = rank
		}
	}
	return m
}()

func rank(m Manifest) int {
	if m.Object == nil {
		return rankUnparsable
	}
	if r, ok := ranks[m.Meta.Kind]; ok {
		return r
	}
	return rankOther
}

// Order returns the indexes of the manifests in the order of application. Within a rank the order of the spec
// decides.
func Order(manifests []Manifest) []int {
	order := make([]int, len(manifests))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rank(manifests[a]), rank(manifests[b])) })
	return order
}
