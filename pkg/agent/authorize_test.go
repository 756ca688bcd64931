package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

const rbacV1 = "rbac.authorization.k8s.io/v1"

// roles is a Roles that notices every change, or none if it is blind.
type roles struct{ blind, needed bool }

func (w *roles) StartWatch()   { w.needed = true }
func (w *roles) Watched() bool { return w.needed && !w.blind }

// newExecutorRig has an agent that watches roles.
func newExecutorRig(t *testing.T, keep bool) (*rig, *roles) {
	r, w := newRig(t), &roles{}
	r.configure = func(c *CoreConfig) { c.Roles, c.KeepPermits = w, keep }
	r.restart()
	objects := r.f.Changed
	r.f.Changed = func(ref kubeclient.Ref, o *unstructured.Unstructured) {
		objects(ref, o)
		if ref.Group == "rbac.authorization.k8s.io" && w.Watched() {
			r.rolesChanged()
		}
	}
	return r, w
}

func (r *rig) rolesChanged() {
	keys, after := r.core.RolesChanged()
	for _, key := range keys {
		r.wakeAt(key, r.now.Add(after))
	}
}

// as gives a work the executor default/deployer.
func as(w *workv1.ManifestWork) *workv1.ManifestWork {
	w.Spec.Executor = &workv1.ManifestWorkExecutor{Subject: workv1.ManifestWorkExecutorSubject{
		Type: workv1.ExecutorSubjectTypeServiceAccount, ServiceAccount: &workv1.ManifestWorkSubjectServiceAccount{Namespace: "default", Name: "deployer"},
	}}
	return w
}

const everyVerb = "create update patch get delete"

// grant allows default/deployer the verbs on a resource in namespace default.
func (r *rig) grant(name, group, resource, verbs string) {
	list := func(s string) (l []any) {
		for _, v := range strings.Fields(s) {
			l = append(l, v)
		}
		return l
	}
	r.f.Put(clustertest.Object(rbacV1, "Role", "default", name, "rules", []any{
		map[string]any{"apiGroups": []any{group}, "resources": list(resource), "verbs": list(verbs)},
	}))
	r.f.Put(clustertest.Object(rbacV1, "RoleBinding", "default", name,
		"roleRef", map[string]any{"kind": "Role", "name": name},
		"subjects", []any{map[string]any{"kind": "ServiceAccount", "namespace": "default", "name": "deployer"}},
	))
}

func (r *rig) revoke(name string) { r.f.Remove(r.f.Ref(rbacV1, "RoleBinding", "default", name)) }

// reviews returns the number of access reviews since the last call.
func (r *rig) reviews() (n int) {
	for _, c := range r.f.TakeCalls() {
		if strings.HasPrefix(c.Verb, "review ") {
			n++
		}
	}
	return n
}

func deniedApply(resource, name string) string {
	return "Applied=False/AppliedManifestFailed: Failed to apply manifest: not allowed to apply the resource " + resource + ", default " + name + ", will try again in 1m0s"
}

func TestExecutor_SkipsDeniedManifestsAndAppliesOthers(t *testing.T) {
	r, _ := newExecutorRig(t, false)
	r.grant("maps", "", "configmaps", everyVerb)
	r.f.Put(clustertest.Object("apps/v1", "Deployment", "default", "foreign"))
	r.apply(as(hubWork("1", "w", 1, configMap("a", "1"), deployment("d", "x"), deployment("foreign", "x"))))
	r.expectStatus("1", workFailed, "Available=False/ResourcesNotAvailable: 1 of 3 resources are not available")
	r.expectManifest("1", 0, manifestApplied, resourceThere, noFeedback)
	r.expectManifest("1", 1, deniedApply("apps deployments", "d"), resourceNotThere)
	r.expectManifest("1", 2, deniedApply("apps deployments", "foreign"), resourceThere, noFeedback)
	foreign := r.f.Look(r.ref("Deployment", "foreign"))
	if len(foreign.GetOwnerReferences()) != 0 || foreign.Object["spec"].(map[string]any)["template"] != nil {
		t.Errorf("an object that the executor may not touch was written: %v", foreign.Object)
	}
	r.delete(as(hubWork("1", "w", 1)))
	if r.f.Look(r.ref("Deployment", "foreign")) == nil || r.configMap("a") != nil {
		t.Error("the end of the work must delete its applied objects only")
	}
}

