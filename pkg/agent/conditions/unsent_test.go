package conditions_test

import (
	"errors"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

// A request that was not sent changes no condition of the manifest and of the work. The results of other
// manifests are reported.
func TestNext_UnsentEventChangesNothing(t *testing.T) {
	a, b := configMap(0, "a"), configMap(1, "b")
	before := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(a), present(b)}, t0)
	unsent := conditions.Manifest{Meta: b, ApplyErr: errors.New("others first"), Unsent: true, ReadErr: errors.New("others first")}
	now, _ := later(time.Minute)

	got := conditions.Next(before, 2, []conditions.Manifest{present(a), unsent}, now)
	diff(t, before.Conditions, got.Conditions)
	diff(t, before.ResourceStatus.Manifests[1], got.ResourceStatus.Manifests[1])
	if c := apimeta.FindStatusCondition(got.ResourceStatus.Manifests[0].Conditions, workv1.ManifestApplied); c.ObservedGeneration != 2 {
		t.Errorf("the other manifest: %+v", c)
	}

	absent := unsent
	absent.Presence, absent.ReadErr = conditions.Absent, nil // it was read, but the write was not sent
	got = conditions.Next(before, 2, []conditions.Manifest{present(a), absent}, now)
	diff(t, "True False", summary(got, "Applied")+" "+summary(got, "Available"))

	failed := present(a)
	failed.ApplyErr = errors.New("boom")
	got = conditions.Next(before, 2, []conditions.Manifest{failed, unsent}, now)
	diff(t, "False True", summary(got, "Applied")+" "+summary(got, "Available"))

	got = conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(a), unsent}, now)
	if len(got.Conditions) != 0 || len(got.ResourceStatus.Manifests) != 1 {
		t.Errorf("of a work that was never seen whole: %+v", got)
	}
}

func summary(s workv1.ManifestWorkStatus, typ string) string {
	c := apimeta.FindStatusCondition(s.Conditions, typ)
	if c == nil {
		return "none"
	}
	return string(c.Status)
}
