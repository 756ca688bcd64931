package consistency

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Converged returns nil when everything has arrived:
//
//   - the hub has exactly the works that were written and not deleted;
//   - each cluster holds exactly their objects, with equal counters, and an AppliedManifestWork for each;
//   - each work and its manifest are Applied and Available in the work's generation;
//   - hub-source has nothing to add.
//
// Otherwise the error names some of the differences.
func (w *Works) Converged(ctx context.Context) error {
	var wrong []error
	for _, cluster := range slices.Sorted(maps.Keys(w.Clusters)) {
		d, err := w.differences(ctx, cluster)
		if err != nil {
			return err
		}
		wrong = append(wrong, d...)
	}
	const shown = 5
	if n := len(wrong); n > shown {
		wrong = append(wrong[:shown:shown], fmt.Errorf("and %d more", n-shown))
	}
	return errors.Join(wrong...)
}

// state holds the works on the hub, and the objects and AppliedManifestWorks on one cluster.
type state struct {
	works   map[string]*workv1.ManifestWork
	objects map[string]*corev1.ConfigMap
	applied map[string]bool
}

func (w *Works) state(ctx context.Context, cluster string) (s state, err error) {
	selector := metav1.ListOptions{LabelSelector: Label + "=" + w.Namespace}
	works, err := w.Hub.WorkV1().ManifestWorks(cluster).List(ctx, selector)
	if err != nil {
		return s, err
	}
	objects, err := w.Clusters[cluster].Kube.CoreV1().ConfigMaps(w.Namespace).List(ctx, selector)
	if err != nil {
		return s, err
	}
	applied, err := w.Clusters[cluster].Work.WorkV1().AppliedManifestWorks().List(ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	s = state{works: map[string]*workv1.ManifestWork{}, objects: map[string]*corev1.ConfigMap{}, applied: map[string]bool{}}
	for i := range works.Items {
		s.works[works.Items[i].Name] = &works.Items[i]
	}
	for i := range objects.Items {
		s.objects[objects.Items[i].Name] = &objects.Items[i]
	}
	for _, a := range applied.Items {
		s.applied[a.Spec.ManifestWorkName] = true
	}
	return s, nil
}

// differences returns the differences on one cluster and in its namespace on the hub, sorted.
func (w *Works) differences(ctx context.Context, cluster string) (wrong []error, err error) {
	s, err := w.state(ctx, cluster)
	if err != nil {
		return nil, err
	}
	live, deleted := w.History.wants()
	differ := func(k Key, what string) {
		wrong = append(wrong, fmt.Errorf("%s: %s; %s", k, what, strings.Join(w.History.history(k), ", ")))
	}
	for k, want := range live {
		if k.Cluster != cluster {
			continue
		}
		if what := s.differs(k.Name, want); what != "" {
			differ(k, what)
		}
		delete(s.works, k.Name)
		delete(s.objects, k.Name)
	}
	for name, work := range s.works {
		differ(Key{cluster, name}, "the work is still on the hub, status "+Status(work))
	}
	for name := range s.objects {
		differ(Key{cluster, name}, "the object is still on the cluster")
	}
	for k, want := range deleted {
		switch {
		case k.Cluster != cluster:
		case s.applied[k.Name]:
			differ(k, "its AppliedManifestWork is still on the cluster")
		case want.present:
			differ(k, "the watch has not seen it go")
		}
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return wrong, nil
}

// differs describes the first error of a live work. It returns "" if there is none.
func (s state) differs(name string, want want) string {
	work, object := s.works[name], s.objects[name]
	counter := fmt.Sprint(want.counter)
	switch {
	case work == nil:
		return "the work is not on the hub"
	case work.DeletionTimestamp != nil:
		return "the work is being deleted on the hub"
	case counterOf(work) != want.counter:
		return fmt.Sprintf("the hub has %d, want %s", counterOf(work), counter)
	case object == nil:
		return "the object is not on the cluster, the work's status is " + Status(work)
	case object.Data[counterField] != counter:
		return fmt.Sprintf("the cluster has %s, want %s, the work's status is %s", object.Data[counterField], counter, Status(work))
	case object.Data[FixedField] != FixedValue:
		return fmt.Sprintf("%s is %q", FixedField, object.Data[FixedField])
	case !s.applied[name]:
		return "there is no AppliedManifestWork"
	case !want.present || want.seen != want.counter:
		return fmt.Sprintf("the watch saw %d last, want %s", want.seen, counter)
	case !reported(work):
		return fmt.Sprintf("the status of generation %d is %s", work.Generation, Status(work))
	}
	return ""
}

// reported reports whether the status has exactly the expected conditions and one manifest.
func reported(work *workv1.ManifestWork) bool {
	manifests := work.Status.ResourceStatus.Manifests
	if len(work.Status.Conditions) != 3 || len(manifests) != 1 || manifests[0].ResourceMeta.Name != work.Name {
		return false
	}
	for _, typ := range []string{workv1.WorkApplied, workv1.WorkAvailable, "Delivered"} {
		c := meta.FindStatusCondition(work.Status.Conditions, typ)
		if c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != work.Generation {
			return false
		}
	}
	return meta.IsStatusConditionTrue(manifests[0].Conditions, workv1.ManifestApplied) &&
		meta.IsStatusConditionTrue(manifests[0].Conditions, workv1.ManifestAvailable)
}

// Status returns a short text of a work's status, for messages.
func Status(work *workv1.ManifestWork) string {
	var b strings.Builder
	for _, c := range work.Status.Conditions {
		fmt.Fprintf(&b, "%s=%s (%s, generation %d) ", c.Type, c.Status, c.Reason, c.ObservedGeneration)
	}
	fmt.Fprintf(&b, "%d manifests", len(work.Status.ResourceStatus.Manifests))
	return b.String()
}
