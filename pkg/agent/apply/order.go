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
		{"ClusterRole", "Role"},
		{"ClusterRoleBinding", "RoleBinding"}, // the server compares the rights of the writer with the bound role
		{"NetworkPolicy", "ResourceQuota", "LimitRange", "PodDisruptionBudget", "ServiceAccount"},
		{"Secret", "ConfigMap", "PersistentVolumeClaim"},
		{"Service"},
		{"DaemonSet", "Pod", "ReplicationController", "ReplicaSet", "Deployment", "HorizontalPodAutoscaler", "StatefulSet", "Job", "CronJob"},
		{"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy"},
		{"ValidatingAdmissionPolicyBinding"}, // the server reads the policy for the rights to its parameters
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

// Independent reports whether two manifests may be applied concurrently. That is so within a rank. Of kinds
// without a rank it is known only that objects of one kind do not depend on each other.
func Independent(a, b Manifest) bool {
	r := rank(a)
	return r == rank(b) && (r < rankOther || a.Meta.Group == b.Meta.Group && a.Meta.Kind == b.Meta.Kind)
}
