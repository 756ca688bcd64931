package apply

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/executor"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Manifest is one manifest of a work.
type Manifest struct {
	// Meta identifies the object. Unknown parts are empty.
	Meta workv1.ManifestResourceMeta
	// Object is the manifest, nil if it cannot be parsed. It is not modified.
	Object *unstructured.Unstructured
	// Ref names the object; valid if Resolved.
	Ref      kubeclient.Ref
	Resolved bool
	// Owned: the work owns the object, which is deleted with it.
	Owned bool
	// Config is the part of spec.manifestConfigs for the manifest.
	Config Config
	// Err is why the manifest cannot be applied; nil if it can.
	Err error

	// forbidden is why no work may have the object; nil if it is allowed.
	forbidden error
	hash      [sha256.Size]byte
}

// Hash returns the hash of the manifest and its Config.
func (m Manifest) Hash() [sha256.Size]byte { return m.hash }

// ID identifies the object in its cluster, without the version. It is complete if Resolved.
func (m Manifest) ID() workv1.ResourceIdentifier {
	return workv1.ResourceIdentifier{Group: m.Meta.Group, Resource: m.Meta.Resource, Namespace: m.Meta.Namespace, Name: m.Meta.Name}
}

// Forbid returns the manifest with its object forbidden: it is neither written nor read. err is the reason.
func (m Manifest) Forbid(err error) Manifest {
	m.Resolved, m.forbidden, m.Err = false, err, permanent{err}
	return m
}

// Forbidden returns why no work may have the object, nil if it is allowed.
func (m Manifest) Forbidden() error { return m.forbidden }

// permanent marks an error that lasts until the spec changes.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Permanent reports whether a retry is useless until the work changes.
func Permanent(err error) bool {
	return errors.As(err, new(permanent))
}

// Load reads the manifests of a work, in the order of the spec, and looks up their resources on the cluster. An
// error of one manifest is in its Err and does not affect the others.
func Load(ctx context.Context, mapper kubeclient.Mapper, spec workv1.ManifestWorkSpec) []Manifest {
	refusal := refuseWork(spec)
	manifests := make([]Manifest, 0, len(spec.Workload.Manifests))
	for i, raw := range spec.Workload.Manifests {
		m := load(ctx, mapper, int32(i), raw.Raw)
		id := m.ID()
		m.Owned, m.Config = IsOwned(spec.DeleteOption, id), configOf(spec.ManifestConfigs, id)
		m.hash = hashOf(raw.Raw, m.Config)
		if m.Err == nil {
			m.Err = m.Config.refuse()
		}
		if refusal != nil && m.Err == nil {
			m.Err = refusal
		}
		manifests = append(manifests, m)
	}
	return manifests
}

// refuseWork returns why nothing of a work may be applied: an invalid executor, or options that this agent does
// not know.
func refuseWork(spec workv1.ManifestWorkSpec) error {
	if spec.Executor != nil {
		if _, err := executor.Of(*spec.Executor); err != nil {
			return permanent{err}
		}
	}
	if o := spec.DeleteOption; o != nil {
		switch o.PropagationPolicy {
		case "", workv1.DeletePropagationPolicyTypeForeground, workv1.DeletePropagationPolicyTypeOrphan, workv1.DeletePropagationPolicyTypeSelectivelyOrphan:
		default:
			return permanent{fmt.Errorf("spec.deleteOption.propagationPolicy %q is not known: use Foreground, Orphan or SelectivelyOrphan", o.PropagationPolicy)}
		}
	}
	return nil
}

func load(ctx context.Context, mapper kubeclient.Mapper, ordinal int32, raw []byte) Manifest {
	m := Manifest{Meta: workv1.ManifestResourceMeta{Ordinal: ordinal}}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(raw); err != nil {
		m.Err = permanent{err}
		return m
	}
	m.Object = o
	gvk := o.GroupVersionKind()
	m.Meta.Group, m.Meta.Version, m.Meta.Kind = gvk.Group, gvk.Version, gvk.Kind
	m.Meta.Name, m.Meta.Namespace = o.GetName(), o.GetNamespace()
	if err := wellFormed(o); err != nil {
		m.Err = permanent{err}
		return m
	}
	r, err := mapper.Resolve(ctx, gvk)
	if err != nil {
		m.Err = err
		return m
	}
	m.Meta.Resource = r.Resource
	if !r.Namespaced {
		m.Meta.Namespace = "" // independent of the manifest
	}
	if m.Err = identified(r, m.Meta); m.Err != nil {
		return m
	}
	m.Ref = kubeclient.Ref{GroupVersionResource: r.GroupVersionResource, Namespace: m.Meta.Namespace, Name: m.Meta.Name}
	m.Resolved = true
	return m
}

// wellFormed checks the properties that later steps rely on.
func wellFormed(o *unstructured.Unstructured) error {
	gv, err := schema.ParseGroupVersion(o.GetAPIVersion())
	if err != nil {
		return err
	}
	if gv.Group != "" && len(validation.IsDNS1123Subdomain(gv.Group)) > 0 || len(validation.IsDNS1035Label(gv.Version)) > 0 {
		return fmt.Errorf("apiVersion %q is not <group>/<version>", o.GetAPIVersion())
	}
	for _, field := range []string{"labels", "annotations"} {
		if _, _, err := unstructured.NestedStringMap(o.Object, "metadata", field); err != nil {
			return fmt.Errorf("metadata.%s must map text to text: %w", field, err)
		}
	}
	return nil
}

var errNoNamespace = errors.New("an empty namespace may not be set when a resource name is provided: set metadata.namespace in the manifest")

// presence returns the presence of the object of a manifest that does not fully identify it. err is why it is
// unknown.
func (m Manifest) presence() (p conditions.Presence, err error) {
	switch {
	case m.forbidden != nil:
		return conditions.Unreadable, m.forbidden
	case m.Meta.Resource == "" || m.Meta.Name == "":
		return conditions.Unidentified, nil
	case errors.Is(m.Err, errNoNamespace):
		return conditions.Absent, nil
	}
	return conditions.Unreadable, m.Err
}

func identified(r kubeclient.Resource, m workv1.ManifestResourceMeta) error {
	switch {
	case m.Name == "":
		return permanent{errors.New("name is required: set metadata.name in the manifest")}
	case r.Namespaced && m.Namespace == "":
		return permanent{errNoNamespace}
	}
	for _, v := range []string{m.Name, m.Namespace} {
		if problems := content.IsPathSegmentName(v); len(problems) > 0 {
			return permanent{fmt.Errorf("%q cannot be a name or namespace: it %s", v, strings.Join(problems, ", "))}
		}
	}
	return nil
}

// IsOwned reports whether a work with this delete option owns the object. An owned object has its owner reference
// and is deleted with it.
func IsOwned(o *workv1.DeleteOption, id workv1.ResourceIdentifier) bool {
	if o == nil {
		return true
	}
	switch o.PropagationPolicy {
	case workv1.DeletePropagationPolicyTypeOrphan:
		return false
	case workv1.DeletePropagationPolicyTypeSelectivelyOrphan:
		return o.SelectivelyOrphan == nil || !slices.Contains(o.SelectivelyOrphan.OrphaningRules, workv1.OrphaningRule(id))
	}
	return true
}
