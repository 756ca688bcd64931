package appliedwork

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Annotations of an AppliedManifestWork of a Hawser agent about its work. An AppliedManifestWork without them
// was created by another agent.
const (
	// AnnotationSource is the source that owns the work.
	AnnotationSource = "hawser.dev/source"
	// AnnotationWorkID is the resource id of the work.
	AnnotationWorkID = "hawser.dev/work-id"
	// AnnotationVersion is the version of the last spec that was acted upon.
	AnnotationVersion = "hawser.dev/applied-version"
	// AnnotationTag is the tag of that spec.
	AnnotationTag = "hawser.dev/applied-tag"
)

// MaxWorkName is the longest length of a work name that fits into the name of an AppliedManifestWork.
const MaxWorkName = 253 - sha256.Size*2 - 1

// ErrWorkName is the error for a work with a longer name.
var ErrWorkName = errors.New("the name of the work does not fit into the name of an AppliedManifestWork")

// ErrChanged is the error for an AppliedManifestWork that differs from the agent's write.
var ErrChanged = errors.New("an admission webhook or policy of the cluster modifies the agent's writes: the finalizer or the list of objects is not as written")

// Resource is the resource of AppliedManifestWorks.
var Resource = schema.GroupVersionResource{Group: workv1.GroupName, Version: workv1.GroupVersion.Version, Resource: "appliedmanifestworks"}

// HubHash returns the hash of a hub's identity, as used in names.
func HubHash(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return hex.EncodeToString(sum[:])
}

// Name returns the name of the AppliedManifestWork of a work.
func Name(hubHash, workName string) string { return hubHash + "-" + workName }

// Ref names an AppliedManifestWork.
func Ref(name string) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: Resource, Name: name}
}

// Origin names the work and the spec of a record.
type Origin struct {
	Source, WorkID string
	Version        int64
	Tag            string
}

func (o Origin) annotations() map[string]string {
	return map[string]string{
		AnnotationSource: o.Source, AnnotationWorkID: o.WorkID, AnnotationVersion: strconv.FormatInt(o.Version, 10), AnnotationTag: o.Tag,
	}
}

// Record is one AppliedManifestWork as last read or written. It is immutable.
type Record struct{ object workv1.AppliedManifestWork }

// Owner returns the identity of the record as an owner of objects.
func (r *Record) Owner() apply.Owner { return apply.Owner{Name: r.object.Name, UID: r.object.UID} }

// Metadata returns the metadata of the object; it must not be modified.
func (r *Record) Metadata() metav1.Object { return &r.object.ObjectMeta }

// Deleting reports whether the record is being deleted; it is removed after its objects.
func (r *Record) Deleting() bool { return r.object.DeletionTimestamp != nil }

// HasFinalizer reports whether the record has our finalizer.
func (r *Record) HasFinalizer() bool {
	return slices.Contains(r.object.Finalizers, workv1.AppliedManifestWorkFinalizer)
}

// AgentID returns the id of the agent that manages the record.
func (r *Record) AgentID() string { return r.object.Spec.AgentID }

// WorkID returns the resource id of the record's work; "" if another agent created the record.
func (r *Record) WorkID() string { return r.object.Annotations[AnnotationWorkID] }

// Origin returns the record's work and spec; ok is false if no Hawser agent wrote them.
func (r *Record) Origin() (o Origin, ok bool) {
	a := r.object.Annotations
	version, err := strconv.ParseInt(a[AnnotationVersion], 10, 64)
	o = Origin{Source: a[AnnotationSource], WorkID: a[AnnotationWorkID], Version: version, Tag: a[AnnotationTag]}
	return o, err == nil && o.WorkID != ""
}

// EvictionStart returns when the grace period of the record began; zero if none runs.
func (r *Record) EvictionStart() time.Time {
	if r.object.Status.EvictionStartTime == nil {
		return time.Time{}
	}
	return r.object.Status.EvictionStartTime.Time
}

// Entries returns a copy of the list.
func (r *Record) Entries() []Entry { return slices.Clone(r.object.Status.AppliedResources) }

// Store reads and writes AppliedManifestWorks. Every write is conditional on the read state; a Conflict means
// that another client wrote.
type Store struct {
	Objects          kubeclient.Objects
	HubHash, AgentID string
	// Wrote is called with each written record. May be nil.
	Wrote func(*Record)
}

// Load reads a record; nil if it does not exist.
func (s Store) Load(ctx context.Context, name string) (*Record, error) {
	o, err := s.Objects.Get(ctx, Ref(name))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return recordOf(o, err)
}

// Create creates the record of a work. labels are those of the work.
func (s Store) Create(ctx context.Context, workName string, labels map[string]string, origin Origin) (*Record, error) {
	if len(workName) > MaxWorkName {
		return nil, fmt.Errorf("%w: it has %d characters, use at most %d", ErrWorkName, len(workName), MaxWorkName)
	}
	o := workv1.AppliedManifestWork{
		TypeMeta: metav1.TypeMeta{APIVersion: workv1.GroupVersion.String(), Kind: "AppliedManifestWork"},
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(s.HubHash, workName), Labels: labels, Annotations: origin.annotations(), Finalizers: []string{workv1.AppliedManifestWorkFinalizer},
		},
		Spec: workv1.AppliedManifestWorkSpec{HubHash: s.HubHash, AgentID: s.AgentID, ManifestWorkName: workName},
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&o)
	if err != nil {
		return nil, err
	}
	return held(s.wrote(recordOf(s.Objects.Create(ctx, Resource, &unstructured.Unstructured{Object: m}))))
}

