package conditions_test

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

// The message of a work about its first failed manifest: the reason, the object, the text with the next step,
// and the count.
func TestNext_ReportsTheReasonFirst(t *testing.T) {
	boom := errors.New("boom")
	role := workv1.ManifestResourceMeta{Ordinal: 1, Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole", Resource: "clusterroles", Name: "r"}
	unnamed := workv1.ManifestResourceMeta{Ordinal: 1}
	failed := func(m workv1.ManifestResourceMeta, text string) conditions.Manifest {
		return conditions.Manifest{Meta: m, Presence: conditions.Present, ApplyErr: errors.New(text)}
	}
	const complete, good = "Apply manifest work complete", "All resources are available"
	for name, c := range map[string]struct {
		second             conditions.Manifest
		applied, available string
	}{
		"an object without a namespace": {failed(role, "boom"), "failed: ClusterRole r: boom; 1 of 2 manifests failed", good},
		"no object at all": {
			conditions.Manifest{Meta: unnamed, Presence: conditions.Unidentified, ApplyErr: boom},
			"failed: the manifest with ordinal 1: boom; 1 of 2 manifests failed",
			"failed: the manifest with ordinal 1: boom; 1 of 2 resources have unknown status",
		},
		"another reason": {
			conditions.Manifest{Meta: configMap(1, "b"), Presence: conditions.Present, ApplyErr: &conditions.IgnoreFieldsError{Err: boom}},
			"ignoreFields: ConfigMap default/b: boom; 1 of 2 manifests failed", good,
		},
		"it cuts the agent off": {
			conditions.Manifest{Meta: configMap(1, "b"), Presence: conditions.Present, ApplyErr: &conditions.CutOffError{Err: boom}},
			"rejects the agent: ConfigMap default/b: boom; 1 of 2 manifests failed", good,
		},
		"a right is missing": {
			failed(role, `clusterroles.rbac.authorization.k8s.io "r" is forbidden: User "u" cannot get resource "clusterroles"; if it is to be allowed, make a ClusterRole`),
			`forbidden: ClusterRole r: User "u" cannot get resource "clusterroles"; if it is to be allowed, make a ClusterRole; 1 of 2 manifests failed`, good,
		},
		"a right to another object is missing": {
			failed(role, `it cannot be recorded in AppliedManifestWork k: appliedmanifestworks.work.open-cluster-management.io "k" is forbidden: no`),
			`forbidden: ClusterRole r: it cannot be recorded in AppliedManifestWork k: appliedmanifestworks.work.open-cluster-management.io "k" is forbidden: no; 1 of 2 manifests failed`, good,
		},
		"a field cannot change": {
			failed(role, `ClusterRole.rbac.authorization.k8s.io "r" is invalid: roleRef: field is immutable (this does not pass by itself: correct it)`),
			`immutable: ClusterRole r: roleRef: field is immutable (this does not pass by itself: correct it); 1 of 2 manifests failed`, good,
		},
		"a value is wrong": {
			failed(configMap(1, "b"), `ConfigMap "b" is invalid: data: Too long (this does not pass by itself: correct it)`),
			`invalid: ConfigMap default/b: data: Too long (this does not pass by itself: correct it); 1 of 2 manifests failed`, good,
		},
		"the kind is not there": {
			failed(configMap(1, "b"), `the server doesn't have a resource type "ConfigMap" in v1; correct it`),
			`unknown kind: ConfigMap default/b: the server doesn't have a resource type "ConfigMap" in v1; correct it; 1 of 2 manifests failed`, good,
		},
		"the namespace is not there": {
			failed(configMap(1, "b"), `namespaces "default" not found; make it`),
			`namespace missing: ConfigMap default/b: namespaces "default" not found; make it; 1 of 2 manifests failed`, good,
		},
		"a webhook does not answer": {
			failed(configMap(1, "b"), `Internal error occurred: failed calling webhook "w.example.com": no endpoints`),
			`webhook failed: ConfigMap default/b: Internal error occurred: failed calling webhook "w.example.com": no endpoints; check that the service of this webhook runs on the cluster; 1 of 2 manifests failed`, good,
		},
		"a policy denies it": {
			failed(configMap(1, "b"), `configmaps "b" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no`),
			`denied: ConfigMap default/b: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no; 1 of 2 manifests failed`, good,
		},
		"others have the field": {
			failed(configMap(1, "b"), `Apply failed with 1 conflict: conflict with "kubectl": .data.k`),
			`conflict: ConfigMap default/b: Apply failed with 1 conflict: conflict with "kubectl": .data.k; take the field out of the manifest, or set force in its update strategy; 1 of 2 manifests failed`, good,
		},
		"others have a field of that name": {
			failed(configMap(1, "b"), `Apply failed with 1 conflict: conflict with "kubectl": .immutable`),
			`conflict: ConfigMap default/b: Apply failed with 1 conflict: conflict with "kubectl": .immutable; take the field out of the manifest, or set force in its update strategy; 1 of 2 manifests failed`, good,
		},
		"the name of the object is no reason": {
			failed(configMap(1, "is immutable"), `ConfigMap "is immutable" is invalid: data: Too long`),
			`invalid: ConfigMap default/is immutable: data: Too long; 1 of 2 manifests failed`, good,
		},
		"a text of several lines": {
			failed(configMap(1, "b"), "admission webhook \"w\" denied the request: no:\n  - a\n\t- b\n; ask"),
			`denied: ConfigMap default/b: admission webhook "w" denied the request: no: - a - b ; ask; 1 of 2 manifests failed`, good,
		},
		"the namespace is being deleted": {
			failed(configMap(1, "b"), `configmaps "b" is forbidden: unable to create new content in namespace default because it is being terminated`),
			`namespace ends: ConfigMap default/b: unable to create new content in namespace default because it is being terminated; 1 of 2 manifests failed`, good,
		},
		"the definition of the kind is being deleted": {
			failed(configMap(1, "b"), `configmaps "b" is forbidden: create not allowed while custom resource definition is terminating`),
			`definition ends: ConfigMap default/b: create not allowed while custom resource definition is terminating; 1 of 2 manifests failed`, good,
		},
		"a quota is used up": {
			failed(configMap(1, "b"), `configmaps "b" is forbidden: exceeded quota: few, requested: count/configmaps=1`),
			`over quota: ConfigMap default/b: exceeded quota: few, requested: count/configmaps=1; 1 of 2 manifests failed`, good,
		},
		"a field of a Service cannot change": {
			failed(configMap(1, "b"), `ConfigMap "b" is invalid: spec.clusterIPs[0]: Invalid value: ["10.0.0.9"]: may not change once set`),
			`immutable: ConfigMap default/b: spec.clusterIPs[0]: Invalid value: ["10.0.0.9"]: may not change once set; 1 of 2 manifests failed`, good,
		},
		"not there, for a reason that is not known": {
			conditions.Manifest{Meta: configMap(1, "b"), Presence: conditions.Absent},
			complete, "not found: ConfigMap default/b; 1 of 2 resources are not available",
		},
		"it cannot be read": {
			conditions.Manifest{Meta: configMap(1, "b"), Presence: conditions.Unreadable, ReadErr: errors.New("dial tcp: connection refused")},
			complete, "no answer: ConfigMap default/b: dial tcp: connection refused; 1 of 2 resources have unknown status",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := conditions.Next(workv1.ManifestWorkStatus{}, 7, []conditions.Manifest{present(configMap(0, "a")), c.second}, t0)
			diff(t, []string{c.applied, c.available}, []string{got.Conditions[0].Message, got.Conditions[1].Message})
		})
	}
}

