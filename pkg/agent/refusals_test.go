package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

var configMaps = schema.GroupResource{Resource: "configmaps"}

func inDeleted(name string) string {
	return strings.Replace(configMap(name, "1"), `"default"`, `"lost"`, 1)
}

func terminating(name string) error {
	err := apierrors.NewForbidden(configMaps, name, errors.New("unable to create new content in namespace lost because it is being terminated"))
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: "NamespaceTerminating", Field: "metadata.namespace"}}
	return err
}

// A work whose namespace is missing, or is being deleted, is tried once or twice. Then it is left alone until
// the watch shows a change. The record is written once.
func TestCore_RefusedByItsNamespace(t *testing.T) {
	for name, c := range map[string]struct {
		there bool
		err   error
	}{
		"missing":       {false, nil}, // the fake cluster refuses the write itself
		"being deleted": {true, terminating("a")},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ns := clustertest.Object("v1", "Namespace", "", "lost")
			if c.there {
				r.f.Put(ns)
				r.f.Refuse = func(call clustertest.Call) error {
					if call.Verb == "create" && call.Ref.Resource == "configmaps" {
						return c.err
					}
					return nil
				}
			}
			r.apply(hubWork("w-1", "web", 1, inDeleted("a")))
			r.settle(time.Hour)
			if n := len(r.requests()); n > 40 {
				t.Errorf("%d requests in the first hour", n)
			}
			r.expectListed("web", "configmaps lost/a intended")
			before := r.record("web").ResourceVersion
			r.settle(24 * time.Hour)
			if n := len(r.requests()); n > 24*5 {
				t.Errorf("%d requests in a day", n)
			}
			if after := r.record("web").ResourceVersion; after != before {
				t.Errorf("the record was written: version %s became %s", before, after)
			}
			r.f.Refuse = nil
			if c.there {
				r.f.Remove(r.f.Ref("v1", "Namespace", "", "lost"))
				r.settle(2 * time.Second)
			}
			r.f.Put(ns)
			r.settle(time.Second)
			r.expectStatus("w-1", workApplied, workAvailable)
			r.expectListed("web", "configmaps lost/a")
			r.delete(hubWork("w-1", "web", 1, inDeleted("a")))
			r.expectStatus("w-1", workApplied, workAvailable, workDeleting, workDeleted)
		})
	}
}

// A refused create leaves no entry that would block the deletion of its work.
func TestCore_RefusedWorkIsDeleted(t *testing.T) {
	r := newRig(t)
	w := hubWork("w-1", "web", 1, inDeleted("a"))
	r.apply(w)
	r.settle(time.Minute)
	r.delete(w)
	if !r.statuses["w-1"].Deleted || r.record("web") != nil {
		t.Errorf("deleted: %t, record %v", r.statuses["w-1"].Deleted, r.record("web"))
	}
}

// A write that a policy denies is retried every few minutes, and as soon as policies change.
func TestCore_DeniedByAPolicy(t *testing.T) {
	policy := "ValidatingAdmissionPolicy 'deny' with binding 'deny' denied request: not here"
	for name, err := range map[string]error{
		"403":              apierrors.NewForbidden(configMaps, "a", errors.New("denied by policy")),
		"422 of a policy":  invalid("configmaps \"a\" is forbidden: " + policy),
		"422 of a webhook": invalid(`admission webhook "a.example.com" denied the request: not here`),
		"400 of a webhook": apierrors.NewBadRequest(`admission webhook "a.example.com" denied the request: not here`),
	} {
		t.Run(name, func(t *testing.T) { deniedByAPolicy(t, err) })
	}
}

// invalid is the server's answer to a policy violation if the policy sets no reason.
func invalid(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid, Message: text}}
}

func deniedByAPolicy(t *testing.T, err error) {
	r := newRig(t)
	watched := &roles{}
	r.configure = func(c *CoreConfig) { c.Policies = watched }
	r.restart()
	denies := true
	r.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "create" && c.Ref.Resource == "configmaps" && denies {
			return err
		}
		return nil
	}
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	r.settle(time.Hour)
	if n := r.writes("configmaps"); n < 12 || n > 30 {
		t.Errorf("%d tries in the first hour", n)
	}
	r.f.TakeCalls()
	changed := func() {
		keys, after := r.core.PoliciesChanged()
		for _, key := range keys {
			r.wakeAt(key, r.now.Add(after))
		}
	}
	changed() // something else changed
	r.settle(10 * time.Second)
	if n := r.writes("configmaps"); n < 1 || n > 5 {
		t.Errorf("%d tries after policies changed", n)
	}
	denies = false
	changed()
	r.settle(10 * time.Second)
	r.expectStatus("w-1", workApplied, workAvailable)
}
