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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	injectBundleLabel      = "config.openshift.io/inject-trusted-cabundle"
	injectedBundleKey      = "ca-bundle.crt"
	serviceBundleAnno      = "service.beta.openshift.io/inject-cabundle"
	serviceBundleKey       = "service-ca.crt"
	specHashAnno           = "operator.openshift.io/spec-hash"
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

// texts reads a top-level map of texts; an absent one is an empty map.
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

// bothTexts reads a top-level map of an object and of its manifest. ok is false if one is malformed; prepare
// has checked want, and the server the object.
func bothTexts(next, want *unstructured.Unstructured, field string) (live, data map[string]string, ok bool) {
	live, err1 := texts(next, field)
	data, err2 := texts(want, field)
	return live, data, errors.Join(err1, err2) == nil
}

// putTexts makes a top-level map identical; an empty text is a value here.
func putTexts(next, want *unstructured.Unstructured, field string) bool {
	live, data, ok := bothTexts(next, want, field)
	if !ok || maps.Equal(live, data) {
		return false
	}
	setTexts(next, field, data)
	return true
}

// mergeConfigMap makes data and binaryData identical, except CA bundles that the cluster injects because of a
// label or annotation.
func mergeConfigMap(next, want *unstructured.Unstructured, _ bool) bool {
	live, data, ok := bothTexts(next, want, "data")
	if !ok {
		return false
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
	changed = putImmutable(next, want) || changed
	if !maps.Equal(compared, data) {
		setTexts(next, "data", data)
		changed = true
	}
	return changed
}

// putImmutable sets the field immutable, also to false, which the server refuses. It stays unchanged if the
// manifest does not have it.
func putImmutable(next, want *unstructured.Unstructured) bool {
	w, reports := want.Object["immutable"].(bool)
	if is, _ := next.Object["immutable"].(bool); !reports || is == w {
		return false
	}
	next.Object["immutable"] = w
	return true
}

// foldStringData moves stringData of a Secret into data, as the server does. Applied stringData would belong to
// no manager afterwards: it would be neither repaired nor removed. folded: there was some.
func foldStringData(o *unstructured.Unstructured) (folded bool) {
	if o.GroupVersionKind() != corev1.SchemeGroupVersion.WithKind("Secret") {
		return false
	}
	simple, err := texts(o, "stringData")
	data, isMap := o.Object["data"].(map[string]any)
	if err != nil || o.Object["data"] != nil && !isMap {
		return false // the server reports the error
	}
	delete(o.Object, "stringData")
	if len(simple) == 0 {
		return false
	}
	if data == nil {
		data = map[string]any{}
		o.Object["data"] = data
	}
	for k, v := range simple {
		data[k] = base64.StdEncoding.EncodeToString([]byte(v))
	}
	return true
}

// foldStringData moves the selected paths of stringData to data, where they are applied.
func (c *fieldSet) foldStringData(manifest map[string]any) {
	sub := c.at("stringData")
	simple, _ := manifest["stringData"].(map[string]any)
	for k := range simple {
		if sub.all() || sub.at(k) != nil {
			c.add(fieldPath{"data", k})
		}
	}
}

// prepareSecret folds stringData into data, in the encoding of the server.
func prepareSecret(want *unstructured.Unstructured) error {
	simple, err1 := texts(want, "stringData")
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
	for k, v := range simple {
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
	live, data, ok := bothTexts(next, want, "data")
	if !ok {
		return false
	}
	if next.Object["type"] == string(corev1.SecretTypeServiceAccountToken) {
		// Keys of the token controller stay beside those of the manifest.
		merged := maps.Clone(live)
		maps.Copy(merged, data)
		data = merged
	}
	changed := put(next, want, "type")
	changed = putImmutable(next, want) || changed
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

// prepareService stores a hash of the manifest's spec in an annotation. A changed manifest is then noticed
// although the server fills in much of the live spec. The hash is that of the spec's JSON in the order of the
// API types.
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
	return noteSpec(want, spec)
}

// noteSpec stores the hash of a spec, given in its API type, in an annotation of the manifest.
func noteSpec(want *unstructured.Unstructured, spec any) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return errMalformed
	}
	sum := sha256.Sum256(b)
	annotations := want.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[specHashAnno] = hex.EncodeToString(sum[:])
	want.SetAnnotations(annotations)
	return nil
}

// mergeService replaces the whole spec if the manifest or the selector of pods changed. Other changes by others
// stay.
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
