package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

const guardName = "guard.example.com"

// guardConfiguration is the manifest of a webhook on all objects, without a service.
func guardConfiguration(failurePolicy string) string {
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"guard"},"webhooks":[{"name":%q,
		"admissionReviewVersions":["v1"],"sideEffects":"None","failurePolicy":%q,"clientConfig":{"service":{"namespace":"default","name":"none"}},
		"rules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*/*"],"scope":"*"}]}]}`, guardName, failurePolicy)
}

var errGuard = apierrors.NewInternalError(errors.New(`failed calling webhook "` + guardName + `": failed to call webhook: service "none" not found`))

// admits makes the cluster refuse writes, also dry runs, while there is a webhook with failurePolicy Fail. As
// with an API server, writes of the webhook itself are exempt.
func admits(r *rig) {
	fails := false
	reported := r.f.Changed
	r.f.Changed = func(ref ref, o *unstructured.Unstructured) {
		if ref.Resource == "validatingwebhookconfigurations" {
			fails = false
			if o != nil {
				hooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
				fails = len(hooks) > 0 && hooks[0].(map[string]any)["failurePolicy"] == "Fail"
			}
		}
		reported(ref, o)
	}
	r.f.Refuse = func(c clustertest.Call) error {
		if fails && (c.Write() || strings.HasPrefix(c.Verb, "rehearse")) && c.Ref.Group != "admissionregistration.k8s.io" {
			return errGuard
		}
		return nil
	}
}

func (r *rig) guard() *unstructured.Unstructured {
	return r.f.Look(r.f.Ref("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", "guard"))
}

// wantRefused expects that a work is not applied, with a text in the condition of a manifest.
func (r *rig) wantRefused(id string, manifest int, reason, text string) {
	r.t.Helper()
	s := r.statuses[id].Status
	work := condition(s.Conditions, "Applied")
	got := condition(s.ResourceStatus.Manifests[manifest].Conditions, "Applied")
	if work == nil || work.Status != "False" || got == nil || got.Status != "False" || got.Reason != reason || !strings.Contains(got.Message, text) {
		r.t.Fatalf("work %+v\nmanifest %+v\nwant reason %s and %q", work, got, reason, text)
	}
}

func TestCore_WayBackFromAWebhookOnEverything(t *testing.T) {
	for _, way := range []string{"corrected", "manifest dropped", "work deleted", "corrected after a restart", "work deleted after a restart"} {
		t.Run(way, func(t *testing.T) {
			r := newJournaledRig(t)
			admits(r)
			r.apply(hubWork("w-2", "web", 1, configMap("a", "1")))
			r.apply(hubWork("w-1", "guard", 1, configMap("g", "1"), guardConfiguration("Fail")))
			r.settle(time.Minute)
			r.wantRefused("w-1", 1, "AgentWritesRejected", guardName)
			r.apply(hubWork("w-2", "web", 2, configMap("b", "1")))
			r.wantRefused("w-2", 0, "AppliedManifestFailed", `comes from work "guard"`)
			if r.configMap("b") != nil {
				t.Fatal("an object was made without a record")
			}
			if strings.HasSuffix(way, "restart") {
				r.restart()
				r.apply(hubWork("w-2", "web", 2, configMap("b", "1"))) // the broker sends the work again
			}
			switch strings.TrimSuffix(way, " after a restart") {
			case "corrected":
				r.apply(hubWork("w-1", "guard", 2, configMap("g", "1"), configMap("new", "1"), guardConfiguration("Ignore")))
			case "manifest dropped":
				r.apply(hubWork("w-1", "guard", 2, configMap("g", "1")))
			default:
				r.delete(hubWork("w-1", "guard", 2, configMap("g", "1"), guardConfiguration("Fail")))
			}
			r.settle(10 * time.Second) // the other work retries at once, without its back-off
			r.expectStatus("w-2", workApplied, workAvailable)
			r.expectListed("web", "configmaps default/b")
			switch {
			case strings.HasPrefix(way, "work deleted"):
				if !r.statuses["w-1"].Deleted || r.guard() != nil || r.record("guard") != nil || r.configMap("g") != nil {
					t.Fatalf("something is left, status %+v", r.statuses["w-1"])
				}
			case way == "manifest dropped":
				r.expectStatus("w-1", workApplied, workAvailable)
				r.expectListed("guard", "configmaps default/g")
				if r.guard() != nil {
					t.Fatal("the webhook is still there")
				}
			default:
				r.expectStatus("w-1", workApplied, workAvailable)
				r.expectListed("guard", "configmaps default/g", "configmaps default/new", "validatingwebhookconfigurations /guard")
			}
		})
	}
}

// An object that is to outlive its work is not deleted for the recovery, and the work reports why it stays.
func TestCore_WayBackLeavesOrphans(t *testing.T) {
	r := newRig(t)
	admits(r)
	w := hubWork("w-1", "guard", 1, guardConfiguration("Fail"))
	w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	r.apply(w)
	r.delete(w)
	r.settle(time.Minute)
	got := condition(r.statuses["w-1"].Status.Conditions, "Deleting")
	if r.guard() == nil || got == nil || !strings.HasPrefix(got.Message, "webhook failed: ") || got.Reason != "WorkDeletionBlocked" || !strings.Contains(got.Message, guardName) {
		t.Fatalf("condition %+v, webhook %v", got, r.guard())
	}
	r.f.Remove(r.f.Ref("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", "guard"))
	r.settle(10 * time.Minute)
	if !r.statuses["w-1"].Deleted || r.record("guard") != nil {
		t.Fatal("not deleted")
	}
}

// Lasting failures of the record are reported, of any kind; short ones are not.
func TestCore_LastingFailuresOfTheRecordAreReported(t *testing.T) {
	for _, verb := range []string{"create", "patch", "patch status"} {
		r := newRig(t)
		r.apply(hubWork("w-2", "other", 1, configMap("b", "1")))
		r.f.Refuse = func(c clustertest.Call) error {
			if c.Ref.Resource == appliedwork.Resource.Resource && c.Verb == verb {
				return apierrors.NewInternalError(errors.New("etcdserver: no space"))
			}
			return nil
		}
		r.deliver(hubWork("w-1", "web", 1, configMap("a", "1")))
		r.deliver(hubWork("w-2", "other", 2, configMap("c", "1")))
		r.settle(stuckAfter / 2)
		if got := condition(r.statuses["w-1"].Status.Conditions, "Applied"); got != nil && got.Status == "False" {
			t.Fatalf("%s: reported at once: %+v", verb, got)
		}
		r.settle(time.Minute)
		reported := ""
		for _, id := range []string{"w-1", "w-2"} {
			if got := condition(r.statuses[id].Status.Conditions, "Applied"); got != nil && got.Status == "False" {
				reported += got.Message
			}
		}
		if !strings.Contains(reported, "no space") {
			t.Fatalf("%s: got %q", verb, reported)
		}
		r.f.Refuse = nil
		r.settle(10 * time.Minute)
		r.expectStatus("w-1", workApplied, workAvailable)
		r.expectStatus("w-2", workApplied, workAvailable)
	}
}

// stripping is a cluster that removes the finalizers of the agent's records, as a mutating webhook can.
type stripping struct {
	*clustertest.Fake
	on bool
}

func (s *stripping) strip(o *unstructured.Unstructured, err error) (*unstructured.Unstructured, error) {
	if err != nil || !s.on || o.GetKind() != "AppliedManifestWork" {
		return o, err
	}
	at := appliedwork.Ref(o.GetName())
	s.Edit(at, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	return s.Look(at), nil
}

func (s *stripping) Create(ctx context.Context, gvr schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return s.strip(s.Fake.Create(ctx, gvr, o))
}

func (s *stripping) Patch(ctx context.Context, at ref, patch []byte, subresource string) (*unstructured.Unstructured, error) {
	return s.strip(s.Fake.Patch(ctx, at, patch, subresource))
}

// A webhook that removes the finalizer is reported, and no deletion is confirmed meanwhile.
func TestCore_FinalizerTakenOffByTheCluster(t *testing.T) {
	r := newRig(t)
	c := &stripping{Fake: r.f}
	r.configure = func(config *CoreConfig) { config.Client = c }
	r.restart()
	r.apply(hubWork("w-1", "web", 1, configMap("a", "1")))
	c.on = true
	r.apply(hubWork("w-2", "new", 1, configMap("b", "1")))
	r.wantRefused("w-2", 0, "AppliedManifestFailed", "modifies the agent's writes")
	if r.configMap("b") != nil {
		t.Fatal("an object was made without the finalizer")
	}
	r.f.Edit(appliedwork.Ref(appliedwork.Name(testHubHash, "web")), func(o *unstructured.Unstructured) { o.SetFinalizers(nil) })
	r.delete(hubWork("w-1", "web", 1, configMap("a", "1")))
	if r.statuses["w-1"].Deleted {
		t.Fatal("deleted, with its objects still there")
	}
	c.on = false
	r.settle(10 * time.Minute)
	r.expectStatus("w-2", workApplied, workAvailable)
	if !r.statuses["w-1"].Deleted || r.configMap("a") != nil {
		t.Fatal("not deleted")
	}
}

// A limited agent only corrects and deletes the objects that may cause the limit.
func TestCore_Limited(t *testing.T) {
	r := newRig(t)
	admits(r)
	r.apply(hubWork("w-2", "web", 1, configMap("a", "1")))
	r.apply(hubWork("w-3", "gone", 1, configMap("c", "1")))
	r.apply(hubWork("w-1", "guard", 1, configMap("g", "1"), guardConfiguration("Fail")))
	r.core.Limit(errGuard)
	r.apply(hubWork("w-1", "guard", 2, configMap("h", "1"), guardConfiguration("Ignore")))
	r.apply(hubWork("w-2", "web", 2, configMap("b", "1")))
	r.delete(hubWork("w-3", "gone", 1, configMap("c", "1")))
	r.settle(time.Minute)
	if r.configMap("a") == nil || r.configMap("b") != nil || r.configMap("c") == nil || r.configMap("g") == nil || r.configMap("h") != nil || r.statuses["w-3"].Deleted {
		t.Fatal("a limited agent did more than to correct the webhook")
	}
	hooks, _, _ := unstructured.NestedSlice(r.guard().Object, "webhooks")
	if hooks[0].(map[string]any)["failurePolicy"] != "Ignore" {
		t.Fatal("the webhook is not corrected")
	}
	r.wantRefused("w-2", 0, "AppliedManifestFailed", "leader lease")
	r.delete(hubWork("w-1", "guard", 2, configMap("g", "1"), guardConfiguration("Fail")))
	if r.guard() != nil || r.configMap("g") == nil {
		t.Fatal("the webhook is to go, and nothing else")
	}
	r.core.Limit(nil)
	r.settle(10 * time.Minute)
	if r.configMap("b") == nil || r.configMap("a") != nil || r.configMap("c") != nil || r.configMap("g") != nil || !r.statuses["w-3"].Deleted || !r.statuses["w-1"].Deleted {
		t.Fatal("it does not go on")
	}
}

// A work that is deleted and created again under its name, corrected, is applied too.
func TestCore_AppliesRecreatedWorkAfterLockout(t *testing.T) {
	r := newRig(t)
	admits(r)
	r.apply(hubWork("w-1", "guard", 1, configMap("g", "1"), guardConfiguration("Fail")))
	r.deliverDeletion(hubWork("w-1", "guard", 1, configMap("g", "1"), guardConfiguration("Fail")))
	r.apply(hubWork("w-9", "guard", 1, configMap("h", "1"), guardConfiguration("Ignore")))
	r.settle(10 * time.Minute)
	r.expectStatus("w-9", workApplied, workAvailable)
	r.expectListed("guard", "configmaps default/h", "validatingwebhookconfigurations /guard")
	if r.configMap("g") != nil || !r.statuses["w-1"].Deleted {
		t.Fatal("the former work is not deleted")
	}
}
