package clustertest

import (
	"context"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// change is one entry of the cluster's history.
type change struct {
	version int64
	ref     kubeclient.Ref
	typ     watch.EventType
	meta    metav1.PartialObjectMetadata
}

// record adds a change to the history and notifies the watches. o is nil, and old the last state, if the object
// is gone.
func (f *Fake) record(ref kubeclient.Ref, old, o *unstructured.Unstructured) {
	c := change{version: f.counter, ref: ref, typ: watch.Deleted}
	state := old
	if o != nil {
		state, c.typ = o, watch.Modified
		if old == nil {
			c.typ = watch.Added
		}
	}
	c.meta = metadataOf(state)
	if o == nil {
		c.meta.ResourceVersion = strconv.FormatInt(f.counter, 10)
	}
	f.history = append(f.history, c)
	for _, w := range f.watches {
		w.offer(c)
	}
	if f.Changed != nil {
		if o != nil {
			o = o.DeepCopy()
		}
		f.Changed(ref, o)
	}
}

func metadataOf(o *unstructured.Unstructured) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(), Generation: o.GetGeneration(),
		Labels: o.GetLabels(), Annotations: o.GetAnnotations(), OwnerReferences: o.GetOwnerReferences(), Finalizers: o.GetFinalizers(),
		DeletionTimestamp: o.GetDeletionTimestamp(),
	}}
}

// Metadata is the Source of drift.Config.
func (f *Fake) Metadata(s drift.Scope) drift.Source { return source{f, s} }

type source struct {
	f     *Fake
	scope drift.Scope
}

func (s source) covers(ref kubeclient.Ref) bool {
	return ref.GroupVersionResource == s.scope.GroupVersionResource && (s.scope.Namespace == "" || ref.Namespace == s.scope.Namespace)
}

// List implements drift.Source.
func (s source) List(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if err := s.f.enter(Call{"list", kubeclient.Ref{GroupVersionResource: s.scope.GroupVersionResource, Namespace: s.scope.Namespace}}); err != nil {
		return nil, err
	}
	l := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(s.f.counter, 10)}}
	for _, ref := range s.f.refs() {
		if s.covers(ref) {
			l.Items = append(l.Items, metadataOf(s.f.objects[keyOf(ref)]))
		}
	}
	return l, nil
}

// Watch implements drift.Source.
func (s source) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	since, err := strconv.ParseInt(o.ResourceVersion, 10, 64)
	if err != nil {
		return nil, err
	}
	w := &stream{RaceFreeFakeWatcher: watch.NewRaceFreeFake(), source: s}
	for _, c := range s.f.history {
		if c.version > since {
			w.offer(c)
		}
	}
	s.f.watches = append(s.f.watches, w)
	return w, nil
}

// stream is a running watch.
type stream struct {
	*watch.RaceFreeFakeWatcher
	source
}

func (w *stream) offer(c change) {
	if w.covers(c.ref) {
		w.Action(c.typ, c.meta.DeepCopy())
	}
}

// Stop implements watch.Interface.
func (w *stream) Stop() {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.f.watches = slices.DeleteFunc(w.f.watches, func(o *stream) bool { return o == w })
	w.RaceFreeFakeWatcher.Stop()
}
