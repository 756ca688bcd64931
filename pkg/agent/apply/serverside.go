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
	// defaultFieldManager applies objects unless the work names another manager,
	// whose name begins with it.
	defaultFieldManager = "work-agent"
	// maxFieldManager is what the server accepts, in bytes.
	maxFieldManager = 128
	// specHashAnnotation carries the configHash of objects with ignoreFields.
	specHashAnnotation = "open-cluster-management.io/config-spec-hash"
)

// fieldManagerOf returns in whose name a manifest is applied.
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

// refuseServerSideApply returns what is wrong with the options of the strategy.
// The hub's definition admits none of it, but works can come from elsewhere.
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

// compareApplied leaves it to the server to bring the object in line. Whether
// there is anything to send is found out from what the server wrote down about
// our last apply: see books. An object that the server completes or writes in
// another way than the manifest looks different for ever; it is sent once, and
// after that what came out is remembered.
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
		s.Action = Update // and what is to be sent then shows afterwards
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

// applied is the manifest as it is applied: as it was given, owner references
// included, without what belongs to the server.
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

// dropEmptyTimes removes the creation timestamps without a value that encoders
// of Go types write into metadata, also into that of templates: the server would
// take them for a wish.
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

// leaveAlone turns what is to be applied into what leaves the ignored fields
// alone: those of OnSpokePresent once the object exists, those of OnSpokeChange
// while the manifest is the one that was applied last, which an annotation on the
// object tells. Everything else is kept in line all the time.
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
		if s.Live.GetAnnotations()[specHashAnnotation] == hash || s.known.Same(s.Manifest, owner) {
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

// withoutManagedFields is an object without its managedFields; the rest is shared.
func withoutManagedFields(o *unstructured.Unstructured) map[string]any {
	c := maps.Clone(o.Object)
	if m, ok := c["metadata"].(map[string]any); ok {
		m = maps.Clone(m)
		delete(m, "managedFields")
		c["metadata"] = m
	}
	return c
}

// anonymous is what of a body is entered in managedFields; the rest is shared.
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

// configHash identifies a manifest in the annotation. It is the hash that OCM's
// agent writes, so that its objects are taken over without writing them: MD5,
// which protects nothing here, of Go's rendering of the manifest.
func configHash(manifest any) string {
	o, _ := manifest.(map[string]any)
	sum := md5.Sum([]byte(fmt.Sprintf("%v", &unstructured.Unstructured{Object: o}))) //nolint:gosec // see above
	return hex.EncodeToString(sum[:])
}

// appliedDigest identifies what our manager has on an object.
func appliedDigest(o *unstructured.Unstructured, manager string) [sha256.Size]byte {
	mine, _ := readManagedFields(o, manager).own.project(o.Object)
	b, err := json.Marshal(mine)
	if err != nil {
		// Unstructured content came from JSON and can go back.
		panic(fmt.Sprintf("marshal %s: %v", o.GetName(), err))
	}
	return sha256.Sum256(b)
}

// exact is what to apply, on the condition that the object is as it was read.
func (s *Step) exact() *unstructured.Unstructured {
	o := s.body.DeepCopy()
	if o.SetResourceVersion(kubeclient.NoVersion); s.Live != nil {
		o.SetUID(s.Live.GetUID())
		o.SetResourceVersion(s.Live.GetResourceVersion())
	}
	return o
}

// serverSide applies the object and then sees to our owner reference, which is
// not part of what is applied: manifests may have references of their own. The
// object it returns is the latest known; nil if nothing was written.
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