func TestExecutor_DenialIsTriedAgainEveryMinuteWithoutBackOff(t *testing.T) {
	r, w := newExecutorRig(t, false)
	w.blind = true
	r.apply(as(hubWork("1", "w", 1, configMap("a", "1"))))
	r.reviews()
	for range 3 {
		r.settle(time.Minute)
		if n := r.reviews(); n != 5 {
			t.Fatalf("%d questions in a minute, want the five verbs once", n)
		}
		if err := r.lastErr[testHubHash+"-w"]; err != nil {
			t.Fatalf("a denial is no failure: %v", err)
		}
	}
	r.grant("maps", "", "configmaps", everyVerb)
	r.settle(time.Minute)
	r.expectStatus("1", workApplied, workAvailable)
}

func TestExecutor_RolesAreWatched(t *testing.T) {
	for _, keep := range []bool{false, true} {
		r, w := newExecutorRig(t, keep)
		r.apply(hubWork("0", "simple", 1, configMap("simple", "1")))
		if w.needed {
			t.Fatal("roles are watched although no work needs it")
		}
		r.apply(as(hubWork("1", "w", 1, configMap("a", "1"))))
		r.expectManifest("1", 0, deniedApply(" configmaps", "a"), resourceNotThere)
		r.grant("maps", "", "configmaps", everyVerb)
		r.settle(2 * time.Second)
		r.expectStatus("1", workApplied, workAvailable)

		r.settle(2 * rolesDelay) // after rolesDelay each permission is checked once more
		r.reviews()
		r.settle(50 * time.Minute)
		if n := r.reviews(); n != 0 {
			t.Errorf("keep %t: %d reviews without a change", keep, n)
		}
		r.revoke("maps")
		r.settle(2 * time.Second)
		r.expectManifest("1", 0, deniedApply(" configmaps", "a"), resourceThere, noFeedback)
		if r.configMap("a") == nil {
			t.Error("want the objects applied before to stay")
		}
		r.apply(as(hubWork("1", "w", 2, configMap("a", "2"), configMap("b", "2"))))
		if got := r.configMap("a").Object["data"].(map[string]any)["k"]; got != "1" || r.configMap("b") != nil {
			t.Errorf("keep %t: what changed or is new was applied: %v", keep, got)
		}
		r.grant("maps", "", "configmaps", everyVerb)
		r.settle(15 * time.Second)
		r.expectStatus("1", workApplied, workAvailable)
	}
}

// The right may come from a group: no binding names the account.
func TestExecutor_RightsOfGroups(t *testing.T) {
	r, _ := newExecutorRig(t, true)
	r.apply(as(hubWork("1", "w", 1, configMap("a", "1"))))
	r.grant("maps", "", "configmaps", everyVerb)
	bind := r.f.Ref(rbacV1, "RoleBinding", "default", "maps")
	subjects := func(group string) {
		r.f.Edit(bind, func(o *unstructured.Unstructured) {
			o.Object["subjects"] = []any{map[string]any{"kind": "Group", "name": group}}
		})
		r.settle(15 * time.Second)
	}
	subjects("system:serviceaccounts:default")
	r.expectStatus("1", workApplied, workAvailable)
	subjects("system:serviceaccounts:other")
	r.expectStatus("1", workFailed, workAvailable)
}

func TestExecutor_EachWriteIsCheckedUnlessPermitsAreKept(t *testing.T) {
	for keep, want := range map[bool]int{false: 5, true: 0} {
		r, _ := newExecutorRig(t, keep)
		r.grant("maps", "", "configmaps", everyVerb)
		r.apply(as(hubWork("1", "w", 1, configMap("a", "1"))))
		r.rolesChanged() // the watch began when the first executor needed it
		r.settle(15 * time.Second)
		r.reviews()
		r.apply(as(hubWork("1", "w", 2, configMap("a", "2"))))
		if n := r.reviews(); n != want || r.configMap("a").Object["data"].(map[string]any)["k"] != "2" {
			t.Errorf("keep %t: %d questions for a change, want %d", keep, n, want)
		}
		r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "3"} })
		r.settle(time.Second)
		if n := r.reviews(); n != want || r.configMap("a").Object["data"].(map[string]any)["k"] != "2" {
			t.Errorf("keep %t: %d questions for a repair, want %d", keep, n, want)
		}
	}
}

