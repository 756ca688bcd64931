package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// Resource is the plural name of the checked resource, in the API group work.open-cluster-management.io.
const Resource = "manifestworks"

// Rules are the rules for ManifestWorks.
type Rules struct {
	// ManifestLimit is the largest total size of the manifests of a work, as manifestwork.ManifestsSize counts it:
	// 1 to manifestwork.MaxManifestsSize. Agents accept no more than that.
	ManifestLimit int
	// CheckNilExecutor also checks whether a user may create works without an executor. Such works run with all
	// rights of the agent.
	CheckNilExecutor bool
	// CleansUp: completed works are deleted after their time to live. If false, a user who sets that time gets a
	// warning.
	CleansUp bool
}

// Answer is the decision about one request.
type Answer struct {
	// Problem is why the work is refused, "" if nothing is wrong with it.
	Problem string
	// Executor is the question to the hub before the work is admitted, nil if there is none.
	Executor *Executor
	// Warnings are for the user who sent the request, refused or not.
	Warnings []string
}

// Check checks one request. It admits a status, and other operations than create and update, without a check.
func (r Rules) Check(req *admissionv1.AdmissionRequest) Answer {
	if req.Operation != admissionv1.Create && req.Operation != admissionv1.Update || req.SubResource != "" {
		return Answer{}
	}
	if req.Resource.Group != workv1.GroupName || req.Resource.Resource != Resource {
		return Answer{Problem: fmt.Sprintf("this webhook checks %s.%s, but the request is about %s.%s: correct the rules of its ValidatingWebhookConfiguration",
			Resource, workv1.GroupName, req.Resource.Resource, req.Resource.Group)}
	}
	work, err := decodeWork(req.Object.Raw)
	if err != nil {
		return Answer{Problem: "the ManifestWork cannot be read: " + err.Error()}
	}
	var old *workv1.ManifestWork
	if req.Operation == admissionv1.Update {
		if old, err = decodeWork(req.OldObject.Raw); err != nil {
			return Answer{Problem: "the ManifestWork as it was before cannot be read: " + err.Error()}
		}
	}
	return r.check(req, work, old)
}

// check checks a work; old is nil for a new one. Unchanged manifests are not checked: a work from before a rule
// must be able to lose its finalizer.
func (r Rules) check(req *admissionv1.AdmissionRequest, work, old *workv1.ManifestWork) Answer {
	var a Answer
	if old == nil || !sameManifests(old, work) {
		objects, problem := r.checkManifests(work)
		if problem != "" {
			return Answer{Problem: problem}
		}
		a.Warnings = warnings(objects)
	}
	if w := r.ttlWarning(work, old); w != "" {
		a.Warnings = append(a.Warnings, w)
	}
	if old == nil || !apiequality.Semantic.DeepEqual(old.Spec.Executor, work.Spec.Executor) {
		a.Executor, a.Problem = r.executor(req, work)
	}
	return a
}

func decodeWork(raw []byte) (*workv1.ManifestWork, error) {
	work := &workv1.ManifestWork{}
	if err := json.Unmarshal(raw, work); err != nil {
		return nil, err
	}
	return work, nil
}

func sameManifests(a, b *workv1.ManifestWork) bool {
	return slices.EqualFunc(a.Spec.Workload.Manifests, b.Spec.Workload.Manifests,
		func(a, b workv1.Manifest) bool { return bytes.Equal(a.Raw, b.Raw) })
}

// ttlWarning returns a warning for a user who sets a time to live on a hub that ignores it.
func (r Rules) ttlWarning(work, old *workv1.ManifestWork) string {
	ttl := func(w *workv1.ManifestWork) *int64 {
		if w == nil || w.Spec.DeleteOption == nil {
			return nil
		}
		return w.Spec.DeleteOption.TTLSecondsAfterFinished
	}
	now := ttl(work)
	if r.CleansUp || now == nil || apiequality.Semantic.DeepEqual(now, ttl(old)) {
		return ""
	}
	return "spec.deleteOption.ttlSecondsAfterFinished has no effect: this hub does not clean up completed works (feature gate CleanUpCompletedManifestWork)"
}

// ValidateLimit returns an error if a limit cannot be used as Rules.ManifestLimit.
func ValidateLimit(bytes int) error {
	if bytes < 1 || bytes > manifestwork.MaxManifestsSize {
		return fmt.Errorf("%d bytes: use 1 to %d, which is the most that agents accept", bytes, manifestwork.MaxManifestsSize)
	}
	return nil
}
