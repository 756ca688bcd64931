package apply

import (
	"context"
	"crypto/md5" //nolint:gosec // see configHash
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

const (
	// defaultFieldManager applies objects unless the work names another manager, whose name must begin with it.
	defaultFieldManager = "work-agent"
	// maxFieldManager is the server's limit, in bytes.
	maxFieldManager = 128
	// specHashAnnotation has the configHash of objects with ignoreFields.
	specHashAnnotation = "open-cluster-management.io/config-spec-hash"
)

// fieldManagerOf returns the field manager of a manifest.
func fieldManagerOf(c *workv1.ServerSideApplyConfig) kubeclient.FieldManager {
	by := kubeclient.FieldManager{Name: defaultFieldManager}
	if c != nil {
		by.Force = c.Force
		if c.FieldManager != "" {
			by.Name = c.FieldManager
		}
	}
	return by
}

// refuseServerSideApply returns an error for invalid options of the strategy. The hub's CRD rejects them, but
// works can have another origin.
func refuseServerSideApply(c *workv1.ServerSideApplyConfig) error {
	if c == nil {
		return nil
	}
	name := fieldManagerOf(c).Name
	printable := !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' })
	if !strings.HasPrefix(name, defaultFieldManager) || len(name) > maxFieldManager || !printable {
		return permanent{fmt.Errorf("fieldManager %q is not possible: set updateStrategy.serverSideApply.fieldManager to a name of at most %d printable characters that begins with %q, or leave it out",
			name, maxFieldManager, defaultFieldManager)}
	}
	for _, f := range c.IgnoreFields {
		switch f.Condition {
		case "", workv1.IgnoreFieldsConditionOnSpokePresent, workv1.IgnoreFieldsConditionOnSpokeChange:
		default:
			return permanent{fmt.Errorf("ignoreFields with condition %q is not possible: set it to OnSpokePresent or OnSpokeChange", f.Condition)}
		}
	}
	return nil
}

// compareApplied leaves the merge to the server. managedFields of the last apply show whether a write is
// needed: see managedFields. An object that the server completes or stores in another form always looks
// different. It is sent once; afterwards the result is remembered.
func (s *Step) compareApplied(ctx context.Context, owner Owner) {
	c := s.Config.Strategy.ServerSideApply
	s.by = fieldManagerOf(c)
	body := s.applied()
	whole := anonymous(body)
	var b managedFields
	if s.Live != nil {
		b = readManagedFields(s.Live, s.by.Name)
	}
	if c != nil && len(c.IgnoreFields) > 0 {
		var err error
		if body, err = s.leaveAlone(ctx, body, b, owner); err != nil {
			s.Err = err
			return
		}
	}
	if s.Live == nil {
		s.Action, s.body = Create, body
		return
	}
	if s.handOver = handOver(s.Live, whole, s.by, owner); s.handOver != nil {
		s.Action = Update // the write after it is planned afterwards
		return
	}
	content := anonymous(body)
	same := b.hold(s.Live.Object, content) && !b.own.exceeds(content)
	same = same || !s.known.due && s.same(owner, appliedDigest(s.Live, s.by.Name))
	if !same {
		s.Action, s.body = Update, body
		return
	}
	s.Action = Unchanged
	if patch, needed := owner.patch(s.Live, s.Owned); needed {
		s.Action, s.patch = Update, patch
	}
}

// applied returns the manifest in the form in which it is applied: with its owner references, without the
// server's fields.
func (s *Step) applied() *unstructured.Unstructured {
	o := s.Object.DeepCopy()
	dropEmptyTimes(o.Object)
	for _, field := range []string{"uid", "resourceVersion", "managedFields"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	o.SetNamespace(s.Ref.Namespace)
	foldStringData(o)
	return o
}

// dropEmptyTimes removes null creation timestamps, which encoders of Go types write into metadata, also of
// templates. The server would treat them as requested values.
func dropEmptyTimes(v any) {
	switch v := v.(type) {
	case map[string]any:
		if t, has := v["creationTimestamp"]; has && t == nil {
			delete(v, "creationTimestamp")
		}
		for _, e := range v {
			dropEmptyTimes(e)
		}
	case []any:
		for _, e := range v {
			dropEmptyTimes(e)
		}
	}
}

// leaveAlone removes the ignored fields from body. Those of OnSpokePresent are ignored once the object exists.
// Those of OnSpokeChange are ignored while the manifest is the one applied last, according to an annotation on
// the object. All other fields are always enforced.
func (s *Step) leaveAlone(ctx context.Context, body *unstructured.Unstructured, b managedFields, owner Owner) (*unstructured.Unstructured, error) {
	fields := s.Config.Strategy.ServerSideApply.IgnoreFields
	manifest := s.Object.DeepCopy()
	dropEmptyTimes(manifest.Object)
	unstructured.RemoveNestedField(manifest.Object, "metadata", "uid")
	mine, err := ignoredIn(ctx, fields, manifest.Object, false)
	if err != nil {
		return nil, err
	}
	hash := configHash(mine.present.without(manifest.Object))
	if s.Live != nil {
		live := withoutManagedFields(s.Live)
		here, err := ignoredIn(ctx, fields, live, true)
		if err != nil {
			return nil, err
		}
		if foldStringData(manifest.DeepCopy()) {
			mine.present.foldStringData(manifest.Object)
			mine.change.foldStringData(manifest.Object)
		}
		drop, keep := mine.present, here.present
		if s.Live.GetAnnotations()[specHashAnnotation] == hash || s.known.Matches(s.Manifest, owner) {
			drop, keep = drop.union(mine.change), keep.union(here.change)
		}
		preserveIgnored(body.Object, live, b, keep, drop)
		left := &unstructured.Unstructured{Object: drop.without(body.Object).(map[string]any)}
		left.SetGroupVersionKind(body.GroupVersionKind())
		left.SetNamespace(body.GetNamespace())
		left.SetName(body.GetName())
		left.SetUID(s.Live.GetUID())
		left.SetResourceVersion(s.Live.GetResourceVersion())
		body = left
	}
	annotations := body.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[specHashAnnotation] = hash
	body.SetAnnotations(annotations)
	return body, nil
}

// withoutManagedFields returns an object without its managedFields; the rest is shared.
func withoutManagedFields(o *unstructured.Unstructured) map[string]any {
	c := maps.Clone(o.Object)
	if m, ok := c["metadata"].(map[string]any); ok {
		m = maps.Clone(m)
		delete(m, "managedFields")
		c["metadata"] = m
	}
	return c
}

// anonymous returns the part of a body that managedFields cover; the rest is shared.
func anonymous(o *unstructured.Unstructured) map[string]any {
	c := withoutManagedFields(o)
	delete(c, "apiVersion")
	delete(c, "kind")
	if m, ok := c["metadata"].(map[string]any); ok {
		for _, field := range []string{"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "selfLink"} {
			delete(m, field)
		}
		if len(m) == 0 {
			delete(c, "metadata")
		}
	}
	return c
}

// configHash returns the hash of a manifest for the annotation. It equals the hash of OCM's agent, so that its
// objects are adopted without a write. It is the MD5, without a security purpose, of Go's rendering of the
// manifest.
func configHash(manifest any) string {
	o, _ := manifest.(map[string]any)
	sum := md5.Sum([]byte(fmt.Sprintf("%v", &unstructured.Unstructured{Object: o}))) //nolint:gosec // see above
	return hex.EncodeToString(sum[:])
}

// appliedDigest returns the hash of the fields that our manager has on an object.
func appliedDigest(o *unstructured.Unstructured, manager string) [sha256.Size]byte {
	mine, _ := readManagedFields(o, manager).own.project(o.Object)
	b, err := json.Marshal(mine)
	if err != nil {
		// Unstructured content came from JSON and always marshals.
		panic(fmt.Sprintf("marshal %s: %v", o.GetName(), err))
	}
	return sha256.Sum256(b)
}

// exact returns the body to apply, conditional on the object as read.
func (s *Step) exact() *unstructured.Unstructured {
	o := s.body.DeepCopy()
	if o.SetResourceVersion(kubeclient.NoVersion); s.Live != nil {
		o.SetUID(s.Live.GetUID())
		o.SetResourceVersion(s.Live.GetResourceVersion())
	}
	return o
}

// serverSide applies the object and then sets our owner reference, which is not part of the applied fields:
// manifests may have references of their own. It returns the latest known object; nil if nothing was written.
func (a Applier) serverSide(ctx context.Context, s *Step, owner Owner) (*unstructured.Unstructured, error) {
	var written *unstructured.Unstructured
	if s.handOver != nil {
		o, err := a.Objects.Patch(ctx, s.Ref, s.handOver, "")
		if err != nil {
			return nil, err
		}
		written, s.Live, s.body, s.patch = o, o, nil, nil
		if s.compareApplied(ctx, owner); s.Err != nil {
			return written, s.Err
		}
	}
	patch := s.patch
	if s.body != nil {
		if a.Exact {
			s.body = s.exact()
		}
		o, err := a.Objects.ServerSideApply(ctx, s.Ref.GroupVersionResource, s.body, s.by)
		if err != nil {
			return written, err
		}
		written = o
		patch, _ = owner.patch(o, s.Owned)
	}
	if patch == nil {
		return written, nil
	}
	o, err := a.Objects.Patch(ctx, s.Ref, patch, "")
	if err != nil {
		return written, err
	}
	return o, nil
}
