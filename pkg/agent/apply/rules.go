package apply

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// rule is what Update means for a kind that is not simply replaced.
type rule struct {
	// prepare completes the manifest before anything is compared or created. It
	// returns errMalformed if the manifest does not have the shape of the kind;
	// the server then says what is wrong with it.
	prepare func(want *unstructured.Unstructured) error
	// merge changes next, the live object with merged metadata, into what it
	// should be, and reports whether that is a change. metadata says whether the
	// metadata already differed. nil: the content is never touched.
	merge func(next, want *unstructured.Unstructured, metadata bool) bool
	// recreate says that the change needs another object; nil: never.
	recreate func(live, want *unstructured.Unstructured) bool
	// recreateOn says that this refusal of an update asks for another object;
	// nil: never.
	recreateOn func(error) bool
}

var errMalformed = errors.New("the manifest does not have the shape of its kind")

const rbacGroup = "rbac.authorization.k8s.io"

// rules are the kinds with a rule of their own. Pods, service accounts and
// namespaces are created as the manifest says; afterwards only their metadata
// is: correcting the rest would roll workloads that nobody wants rolled.
var rules = func() map[schema.GroupVersionKind]rule {
	core := func(kind string) schema.GroupVersionKind { return schema.GroupVersionKind{Version: "v1", Kind: kind} }
	rbac := func(kind string) schema.GroupVersionKind {
		return schema.GroupVersionKind{Group: rbacGroup, Version: "v1", Kind: kind}
	}
	binding := rule{prepare: prepareBinding, merge: mergeFields("subjects", "roleRef")}
	return map[schema.GroupVersionKind]rule{
		core("Namespace"):          {},
		core("Pod"):                {},
		core("ServiceAccount"):     {},
		core("ConfigMap"):          {prepare: prepareConfigMap, merge: mergeConfigMap},
		core("Secret"):             {prepare: prepareSecret, merge: mergeSecret, recreate: otherSecretType, recreateOn: isImmutableField},
		core("Service"):            {prepare: prepareService, merge: mergeService},
		rbac("Role"):               {merge: mergeFields("rules")},
		rbac("ClusterRole"):        {merge: mergeClusterRole},
		rbac("RoleBinding"):        binding,
		rbac("ClusterRoleBinding"): binding,
	}
}()

