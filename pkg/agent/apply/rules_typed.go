package apply

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// typed compares top-level fields of a kind in its API type T, completed with the server's defaults. A manifest
// that omits defaults then makes no difference.
type typed[T any] struct {
	fields []string
	// complete sets the server's defaults; nil: there are none.
	complete func(*T)
}

// rule replaces the fields if they differ.
func (t typed[T]) rule() rule {
	return rule{prepare: t.prepare, merge: t.merge}
}

// prepare checks whether the manifest matches the type.
func (t typed[T]) prepare(want *unstructured.Unstructured) error {
	_, _, err := t.read(want)
	return err
}

func (t typed[T]) merge(next, want *unstructured.Unstructured, _ bool) bool {
	if t.same(next, want) {
		return false
	}
	for _, f := range t.fields {
		replace(next, want, f)
	}
	return true
}

// same reports whether the fields have the same meaning. Fields that the type does not have, because the
// cluster is newer, are compared unchanged.
func (t typed[T]) same(live, want *unstructured.Unstructured) bool {
	a, _, err := t.read(live)
	b, unknown, wantErr := t.read(want)
	if err != nil || wantErr != nil || !equality.Semantic.DeepEqual(a, b) {
		return false
	}
	for _, f := range t.fields {
		if unknown && !equality.Semantic.DeepEqual(live.Object[f], want.Object[f]) {
			return false
		}
	}
	return true
}

// read decodes and completes the fields. unknown: there are fields that the type does not have. The error is
// errMalformed.
func (t typed[T]) read(o *unstructured.Unstructured) (v T, unknown bool, err error) {
	m := map[string]any{}
	for _, f := range t.fields {
		if v, has := o.Object[f]; has && v != nil {
			m[f] = v
		}
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(m, &v, true)
	if unknown = runtime.IsStrictDecodingError(err); err != nil && !unknown {
		return v, false, errMalformed
	}
	if t.complete != nil {
		t.complete(&v)
	}
	return v, unknown, nil
}

// fill sets an unset value.
func fill[V any](p **V, v V) {
	if *p == nil {
		*p = &v
	}
}

var (
	networkPolicies   = typed[networkingv1.NetworkPolicy]{[]string{"spec"}, completeNetworkPolicy}
	disruptionBudgets = typed[policyv1.PodDisruptionBudget]{[]string{"spec"}, nil}
	definitions       = typed[apiextensionsv1.CustomResourceDefinition]{[]string{"spec"}, completeDefinition}
)

func completeNetworkPolicy(p *networkingv1.NetworkPolicy) {
	s := &p.Spec
	if len(s.PolicyTypes) == 0 {
		s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(s.Egress) > 0 {
			s.PolicyTypes = append(s.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	ports := func(l []networkingv1.NetworkPolicyPort) {
		for i := range l {
			fill(&l[i].Protocol, corev1.ProtocolTCP)
		}
	}
	for _, r := range s.Ingress {
		ports(r.Ports)
	}
	for _, r := range s.Egress {
		ports(r.Ports)
	}
}

func completeDefinition(d *apiextensionsv1.CustomResourceDefinition) {
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.Spec)
	if h := d.Spec.Conversion.Webhook; h != nil && h.ClientConfig != nil && h.ClientConfig.Service != nil {
		apiextensionsv1.SetDefaults_ServiceReference(h.ClientConfig.Service)
	}
}
