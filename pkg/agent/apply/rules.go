package apply

import (
	"errors"
	"maps"
	"reflect"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// rule defines Update for a kind that is not replaced as a whole.
type rule struct {
	// prepare completes the manifest before anything is compared or created. It returns errMalformed if the
	// manifest does not have the shape of the kind; the server then reports the error.
	prepare func(want *unstructured.Unstructured) error
	// carry copies into the manifest the fields of the live object that have priority; nil: there are none.
	carry func(want, live *unstructured.Unstructured)
	// bare: labels, annotations and ownership of an existing object stay, unless the work releases it.
	bare bool
	// merge changes next, the live object with merged metadata, into the wanted state, and reports whether that is
	// a change. metadata: the metadata already differed. nil: the content is never changed.
	merge func(next, want *unstructured.Unstructured, metadata bool) bool
	// recreate reports whether the change requires a new object; nil: never.
	recreate func(live, want *unstructured.Unstructured) bool
	// recreateOn reports whether this refusal of an update requires a new object; nil: never.
	recreateOn func(error) bool
}

var errMalformed = errors.New("the manifest does not have the shape of its kind")

// rules has the kinds with a rule of their own. Pods, ServiceAccounts and Namespaces are created from the
// manifest. Afterwards only their metadata is updated: other corrections would cause unwanted rollouts.
var rules = func() map[schema.GroupVersionKind]rule {
	all := map[schema.GroupVersionKind]rule{}
	for gv, kinds := range map[schema.GroupVersion]map[string]rule{
		corev1.SchemeGroupVersion: {
			"Namespace": {}, "Pod": {}, "ServiceAccount": {},
			"ConfigMap": {prepare: prepareConfigMap, merge: mergeConfigMap},
			"Secret":    {prepare: prepareSecret, merge: mergeSecret, recreate: otherSecretType, recreateOn: isImmutableField},
			"Service":   {prepare: prepareService, merge: mergeService},
		},
		rbacv1.SchemeGroupVersion: {
			"Role": {merge: mergeFields("rules")}, "ClusterRole": {merge: mergeClusterRole},
			"RoleBinding":        {prepare: prepareBinding, merge: mergeFields("subjects", "roleRef")},
			"ClusterRoleBinding": {prepare: prepareBinding, merge: mergeFields("subjects", "roleRef")},
		},
		networkingv1.SchemeGroupVersion: {"NetworkPolicy": networkPolicies.rule()},
		policyv1.SchemeGroupVersion:     {"PodDisruptionBudget": disruptionBudgets.rule()},
		admissionv1.SchemeGroupVersion: {
			"ValidatingAdmissionPolicy": policies.rule(), "ValidatingAdmissionPolicyBinding": policyBindings.rule(),
			"ValidatingWebhookConfiguration": webhookRule(validatingWebhooks), "MutatingWebhookConfiguration": webhookRule(mutatingWebhooks),
		},
		// The fields are those of v1.
		admissionv1beta1.SchemeGroupVersion: {"ValidatingAdmissionPolicy": policies.rule(), "ValidatingAdmissionPolicyBinding": policyBindings.rule()},
		apiextensionsv1.SchemeGroupVersion:  {"CustomResourceDefinition": definitions.rule()},
		storagev1.SchemeGroupVersion:        {"StorageClass": storageClassRule(), "CSIDriver": csiDriverRule()},
		snapshots:                           {"VolumeSnapshotClass": {bare: true, merge: mergeFields("driver", "deletionPolicy", "parameters")}},
		monitoring: {
			"ServiceMonitor": {merge: mergeForeign}, "PrometheusRule": {merge: mergeForeign},
			"Prometheus": {merge: mergeForeign}, "Alertmanager": {merge: mergeForeign},
		},
	} {
		for kind, r := range kinds {
			all[gv.WithKind(kind)] = r
		}
	}
	return all
}()

// API groups of other projects.
var (
	snapshots  = schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}
	monitoring = schema.GroupVersion{Group: "monitoring.coreos.com", Version: "v1"}
)

// put copies a top-level field of the manifest, including its absence, if it differs.
func put(next, want *unstructured.Unstructured, field string) bool {
	if reflect.DeepEqual(tidy(next.Object[field]), tidy(want.Object[field])) {
		return false
	}
	replace(next, want, field)
	return true
}

// replace copies a top-level field of the manifest, including its absence.
func replace(next, want *unstructured.Unstructured, field string) {
	if v, has := want.Object[field]; has && v != nil {
		next.Object[field] = runtime.DeepCopyJSONValue(v)
	} else {
		delete(next.Object, field)
	}
}

func mergeFields(fields ...string) func(next, want *unstructured.Unstructured, _ bool) bool {
	return func(next, want *unstructured.Unstructured, _ bool) bool {
		changed := false
		for _, f := range fields {
			changed = put(next, want, f) || changed
		}
		return changed
	}
}

// mergeForeign replaces the spec of kinds whose API types are unknown here: an empty value may differ from an
// absent one.
func mergeForeign(next, want *unstructured.Unstructured, _ bool) bool {
	if equality.Semantic.DeepEqual(next.Object["spec"], want.Object["spec"]) {
		return false
	}
	replace(next, want, "spec")
	return true
}

// tidy removes values that mean the same as absence: null, empty text, empty lists and empty maps.
func tidy(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := map[string]any{}
		for k, e := range v {
			if e = tidy(e); e != nil && e != "" {
				m[k] = e
			}
		}
		if len(m) > 0 {
			return m
		}
		return nil
	case []any:
		if len(v) == 0 {
			return nil
		}
		l := make([]any, len(v))
		for i, e := range v {
			if l[i] = tidy(e); l[i] == nil {
				l[i] = e
			}
		}
		return l
	}
	return v
}

// differs compares everything except metadata and status, for kinds without a rule.
func differs(want, live *unstructured.Unstructured) bool {
	return !equality.Semantic.DeepEqual(withoutMetadata(want), withoutMetadata(live))
}

func withoutMetadata(o *unstructured.Unstructured) map[string]any {
	c := maps.Clone(o.Object)
	delete(c, "metadata")
	delete(c, "status")
	return c
}
