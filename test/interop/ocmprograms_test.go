package interop

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// ocmAgent is a running OCM agent. The test does the work of the controllers that a real OCM agent has.
type ocmAgent struct {
	*program
	cluster string
}

// works returns the works of the agent, by resource id.
func (a *ocmAgent) works() map[string]workv1.ManifestWork {
	a.t.Helper()
	held := map[string]workv1.ManifestWork{}
	for _, w := range a.do(command{Do: "list"}).Works {
		held[string(w.UID)] = w
	}
	return held
}

// patch patches a work as the agent's controllers do. It repeats the patch if an event, or the informer, was
// faster.
func (a *ocmAgent) patch(name string, status bool, patch any) {
	a.t.Helper()
	b, err := json.Marshal(patch)
	if err != nil {
		a.t.Fatal(err)
	}
	eventually(a.t, "a patch without conflict", func() bool {
		l := a.try(command{Do: "patch", Name: name, Status: status, Patch: b})
		switch metav1.StatusReason(l.Reason) {
		case metav1.StatusReasonConflict, metav1.StatusReasonNotFound:
			return false
		}
		if l.Error != "" {
			a.t.Fatalf("patch of %s: %s", name, l.Error)
		}
		return true
	})
}

// report reports a status of a work with one condition, Applied, and this message.
func (a *ocmAgent) report(name, message string) {
	a.t.Helper()
	status := workv1.ManifestWorkStatus{Conditions: []metav1.Condition{applied(message)}}
	a.patch(name, true, map[string]any{"status": status})
}

// finalizers sets a work's finalizers. A deleted work without finalizers is reported as gone.
func (a *ocmAgent) finalizers(name string, finalizers ...string) {
	a.t.Helper()
	a.patch(name, false, map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
}

// awaitAdded waits until the agent's informer has the work.
func (a *ocmAgent) awaitAdded(id string) workv1.ManifestWork {
	a.t.Helper()
	return *a.await(a.t, 0, "work "+id, ofID("added", id)).Work
}

// ocmSource is a running OCM source.
type ocmSource struct{ *program }

// create creates a work and returns its resource id once the source has the work in its cache. Without it the
// source could not change the work.
func (s *ocmSource) create(w *workv1.ManifestWork) string {
	s.t.Helper()
	from := s.position()
	id := string(s.do(command{Do: "create", Namespace: w.Namespace, Work: w}).Work.UID)
	s.await(s.t, from, "the work in the cache", ofID("added", id))
	return id
}

// update changes version and manifest of a work. It returns when the source has them in its cache, because a
// deletion uses the version in the cache.
func (s *ocmSource) update(w *workv1.ManifestWork) {
	s.t.Helper()
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": w.Annotations}, "spec": w.Spec})
	if err != nil {
		s.t.Fatal(err)
	}
	from := s.position()
	id := string(s.do(command{Do: "patch", Namespace: w.Namespace, Name: w.Name, Patch: b}).Work.UID)
	s.await(s.t, from, "the version in the cache", func(l outputLine) bool { return ofID("modified", id)(l) && l.Work.Generation == w.Generation })
}

func (s *ocmSource) remove(cluster, name string) {
	s.t.Helper()
	s.do(command{Do: "delete", Namespace: cluster, Name: name})
}

// works returns the works in the source's cache, by resource id.
func (s *ocmSource) works() map[string]workv1.ManifestWork {
	s.t.Helper()
	held := map[string]workv1.ManifestWork{}
	for _, w := range s.do(command{Do: "list"}).Works {
		held[string(w.UID)] = w
	}
	return held
}

// awaitStatus waits until the source's informer shows the work with a condition Applied and this message.
func (s *ocmSource) awaitStatus(t testing.TB, id, message string) workv1.ManifestWork {
	t.Helper()
	return *s.await(t, 0, "status "+message, func(l outputLine) bool {
		return ofID("modified", id)(l) && appliedMessage(l.Work.Status) == message
	}).Work
}

// ocmBroker is a running OCM broker.
type ocmBroker struct {
	*program
	addr string
}