// put copies a top-level field of the manifest, absence included, if it differs.
func put(next, want *unstructured.Unstructured, field string) bool {
	if reflect.DeepEqual(tidy(next.Object[field]), tidy(want.Object[field])) {
		return false
	}
	if v, has := want.Object[field]; has && v != nil {
		next.Object[field] = runtime.DeepCopyJSONValue(v)
	} else {
		delete(next.Object, field)
	}
	return true
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

// tidy drops what means the same as absence: null, empty text, empty lists and
// maps as values of a field.
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

// mergeClusterRole leaves the rules to the control plane where they are
// aggregated.
func mergeClusterRole(next, want *unstructured.Unstructured, _ bool) bool {
	changed := put(next, want, "aggregationRule")
	if tidy(want.Object["aggregationRule"]) == nil {
		changed = put(next, want, "rules") || changed
	}
	return changed
}

// prepareBinding fills in the API groups that the server would fill in.
func prepareBinding(want *unstructured.Unstructured) error {
	fill := func(m map[string]any) {
		if g, _ := m["apiGroup"].(string); g == "" {
			m["apiGroup"] = rbacGroup
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

const (
	injectBundleLabel      = "config.openshift.io/inject-trusted-cabundle"
	injectedBundleKey      = "ca-bundle.crt"
	serviceBundleAnno      = "service.beta.openshift.io/inject-cabundle"
	serviceBundleKey       = "service-ca.crt"
	serviceSpecHash        = "operator.openshift.io/spec-hash"
	immutableFieldText     = "field is immutable"
	conflictingSecretField = "Secret.stringData[%q] conflicts with Secret.data[%q]"
)

func prepareConfigMap(want *unstructured.Unstructured) error {
	for _, f := range []string{"data", "binaryData"} {
		if _, err := texts(want, f); err != nil {
			return err
		}
	}
	return nil
}

// texts reads a top-level map from text to text; absence is an empty map.
func texts(o *unstructured.Unstructured, field string) (map[string]string, error) {
	v, has := o.Object[field]
	if !has || v == nil {
		return map[string]string{}, nil
	}
	m, _, err := unstructured.NestedStringMap(o.Object, field)
	if err != nil {
		return nil, errMalformed
	}
	return m, nil
}

func setTexts(o *unstructured.Unstructured, field string, m map[string]string) {
	if len(m) == 0 {
		delete(o.Object, field)
		return
	}
	v := make(map[string]any, len(m))
	for k, s := range m {
		v[k] = s
	}
	o.Object[field] = v
}

// putTexts makes a top-level map identical; here an empty text is a value.
func putTexts(next, want *unstructured.Unstructured, field string) bool {
	live, err1 := texts(next, field)
	data, err2 := texts(want, field)
	if errors.Join(err1, err2) != nil || maps.Equal(live, data) {
		return false // prepare looked at want, the server at live
	}
	setTexts(next, field, data)
	return true
}

// mergeConfigMap makes data and binaryData identical, apart from certificate
// bundles that the cluster injects where label or annotation ask for it.
func mergeConfigMap(next, want *unstructured.Unstructured, _ bool) bool {
	live, err1 := texts(next, "data")
	data, err2 := texts(want, "data")
	if errors.Join(err1, err2) != nil {
		return false // prepare looked at want, the server at live
	}
	if bundle, has := live[injectedBundleKey]; has && want.GetLabels()[injectBundleLabel] == "true" {
		data[injectedBundleKey] = bundle
	}
	compared := maps.Clone(live)
	if want.GetAnnotations()[serviceBundleAnno] == "true" {
		if _, own := data[serviceBundleKey]; !own {
			delete(compared, serviceBundleKey)
		}
	}
	changed := putTexts(next, want, "binaryData")
	if !maps.Equal(compared, data) {
		setTexts(next, "data", data)
		changed = true
	}
	return changed
}

// prepareSecret folds stringData into data, in the encoding of the server.
func prepareSecret(want *unstructured.Unstructured) error {
	plain, err1 := texts(want, "stringData")
	encoded, err2 := texts(want, "data")
	if errors.Join(err1, err2) != nil {
		return errMalformed
	}
	data := map[string]string{}
	for k, v := range encoded {
		b, err := base64.StdEncoding.DecodeString(v)
		if err != nil {
			return errMalformed
		}
		data[k] = base64.StdEncoding.EncodeToString(b)
	}
	for k, v := range plain {
		e := base64.StdEncoding.EncodeToString([]byte(v))
		if old, has := data[k]; has && old != e {
			return permanent{fmt.Errorf(conflictingSecretField, k, k)}
		}
		data[k] = e
	}
	setTexts(want, "data", data)
	delete(want.Object, "stringData")
	if typ, _ := want.Object["type"].(string); typ == "" {
		want.Object["type"] = string(corev1.SecretTypeOpaque)
	}
	return nil
}

func mergeSecret(next, want *unstructured.Unstructured, _ bool) bool {
	live, err1 := texts(next, "data")
	data, err2 := texts(want, "data")
	if errors.Join(err1, err2) != nil {
		return false // prepare looked at want, the server at live
	}
	if next.Object["type"] == string(corev1.SecretTypeServiceAccountToken) {
		// The token controller's keys live beside the manifest's.
		merged := maps.Clone(live)
		maps.Copy(merged, data)
		data = merged
	}
	changed := put(next, want, "type")
	if !maps.Equal(live, data) {
		setTexts(next, "data", data)
		changed = true
	}
	return changed
}

func otherSecretType(live, want *unstructured.Unstructured) bool {
	return live.Object["type"] != want.Object["type"]
}

func isImmutableField(err error) bool { return strings.Contains(err.Error(), immutableFieldText) }

// prepareService records a hash of the manifest's spec in an annotation, so
// that a changed manifest is noticed although the server fills in much of the
// live spec. The hash is that of the spec's JSON in the order of the API types.
func prepareService(want *unstructured.Unstructured) error {
	var spec corev1.ServiceSpec
	if m, has := want.Object["spec"]; has {
		fields, ok := m.(map[string]any)
		if !ok {
			return errMalformed
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &spec); err != nil {
			return errMalformed
		}
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return errMalformed
	}
	sum := sha256.Sum256(b)
	annotations := want.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[serviceSpecHash] = hex.EncodeToString(sum[:])
	want.SetAnnotations(annotations)
	return nil
}

// mergeService replaces the spec as a whole if the manifest or what selects the
// pods changed; what others did to the rest of it stays.
func mergeService(next, want *unstructured.Unstructured, metadata bool) bool {
	field := func(o *unstructured.Unstructured, name string) any {
		v, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", name)
		return tidy(v)
	}
	typ := field(want, "type")
	if typ == nil || typ == "" {
		typ = string(corev1.ServiceTypeClusterIP)
	}
	if !metadata && reflect.DeepEqual(field(next, "selector"), field(want, "selector")) && field(next, "type") == typ {
		return false
	}
	if spec, has := want.Object["spec"]; has {
		next.Object["spec"] = runtime.DeepCopyJSONValue(spec)
	} else {
		delete(next.Object, "spec")
	}
	return true
}

// differs compares everything but metadata and status, for kinds without a
// rule.
func differs(want, live *unstructured.Unstructured) bool {
	return !equality.Semantic.DeepEqual(withoutMetadata(want), withoutMetadata(live))
}

func withoutMetadata(o *unstructured.Unstructured) map[string]any {
	c := maps.Clone(o.Object)
	delete(c, "metadata")
	delete(c, "status")
	return c
}