// A very long text of a manifest becomes one line of its work, from the reason to the next step. This also
// holds for an object with the longest names.
func TestNext_StatusTextIsShort(t *testing.T) {
	const advice = "(this does not pass by itself: correct the manifest)"
	m := workv1.ManifestResourceMeta{Version: "v1", Kind: strings.Repeat("K", 63), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("m", 253)}
	failing := conditions.Manifest{Meta: m, Presence: conditions.Absent, ApplyErr: errors.New("spec is immutable: " + strings.Repeat("é", 5000) + advice)}
	got := conditions.Next(workv1.ManifestWorkStatus{}, 7, []conditions.Manifest{failing}, t0)
	for i, count := range []string{"; 1 of 1 manifests failed", "; 1 of 1 resources are not available"} {
		output := got.Conditions[i].Message
		if len(output) < 1000 || len(output) > 1024 || !strings.HasPrefix(output, "immutable: KKK") || !strings.Contains(output, "mmm: spec is immutable: é") || !strings.HasSuffix(output, advice+count) {
			t.Errorf("%s has %d bytes: %s", got.Conditions[i].Type, len(output), output)
		}
	}
}

// An object that is gone while its work is being deleted is no failure.
func TestDeleting_NamesNoObject(t *testing.T) {
	first := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(configMap(0, "a"))}, t0)
	got := conditions.Deleting(first, 1, []conditions.Manifest{{Meta: configMap(0, "a"), Presence: conditions.Absent}}, t0)
	diff(t, one("Available", metav1.ConditionFalse, "ResourcesNotAvailable", "1 of 1 resources are not available", 1, s0), got.Conditions[1])
}
