package apply

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// mergeClusterRole leaves the rules of an aggregated ClusterRole to the control plane.
func mergeClusterRole(next, want *unstructured.Unstructured, _ bool) bool {
	changed := put(next, want, "aggregationRule")
	if tidy(want.Object["aggregationRule"]) == nil {
		changed = put(next, want, "rules") || changed
	}
	return changed
}

// prepareBinding sets the API groups that the server would set.
func prepareBinding(want *unstructured.Unstructured) error {
	fill := func(m map[string]any) {
		if g, _ := m["apiGroup"].(string); g == "" {
			m["apiGroup"] = rbacv1.GroupName
		}
	}
	if ref, ok := want.Object["roleRef"].(map[string]any); ok {
		fill(ref)
	}
	subjects, _ := want.Object["subjects"].([]any)
	for _, s := range subjects {
		m, ok := s.(map[string]any)
		if !ok {
			return errMalformed
		}
		if m["kind"] == "User" || m["kind"] == "Group" {
			fill(m)
		}
	}
	return nil
}
