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

// Resource is the plural name of what is checked, in the API group
// work.open-cluster-management.io.
const Resource = "manifestworks"

// Rules say what a ManifestWork has to keep to.
type Rules struct {
	// ManifestLimit is the most that the manifests of a work may count together,
	// as manifestwork.ManifestsSize counts them: 1 to
	// manifestwork.MaxManifestsSize. Agents take no more than that.
	ManifestLimit int
	// CheckNilExecutor asks whether a user may create works without an executor,
	// too. Such works run with all rights of the agent.
	CheckNilExecutor bool
	// CleansUp: completed works are deleted when their time is over. Where they
	// are not, somebody who asks for it gets a warning.
	CleansUp bool
}

// Answer is what is decided about one request.
type Answer struct {
	// Problem is why the work is refused, "" when nothing is wrong with it.
	Problem string
	// Executor is what the hub has to be asked before the work is admitted; nil
	// when nothing is left to ask.
	Executor *Executor
	// Warnings are for the person who sent the request, refused or not.
	Warnings []string
}

// Check looks at one request. What is neither created nor updated is admitted
// unseen, and so is a status.
func (r Rules) Check(req *admissionv1.AdmissionRequest) Answer {
	if req.Operation != admissionv1.Create && req.Operation != admissionv1.Update || req.SubResource != "" {
		return Answer{}
	}
	if req.Resource.Group != workv1.GroupName || req.Resource.Resource != Resource {
		return Answer{Problem: fmt.Sprintf("this webhook checks %s.%s, and was asked about %s.%s: correct the rules of its ValidatingWebhookConfiguration",
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

// check looks at a work; old is nil when it is new. A change that leaves the
// manifests alone is not held against them: works that were there before their
// rule must be able to lose their finalizer.
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

// ttlWarning tells somebody who sets a time to live that nobody looks at it.
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

// ValidateLimit returns why a limit cannot be used as Rules.ManifestLimit.
func ValidateLimit(bytes int) error {
	if bytes < 1 || bytes > manifestwork.MaxManifestsSize {
		return fmt.Errorf("%d bytes: use 1 to %d, which is the most that agents take", bytes, manifestwork.MaxManifestsSize)
	}
	return nil
}