// held returns a record that has our finalizer after the write that set it; otherwise an error.
//
// Scenario:
//
//	t1: a webhook removes the finalizer.
//	t2: the work is deleted; the record is gone at once, and the deletion is confirmed.
//	t3: the objects still exist, if the garbage collector does not remove them.
//
// Result: without the finalizer nothing is created and nothing is confirmed.
func held(r *Record, err error) (*Record, error) {
	if err == nil && !r.HasFinalizer() {
		return nil, fmt.Errorf("AppliedManifestWork %s: %w", r.object.Name, ErrChanged)
	}
	return r, err
}

// Claim sets our agent id and the origin of this spec in the record, and adds the labels of the work; other
// labels stay. It writes only if something differs.
func (s Store) Claim(ctx context.Context, r *Record, labels map[string]string, origin Origin) (*Record, error) {
	meta := map[string]any{}
	if !r.HasFinalizer() {
		meta["finalizers"] = append(slices.Clone(r.object.Finalizers), workv1.AppliedManifestWorkFinalizer)
	}
	if news := missing(r.object.Labels, labels); len(news) > 0 {
		meta["labels"] = news
	}
	if news := missing(r.object.Annotations, origin.annotations()); len(news) > 0 {
		meta["annotations"] = news
	}
	patch := map[string]any{}
	if r.object.Spec.AgentID != s.AgentID {
		patch["spec"] = map[string]any{"agentID": s.AgentID}
	}
	if len(meta) == 0 && len(patch) == 0 {
		return r, nil
	}
	return held(s.patch(ctx, r, meta, patch, ""))
}

// missing returns the part of want that is not in have.
func missing(have, want map[string]string) map[string]string {
	news := map[string]string{}
	for k, v := range want {
		if old, has := have[k]; !has || old != v {
			news[k] = v
		}
	}
	return news
}

// AddFinalizer sets our finalizer on the record, so that its deletion waits for its objects.
func (s Store) AddFinalizer(ctx context.Context, r *Record) (*Record, error) {
	if r.HasFinalizer() {
		return r, nil
	}
	return held(s.patch(ctx, r, map[string]any{"finalizers": append(slices.Clone(r.object.Finalizers), workv1.AppliedManifestWorkFinalizer)}, nil, ""))
}

// SetEntries records the list, sorted, if it changed.
func (s Store) SetEntries(ctx context.Context, r *Record, entries []Entry) (*Record, error) {
	entries = Sort(entries)
	if slices.Equal(entries, r.object.Status.AppliedResources) {
		return r, nil
	}
	if entries == nil {
		entries = []Entry{}
	}
	rec, err := s.patch(ctx, r, nil, map[string]any{"status": map[string]any{"appliedResources": entries}}, "status")
	if err == nil && !slices.Equal(entries, rec.object.Status.AppliedResources) {
		return nil, fmt.Errorf("AppliedManifestWork %s: %w", r.object.Name, ErrChanged)
	}
	return rec, err
}

// SetEvictionStart records when the grace period began, in whole seconds; the zero time removes it.
func (s Store) SetEvictionStart(ctx context.Context, r *Record, start time.Time) (*Record, error) {
	start = start.Truncate(time.Second)
	if start.Equal(r.EvictionStart()) {
		return r, nil
	}
	var value any // null removes the field
	if !start.IsZero() {
		value = metav1.NewTime(start)
	}
	return s.patch(ctx, r, nil, map[string]any{"status": map[string]any{"evictionStartTime": value}}, "status")
}

// Delete marks the record for deletion and returns its state afterwards; nil if it is gone.
func (s Store) Delete(ctx context.Context, r *Record) (*Record, error) {
	if err := gone(s.Objects.Delete(ctx, Ref(r.object.Name), r.object.UID)); err != nil {
		return nil, err
	}
	return s.Load(ctx, r.object.Name)
}

// RemoveFinalizer removes our finalizer from a record that is being deleted, and reports whether that removed
// the record.
func (s Store) RemoveFinalizer(ctx context.Context, r *Record) (gone bool, err error) {
	if !r.HasFinalizer() {
		return false, nil
	}
	kept := slices.DeleteFunc(slices.Clone(r.object.Finalizers), func(f string) bool { return f == workv1.AppliedManifestWorkFinalizer })
	var finalizers any // null removes the field
	if len(kept) > 0 {
		finalizers = kept
	}
	if _, err = s.patch(ctx, r, map[string]any{"finalizers": finalizers}, nil, ""); err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	return len(kept) == 0, nil
}

func (s Store) patch(ctx context.Context, r *Record, meta, top map[string]any, subresource string) (*Record, error) {
	// The patch is conditional on the state that was read.
	m := map[string]any{"uid": string(r.object.UID), "resourceVersion": r.object.ResourceVersion}
	maps.Copy(m, meta)
	body := map[string]any{"metadata": m}
	maps.Copy(body, top)
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return s.wrote(recordOf(s.Objects.Patch(ctx, Ref(r.object.Name), b, subresource)))
}

func (s Store) wrote(r *Record, err error) (*Record, error) {
	if err == nil && s.Wrote != nil {
		s.Wrote(r)
	}
	return r, err
}

func recordOf(o *unstructured.Unstructured, err error) (*Record, error) {
	if err != nil {
		return nil, err
	}
	r := &Record{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &r.object); err != nil {
		return nil, fmt.Errorf("AppliedManifestWork %s: %w", o.GetName(), err)
	}
	r.object.ManagedFields = nil // large, and not needed here
	return r, nil
}
