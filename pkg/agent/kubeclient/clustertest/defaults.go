package clustertest

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// addCompleted adds the kinds with the most server defaults.
func addCompleted(add func(apiVersion, kindName, resource string, namespaced bool, more kind), fixed func(path ...string) immutable) {
	const admission = "admissionregistration.k8s.io/v1"
	add("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true, kind{hasStatus: true, defaults: networkPolicyDefaults})
	add("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true, kind{hasStatus: true})
	for _, v := range []string{admission, admission + "beta1"} {
		add(v, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false, kind{hasStatus: true, defaults: func(o *unstructured.Unstructured) {
			setMissing(within(o.Object, "spec"), "failurePolicy", "Fail")
			matchDefaults(within(o.Object, "spec", "matchConstraints"))
		}})
		add(v, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", false, kind{hasStatus: true, defaults: func(o *unstructured.Unstructured) {
			matchDefaults(within(o.Object, "spec", "matchResources"))
		}})
	}
	add(admission, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", false, kind{hasStatus: true, defaults: webhookDefaults})
	add(admission, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", false, kind{hasStatus: true, defaults: webhookDefaults})
	add("storage.k8s.io/v1", "StorageClass", "storageclasses", false, kind{
		defaults: func(o *unstructured.Unstructured) {
			setMissing(o.Object, "reclaimPolicy", "Delete")
			setMissing(o.Object, "volumeBindingMode", "Immediate")
		},
		immutable: anyOf(fixed("provisioner"), fixed("parameters"), fixed("reclaimPolicy"), fixed("volumeBindingMode")),
	})
	add("storage.k8s.io/v1", "CSIDriver", "csidrivers", false, kind{defaults: csiDriverDefaults, immutable: fixed("spec", "attachRequired")})
	add("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false, kind{hasStatus: true, defaults: definitionDefaults})
}

// immutable returns why next may not replace old; "" if it may.
type immutable = func(old, next *unstructured.Unstructured) string

func anyOf(checks ...immutable) immutable {
	return func(old, next *unstructured.Unstructured) string {
		for _, c := range checks {
			if problem := c(old, next); problem != "" {
				return problem
			}
		}
		return ""
	}
}

// within returns a nested map of m; nil if there is none.
func within(m map[string]any, path ...string) map[string]any {
	for _, p := range path {
		m, _ = m[p].(map[string]any)
	}
	return m
}

// setMissing sets a field of m if it is absent; m may be nil.
func setMissing(m map[string]any, field string, value any) {
	if m == nil || m[field] != nil {
		return
	}
	m[field] = value
}

// mapsOf returns the elements of a list that are maps.
func mapsOf(list any) []map[string]any {
	var out []map[string]any
	l, _ := list.([]any)
	for _, e := range l {
		if m, ok := e.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func networkPolicyDefaults(o *unstructured.Unstructured) {
	spec := within(o.Object, "spec")
	types := []any{"Ingress"}
	for _, direction := range []string{"ingress", "egress"} {
		for _, r := range mapsOf(spec[direction]) {
			for _, p := range mapsOf(r["ports"]) {
				setMissing(p, "protocol", "TCP")
			}
		}
	}
	if len(mapsOf(spec["egress"])) > 0 {
		types = append(types, "Egress")
	}
	setMissing(spec, "policyTypes", types)
	setMissing(spec, "podSelector", map[string]any{})
}

func matchDefaults(m map[string]any) {
	setMissing(m, "matchPolicy", "Equivalent")
	setMissing(m, "namespaceSelector", map[string]any{})
	setMissing(m, "objectSelector", map[string]any{})
	for _, r := range append(mapsOf(m["resourceRules"]), mapsOf(m["excludeResourceRules"])...) {
		setMissing(r, "scope", "*")
	}
}

func webhookDefaults(o *unstructured.Unstructured) {
	for _, w := range mapsOf(o.Object["webhooks"]) {
		setMissing(w, "failurePolicy", "Fail")
		setMissing(w, "matchPolicy", "Equivalent")
		setMissing(w, "namespaceSelector", map[string]any{})
		setMissing(w, "objectSelector", map[string]any{})
		setMissing(w, "timeoutSeconds", int64(10))
		if o.GetKind() == "MutatingWebhookConfiguration" {
			setMissing(w, "reinvocationPolicy", "Never")
		}
		setMissing(within(w, "clientConfig", "service"), "port", int64(443))
		for _, r := range mapsOf(w["rules"]) {
			setMissing(r, "scope", "*")
		}
	}
}

func csiDriverDefaults(o *unstructured.Unstructured) {
	spec := within(o.Object, "spec")
	setMissing(spec, "attachRequired", true)
	setMissing(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType")
	setMissing(spec, "volumeLifecycleModes", []any{"Persistent"})
	for _, no := range []string{"podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"} {
		setMissing(spec, no, false)
	}
}

func definitionDefaults(o *unstructured.Unstructured) {
	spec := within(o.Object, "spec")
	names := within(spec, "names")
	name, _ := names["kind"].(string)
	setMissing(names, "singular", strings.ToLower(name))
	setMissing(names, "listKind", name+"List")
	setMissing(spec, "conversion", map[string]any{"strategy": "None"})
}

func bindingDefaults(o *unstructured.Unstructured) {
	const group = "rbac.authorization.k8s.io"
	setMissing(within(o.Object, "roleRef"), "apiGroup", group)
	for _, s := range mapsOf(o.Object["subjects"]) {
		if s["kind"] != "ServiceAccount" {
			setMissing(s, "apiGroup", group)
		}
	}
}