func TestExecutor_PolledWithoutAWatch(t *testing.T) {
	for name, configure := range map[string]func(*CoreConfig){
		"denied":     func(c *CoreConfig) { c.Roles = &roles{blind: true} },
		"none":       func(c *CoreConfig) { c.Roles = nil },
		"kept so":    func(c *CoreConfig) { c.Roles, c.KeepPermits = &roles{blind: true}, true },
		"not needed": func(c *CoreConfig) { c.KeepPermits = true },
	} {
		r := newRig(t)
		r.configure = configure
		r.restart()
		r.grant("maps", "", "configmaps", everyVerb)
		r.apply(as(hubWork("1", "w", 1, configMap("a", "1"))))
		r.expectStatus("1", workApplied, workAvailable)
		r.reviews()
		r.settle(20 * time.Minute)
		if n := r.reviews(); n != 20 {
			t.Errorf("%s: %d questions in 20 minutes, want five every five minutes", name, n)
		}
		r.revoke("maps")
		r.settle(6 * time.Minute)
		r.expectStatus("1", workFailed, workAvailable)
	}
}

func role(name, resource string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"Role","metadata":{"name":%q,"namespace":"default"},"rules":[{"apiGroups":[""],"resources":[%q],"verbs":["get"]}]}`, rbacV1, name, resource)
}

func TestExecutor_GrantsOnlyOwnRights(t *testing.T) {
	r, _ := newExecutorRig(t, true)
	r.grant("roles", "rbac.authorization.k8s.io", "roles rolebindings", everyVerb)
	r.grant("maps", "", "configmaps", everyVerb)
	r.f.Put(clustertest.Object(rbacV1, "Role", "default", "there"))
	r.apply(as(hubWork("1", "w", 1, role("good", "configmaps"), role("bad", "secrets"), role("there", "secrets"))))
	const escalation = "Applied=False/AppliedManifestFailed: Failed to apply manifest: not allowed to apply the resource rbac.authorization.k8s.io roles, default %s, error: permission escalation, will try again in 1m0s"
	r.expectManifest("1", 0, manifestApplied, resourceThere, noFeedback)
	r.expectManifest("1", 1, fmt.Sprintf(escalation, "bad"), resourceNotThere)
	r.expectManifest("1", 2, fmt.Sprintf(escalation, "there"), resourceThere, noFeedback)
	if rules := r.f.Look(r.f.Ref(rbacV1, "Role", "default", "there")).Object["rules"]; rules != nil {
		t.Errorf("a role that is there was given rules that the executor does not have: %v", rules)
	}
	r.settle(15 * time.Second)

	// Each new role gets an escalation check, even if permits are kept.
	r.apply(as(hubWork("1", "w", 2, role("good", "secrets"))))
	r.expectManifest("1", 0, resourceThere, noFeedback, fmt.Sprintf(escalation, "good"))

	r.grant("secrets", "", "secrets", "get")
	r.settle(15 * time.Second)
	r.expectStatus("1", workApplied, workAvailable)
}

// The namespace in the manifest is ignored for a cluster-scoped kind.
func TestExecutor_ChecksCreatedObject(t *testing.T) {
	r, _ := newExecutorRig(t, false)
	r.grant("namespaced", "rbac.authorization.k8s.io", "clusterroles", everyVerb)
	r.apply(as(hubWork("1", "w", 1, fmt.Sprintf(`{"apiVersion":%q,"kind":"ClusterRole","metadata":{"name":"c","namespace":"default"}}`, rbacV1))))
	r.expectManifest("1", 0, "Applied=False/AppliedManifestFailed: Failed to apply manifest: not allowed to apply the resource rbac.authorization.k8s.io clusterroles,  c, will try again in 1m0s", resourceNotThere)
}

func TestExecutor_AnotherExecutorIsAnotherQuestion(t *testing.T) {
	r, _ := newExecutorRig(t, true)
	r.grant("maps", "", "configmaps", everyVerb)
	r.apply(as(hubWork("1", "w", 1, configMap("a", "1"))))
	other := as(hubWork("1", "w", 2, configMap("a", "1")))
	other.Spec.Executor.Subject.ServiceAccount.Name = "intern"
	r.apply(other)
	r.expectStatus("1", workFailed, workAvailable)
	r.reviews()
	r.apply(hubWork("1", "w", 3, configMap("a", "2")))
	r.expectStatus("1", workApplied, workAvailable)
	if n := r.reviews(); n != 0 {
		t.Errorf("%d questions without an executor", n)
	}
}

// An orphan needs no right to delete; an object that is owned later does.
func TestExecutor_ChecksDeletionOfOwnedObjects(t *testing.T) {
	r, _ := newExecutorRig(t, true)
	r.grant("maps", "", "configmaps", "create update patch get")
	w := as(hubWork("1", "w", 1, configMap("a", "1")))
	w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	r.apply(w)
	r.expectStatus("1", workApplied, workAvailable)
	r.apply(as(hubWork("1", "w", 2, configMap("a", "1"))))
	r.expectManifest("1", 0, resourceThere, noFeedback, deniedApply(" configmaps", "a"))
}

// Feedback shows no values that the executor may not read.
func TestExecutor_FeedbackOfUnreadableObject(t *testing.T) {
	for verbs, want := range map[string]string{
		"update": "StatusFeedbackSynced=False/StatusFeedbackSyncFailed: Sync status feedback failed with error the executor is not allowed to get the object",
		"get":    "StatusFeedbackSynced=True/StatusFeedbackSynced: ",
	} {
		r, _ := newExecutorRig(t, false)
		r.grant("maps", "", "configmaps", verbs)
		r.f.Put(clustertest.Object("v1", "ConfigMap", "default", "a", "data", map[string]any{"k": "secret"}))
		w := as(hubWork("1", "w", 1, configMap("a", "1")))
		w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{{
			ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: "a"},
			FeedbackRules:      []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{{Name: "k", Path: ".data.k"}}}},
		}}
		r.apply(w)
		r.expectManifest("1", 0, deniedApply(" configmaps", "a"), resourceThere, want)
		values := r.statuses["1"].Status.ResourceStatus.Manifests[0].StatusFeedbacks.Values
		if reported := len(values) > 0; reported != (verbs == "get") {
			t.Errorf("%s: reported %v", verbs, values)
		}
		r.grant("more", "", "configmaps", everyVerb)
		r.settle(15 * time.Second)
		r.revoke("more")
		r.settle(15 * time.Second)
		r.expectStatus("1", workFailed, workAvailable)
		r.grant("again", "", "configmaps", everyVerb)
		r.settle(15 * time.Second)
		values = r.statuses["1"].Status.ResourceStatus.Manifests[0].StatusFeedbacks.Values
		if len(values) != 1 || *values[0].Value.String != "1" {
			t.Errorf("%s: reported %v when it may be read again", verbs, values)
		}
	}
}

func TestExecutor_MalformedIsPermanent(t *testing.T) {
	r, _ := newExecutorRig(t, false)
	w := as(hubWork("1", "w", 1, configMap("a", "1")))
	w.Spec.Executor.Subject.ServiceAccount = nil
	r.apply(w)
	r.expectManifest("1", 0, "Applied=False/AppliedManifestFailed: Failed to apply manifest: the executor service account is nil", resourceNotThere)
	r.f.TakeCalls()
	r.settle(30 * time.Minute)
	if calls := r.requests(); len(calls) > 0 {
		t.Errorf("only another spec can end this, but: %q", calls)
	}
}

// While the cluster does not answer reviews, applied objects stay, and new manifests are not applied.
func TestExecutor_UnansweredReviews(t *testing.T) {
	r, _ := newExecutorRig(t, false)
	r.grant("maps", "", "configmaps", everyVerb)
	r.apply(as(hubWork("1", "w", 1, configMap("a", "1"))))
	r.rolesChanged()
	r.settle(15 * time.Second)
	r.f.Refuse = func(c clustertest.Call) error {
		if strings.HasPrefix(c.Verb, "review ") {
			return errors.New("away")
		}
		return nil
	}
	r.rolesChanged()
	r.settle(15 * time.Second)
	r.expectStatus("1", workApplied, workAvailable)
	if err := r.lastErr[testHubHash+"-w"]; err == nil || !strings.Contains(err.Error(), "configmaps default/a: check the rights of the executor: away") {
		t.Errorf("got %v, want a new request after a back-off", err)
	}
	r.apply(as(hubWork("1", "w", 2, configMap("a", "1"), configMap("b", "1"))))
	r.expectManifest("1", 0, resourceThere, noFeedback, manifestApplied)
	r.expectManifest("1", 1, "Applied=False/AppliedManifestFailed: Failed to apply manifest: check the rights of the executor: away", resourceNotThere)
	r.f.Refuse = nil
	r.settle(time.Minute)
	r.expectStatus("1", workApplied, workAvailable)
}

func TestRolesChanged_SweepsAreApart(t *testing.T) {
	r, w := newExecutorRig(t, false)
	w.blind = true
	for i := range 200 {
		r.deliver(as(hubWork(fmt.Sprint(i), fmt.Sprintf("w%d", i), 1, configMap("a", "1"))))
	}
	r.settle(time.Second)
	clear(r.due)
	began := r.now
	var sweeps []time.Duration
	for range 100 {
		if keys, after := r.core.RolesChanged(); len(keys) == 200 {
			sweeps = append(sweeps, r.now.Add(after).Sub(began))
		} else if len(keys) != 0 {
			t.Fatalf("%d of 200 keys", len(keys))
		}
		r.now = r.now.Add(time.Second / 2)
	}
	// The first sweeps follow each other quickly. Later sweeps have the interval of an empty bucket.
	if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 41 * time.Second, 81 * time.Second}; !slices.Equal(sweeps, want) {
		t.Errorf("roles that change all the time are looked at after %v, want %v", sweeps, want)
	}
}

// Rights are granted and removed several times in a row. The status shows each change within two seconds.
func TestRolesChanged_EachOfSeveralShowsAtOnce(t *testing.T) {
	r, _ := newExecutorRig(t, false)
	r.apply(as(hubWork("1", "w", 1, configMap("a", "1"))))
	for range 20 {
		r.grant("maps", "", "configmaps", everyVerb)
		r.settle(2 * time.Second)
		r.expectStatus("1", workApplied, workAvailable)
		r.revoke("maps")
		r.settle(2 * time.Second)
		r.expectManifest("1", 0, deniedApply(" configmaps", "a"), resourceThere, noFeedback)
	}
}

// A work that is denied while a check of others is scheduled already is included in that check.
func TestRolesChanged_KeepsLaterWaiters(t *testing.T) {
	r, _ := newExecutorRig(t, false)
	r.apply(as(hubWork("1", "first", 1, configMap("a", "1"))))
	for range mostLooksInARow + 1 { // the bucket is empty, so the last change waits for a token
		r.rolesChanged()
		r.settle(rolePause)
	}
	r.apply(as(hubWork("2", "second", 1, configMap("b", "1"))))
	r.expectManifest("2", 0, deniedApply(" configmaps", "b"), resourceNotThere)
	r.grant("maps", "", "configmaps", everyVerb)
	r.settle(firstSweepWait + rolePause)
	r.expectManifest("1", 0, manifestApplied, resourceThere, noFeedback)
	r.expectManifest("2", 0, manifestApplied, resourceThere, noFeedback)
}

// An answer right after a change may still be based on the roles before it, so it is requested again.
func TestRolesChanged_AnswersOfTheFirstMomentDoNotLast(t *testing.T) {
	for _, keep := range []bool{false, true} {
		r, _ := newExecutorRig(t, keep)
		r.grant("maps", "", "configmaps", everyVerb)
		r.apply(as(hubWork("1", "w", 1, configMap("a", "1"))))
		r.settle(15 * time.Second)
		r.rolesChanged() // the right was removed, but the server does not apply that yet
		r.f.Edit(r.ref("ConfigMap", "a"), func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"k": "2"} })
		r.settle(rolePause / 4)
		r.expectStatus("1", workApplied, workAvailable)
		report := r.f.Changed
		r.f.Changed = nil
		r.revoke("maps")
		r.f.Changed = report
		r.settle(2 * rolePause)
		r.expectStatus("1", workFailed, workAvailable)
	}
}

// missing refuses all requests for a kind, like a server without a role rule for it.
func missing(resource, group string) func(clustertest.Call) error {
	return func(c clustertest.Call) error {
		verb, _, _ := strings.Cut(c.Verb, " ")
		if c.Ref.Resource != resource || verb == "resolve" || verb == "review" {
			return nil
		}
		return apierrors.NewForbidden(c.Ref.GroupResource(), c.Ref.Name, fmt.Errorf("User %q cannot %s resource %q in API group %q in the namespace %q", "agent", verb, resource, group, "default"))
	}
}

func TestForbidden_ReportsMissingRuleAndDetectsGrant(t *testing.T) {
	const server = `deployments.apps "d" is forbidden: User "agent" cannot get resource "deployments" in API group "apps" in the namespace "default"`
	const advice = `; if it is to be allowed, make a ClusterRole on the cluster that has the label open-cluster-management.io/aggregate-to-work: "true" and the rule {apiGroups: ["apps"], resources: ["deployments"], verbs: ["get", "list", "watch", "create", "update", "patch", "delete"]}`
	for _, blind := range []bool{false, true} {
		r, w := newExecutorRig(t, false)
		w.blind = blind
		r.apply(hubWork("1", "w", 1, configMap("old", "1")))
		r.f.Refuse = missing("deployments", "apps")
		r.apply(hubWork("1", "w", 2, deployment("d", "x"), configMap("a", "1")))
		r.expectManifest("1", 0, "Applied=False/AppliedManifestFailed: Failed to apply manifest: "+server+advice, "Available=Unknown/FetchingResourceFailed: Failed to fetch resource: "+server+advice)
		r.expectManifest("1", 1, manifestApplied, resourceThere, noFeedback)
		if r.configMap("old") != nil {
			t.Error("one object that may not be read must not keep others from being removed")
		}
		if err := r.lastErr[testHubHash+"-w"]; err != nil || !w.needed {
			t.Errorf("got %v, roles watched: %t; want to be woken by a change of roles", err, w.needed)
		}
		r.f.Refuse = nil
		within := time.Minute
		if !blind {
			r.f.Put(clustertest.Object(rbacV1, "ClusterRole", "", "deployments"))
			within = 2 * time.Second
		}
		r.settle(within)
		r.expectStatus("1", workApplied, workAvailable)
	}
}

// An object that the agent may neither create nor read does not block the deletion of its work.
func TestForbidden_WorkCanBeDeleted(t *testing.T) {
	r, _ := newExecutorRig(t, false)
	r.f.Refuse = missing("deployments", "apps")
	r.apply(hubWork("1", "w", 1, deployment("d", "x"), configMap("a", "1")))
	r.expectListed("w", "configmaps default/a")
	r.requests()
	r.settle(missingTTL)
	r.expectRequests("get deployments.apps default/d") // the unchanged list of objects is not written again
	r.delete(hubWork("1", "w", 1))
	if s := r.statuses["1"]; !s.Deleted || r.record("w") != nil {
		t.Errorf("got %+v, want the work deleted", s.Status)
	}
}

func TestForbidden_ReportsMissingRuleForRecord(t *testing.T) {
	r, _ := newExecutorRig(t, false)
	r.f.Refuse = missing("appliedmanifestworks", "work.open-cluster-management.io")
	r.apply(hubWork("1", "w", 1, configMap("a", "1")))
	c := condition(r.statuses["1"].Status.ResourceStatus.Manifests[0].Conditions, workv1.ManifestApplied)
	if want := `resources: ["appliedmanifestworks"], verbs: ["get", "list", "watch", "create", "update", "patch", "delete"]}`; c == nil || !strings.HasSuffix(c.Message, want) {
		t.Errorf("got %+v, want the rule %s", c, want)
	}
	r.f.Refuse = nil
	r.f.Put(clustertest.Object(rbacV1, "ClusterRole", "", "records"))
	r.settle(2 * time.Second)
	r.expectStatus("1", workApplied, workAvailable)
}
