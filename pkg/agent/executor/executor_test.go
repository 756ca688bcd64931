package executor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/executor"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func TestOf(t *testing.T) {
	account := func(namespace, name string) *workv1.ManifestWorkSubjectServiceAccount {
		return &workv1.ManifestWorkSubjectServiceAccount{Namespace: namespace, Name: name}
	}
	const badName = `the executor service account has the name "a:b": use lower-case letters, digits, '-' and '.'`
	for name, c := range map[string]struct {
		subject workv1.ManifestWorkExecutorSubject
		want    string
	}{
		"good":           {workv1.ManifestWorkExecutorSubject{Type: "ServiceAccount", ServiceAccount: account("a", "b.c")}, ""},
		"other type":     {workv1.ManifestWorkExecutorSubject{Type: "User", ServiceAccount: account("a", "b")}, "only support ServiceAccount type for the executor"},
		"nothing":        {workv1.ManifestWorkExecutorSubject{}, "only support ServiceAccount type for the executor"},
		"unknown":        {workv1.ManifestWorkExecutorSubject{Type: "ServiceAccount"}, "the executor service account is nil"},
		"no namespace":   {workv1.ManifestWorkExecutorSubject{Type: "ServiceAccount", ServiceAccount: account("", "b")}, `the executor service account has the namespace "": use lower-case letters, digits, '-' and '.'`},
		"another's name": {workv1.ManifestWorkExecutorSubject{Type: "ServiceAccount", ServiceAccount: account("a", "a:b")}, badName},
	} {
		got, err := executor.Of(workv1.ManifestWorkExecutor{Subject: c.subject})
		if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if err == nil && got.User() != "system:serviceaccount:a:b.c" {
			t.Errorf("%s: got user %q", name, got.User())
		}
	}
}

var (
	account     = executor.Account{Namespace: "team", Name: "deployer"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	roles       = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}
)

// requested answers reviews by verb, and records them.
type requested struct {
	answer func(verb string) (authorizationv1.SubjectAccessReviewStatus, error)

	mu    sync.Mutex
	specs []authorizationv1.SubjectAccessReviewSpec
}

func (a *requested) Create(_ context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if gvr != authorizationv1.SchemeGroupVersion.WithResource("subjectaccessreviews") || obj.GetKind() != "SubjectAccessReview" || obj.GetAPIVersion() != "authorization.k8s.io/v1" {
		return nil, errors.New("not a review: " + gvr.String())
	}
	var r authorizationv1.SubjectAccessReview
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &r); err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.specs = append(a.specs, r.Spec)
	a.mu.Unlock()
	var err error
	if r.Status, err = a.answer(r.Spec.ResourceAttributes.Verb); err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&r)
	return &unstructured.Unstructured{Object: content}, err
}

func yes(reason string) authorizationv1.SubjectAccessReviewStatus {
	return authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: reason}
}

func TestChecker_ReviewsExactly(t *testing.T) {
	ref := kubeclient.Ref{GroupVersionResource: deployments, Namespace: "shop", Name: "web"}
	for _, owned := range []bool{true, false} { // true: owned and applied on the server
		a := &requested{answer: func(string) (authorizationv1.SubjectAccessReviewStatus, error) { return yes("RBAC: allowed by x"), nil }}
		byRoles, err := executor.Checker{Cluster: a}.MayApply(t.Context(), account, executor.Object{Ref: ref, Owned: owned, Applied: owned})
		if err != nil || !byRoles {
			t.Fatalf("got %t, %v", byRoles, err)
		}
		verbs := []string{"create", "get", "patch", "update"}
		if owned {
			verbs = []string{"create", "delete", "get", "patch", "update"}
		}
		slices.SortFunc(a.specs, func(x, y authorizationv1.SubjectAccessReviewSpec) int {
			return strings.Compare(x.ResourceAttributes.Verb, y.ResourceAttributes.Verb)
		})
		var want []authorizationv1.SubjectAccessReviewSpec
		for _, v := range verbs {
			name := "web"
			if v == "create" && !owned {
				name = "" // a creation without an apply is authorized without a name
			}
			want = append(want, authorizationv1.SubjectAccessReviewSpec{
				User:   "system:serviceaccount:team:deployer",
				Groups: []string{"system:serviceaccounts", "system:authenticated", "system:serviceaccounts:team"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: v, Group: "apps", Version: "v1", Resource: "deployments", Namespace: "shop", Name: name,
				},
			})
		}
		if d := cmp.Diff(want, a.specs); d != "" {
			t.Errorf("owned %t: -want +got\n%s", owned, d)
		}
	}
}

func TestChecker_DenialsAndErrors(t *testing.T) {
	away := errors.New("away")
	type status = authorizationv1.SubjectAccessReviewStatus
	namespaced := kubeclient.Ref{GroupVersionResource: deployments, Namespace: "shop", Name: "web"}
	node := kubeclient.Ref{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Name: "n"}
	for name, c := range map[string]struct {
		ref     kubeclient.Ref
		answers map[string]any // by verb; all other verbs are allowed by a role
		denied  []string
		byRoles bool
		want    string
	}{
		"all allowed":               {namespaced, nil, nil, true, ""},
		"one by another authorizer": {namespaced, map[string]any{"get": yes("a webhook allows it")}, nil, false, ""},
		"denied":                    {namespaced, map[string]any{"delete": status{}, "create": status{Denied: true}}, []string{"create", "delete"}, false, "not allowed to apply the resource apps deployments, shop web, will try again in 1m0s"},
		"denied in the core":        {node, map[string]any{"get": status{EvaluationError: "a role is missing"}}, []string{"get"}, false, "not allowed to apply the resource  nodes,  n, will try again in 1m0s"},
		"an error":                  {namespaced, map[string]any{"get": away}, nil, false, "check the rights of the executor: away"},
		"a denial beside errors":    {namespaced, map[string]any{"get": away, "patch": status{}}, []string{"patch"}, false, "not allowed to apply the resource apps deployments, shop web, will try again in 1m0s"},
	} {
		a := &requested{answer: func(verb string) (status, error) {
			switch v := c.answers[verb].(type) {
			case status:
				return v, nil
			case error:
				return status{}, v
			}
			return yes("RBAC: allowed by x"), nil
		}}
		byRoles, err := executor.Checker{Cluster: a}.MayApply(t.Context(), account, executor.Object{Ref: c.ref, Owned: true})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want || byRoles != c.byRoles {
			t.Errorf("%s: got %t, %q; want %t, %q", name, byRoles, got, c.byRoles, c.want)
		}
		var denied *executor.DeniedError
		if errors.As(err, &denied) != (c.denied != nil) || denied != nil && !slices.Equal(denied.Verbs, c.denied) {
			t.Errorf("%s: got %+v, want %v denied", name, denied, c.denied)
		}
	}
}

// other is the cluster for writes as the account; each returns err.
type other struct {
	kubeclient.Objects
	t   *testing.T
	err error
}

func (o other) As(user string) kubeclient.Objects {
	if user != account.User() {
		o.t.Errorf("as %s", user)
	}
	return o
}

func (o other) Create(context.Context, schema.GroupVersionResource, *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return nil, o.err
}

func TestWriter_FollowsServerRevision(t *testing.T) {
	refused := func(why string) error { return apierrors.NewForbidden(roles.GroupResource(), "r", errors.New(why)) }
	const (
		requesting = "check whether the executor has the rights that the object grants: "
		denied     = "not allowed to apply the resource rbac.authorization.k8s.io roles, shop r, will try again in 1m0s"
		escalation = "not allowed to apply the resource rbac.authorization.k8s.io roles, shop r, error: permission escalation, will try again in 1m0s"
		agents     = `roles.rbac.authorization.k8s.io "r" is forbidden: User "agent" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "team"`
		dry        = `admission webhook "a.example.com" does not support dry run`
	)
	for name, c := range map[string]struct {
		err          error
		role, config string // the errors of writes of a Role and of a ConfigMap
	}{
		"made":                {nil, "", ""},
		"there already":       {apierrors.NewAlreadyExists(roles.GroupResource(), "r"), `roles.rbac.authorization.k8s.io "r" already exists`, `roles.rbac.authorization.k8s.io "r" already exists`},
		"escalation":          {refused(`user "x" (groups=["y"]) is attempting to grant RBAC permissions not currently held`), escalation, strings.NewReplacer("rbac.authorization.k8s.io roles", " configmaps").Replace(escalation)},
		"all rights":          {refused("must have cluster-admin privileges to use the aggregationRule"), escalation, `roles.rbac.authorization.k8s.io "r" is forbidden: must have cluster-admin privileges to use the aggregationRule`},
		"no right":            {refused(`User "x" cannot create resource "roles" in API group "rbac.authorization.k8s.io"`), denied, strings.NewReplacer("rbac.authorization.k8s.io roles", " configmaps").Replace(denied)},
		"no namespace":        {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop"), `namespaces "shop" not found`, `namespaces "shop" not found`},
		"agent may not do so": {refused(`User "agent" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "team"`), requesting + agents, ""},
		"only real writes":    {apierrors.NewBadRequest(dry), requesting + dry, ""},
	} {
		for gvr, want := range map[schema.GroupVersionResource]string{roles: c.role, {Version: "v1", Resource: "configmaps"}: c.config} {
			w := executor.Writer{Objects: other{t: t}, Cluster: other{t: t, err: c.err}, Account: account}
			_, err := w.Create(t.Context(), gvr, clustertest.Object("v1", "Any", "shop", "r"))
			if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
				t.Errorf("%s: %s: got %q, want %q", name, gvr.Resource, got, want)
			}
		}
	}
}

// A write is made without a dry run only if permissions are kept and the write grants no rights.
func TestWriter_SkipsDryRun(t *testing.T) {
	gvr := func(group, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
	}
	for resource, always := range map[schema.GroupVersionResource]bool{
		roles:                                   true,
		gvr(roles.Group, "clusterrolebindings"): true,
		gvr("authorization.openshift.io", "roles"):                               true,
		gvr("admissionregistration.k8s.io", "validatingadmissionpolicybindings"): true,
		gvr("admissionregistration.k8s.io", "validatingwebhookconfigurations"):   false,
		gvr("certificates.k8s.io", "clustertrustbundles"):                        true,
		gvr("example.com", "roles"):                                              false,
		deployments:                                                              false,
	} {
		for _, kept := range []bool{true, false} {
			w := executor.Writer{Objects: other{t: t}, Cluster: other{t: t, err: errors.New("gone through")}, Account: account, Kept: kept}
			_, err := w.Create(t.Context(), resource, clustertest.Object("v1", "Any", "shop", "r"))
			if (err != nil) != (always || !kept) {
				t.Errorf("%s, kept %t: got %v", resource.Resource, kept, err)
			}
		}
	}
	var denied *executor.DeniedError
	w := executor.Writer{Objects: other{t: t}, Cluster: other{t: t}, Account: account}
	if _, err := w.Create(t.Context(), gvr("certificates.k8s.io", "certificatesigningrequests"), clustertest.Object("v1", "Any", "", "r")); !errors.As(err, &denied) {
		t.Errorf("a request that would bear the name of the agent: got %v", err)
	}
}

// Between the dry run and the write of a label another client changes the labeled object.
func TestWriter_ObjectChangesInBetween(t *testing.T) {
	for name, there := range map[string]bool{"an object that is changed": true, "an object that appears": false} {
		f := clustertest.New()
		rule := func(resource string) []any {
			return []any{map[string]any{"apiGroups": []any{""}, "resources": []any{resource}, "verbs": []any{"get"}}}
		}
		put := func(kind, name string, fields ...any) {
			f.Put(clustertest.Object("rbac.authorization.k8s.io/v1", kind, "default", name, fields...))
		}
		put("Role", "mine", "rules", []any{map[string]any{"apiGroups": []any{roles.Group}, "resources": []any{"roles"}, "verbs": []any{"create", "patch"}}})
		put("RoleBinding", "mine", "roleRef", map[string]any{"kind": "Role", "name": "mine"}, "subjects", []any{map[string]any{"kind": "ServiceAccount", "namespace": "team", "name": "deployer"}})
		if there {
			put("Role", "r")
		}
		label := clustertest.Object("rbac.authorization.k8s.io/v1", "Role", "default", "r")
		label.SetLabels(map[string]string{"aggregate": "yes"})
		raw, err := label.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		m := apply.Load(t.Context(), f, workv1.ManifestWorkSpec{
			Workload:        workv1.ManifestsTemplate{Manifests: []workv1.Manifest{{RawExtension: runtime.RawExtension{Raw: raw}}}},
			DeleteOption:    &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan},
			ManifestConfigs: []workv1.ManifestConfigOption{{ResourceIdentifier: workv1.ResourceIdentifier{Group: roles.Group, Resource: "roles", Namespace: "*", Name: "*"}, UpdateStrategy: &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply}}},
		})[0]
		rehearsed := 0
		after := between{DryRunner: f, then: func() {
			if rehearsed++; rehearsed == 1 {
				put("Role", "r", "rules", rule("secrets"))
			}
		}}
		a := apply.Applier{Objects: executor.Writer{Objects: f, Cluster: after, Account: account}, Exact: true, Wait: func(context.Context, time.Duration) error { return nil }}
		res := a.Apply(t.Context(), a.Plan(t.Context(), m, apply.Owner{}, apply.KnownState{}), apply.Owner{})
		var denied *executor.DeniedError
		if !errors.As(res.Err, &denied) || rehearsed != 2 {
			t.Errorf("%s: got %v after %d rehearsals, want a denial of the second", name, res.Err, rehearsed)
		}
		if got := f.Look(m.Ref); len(got.GetLabels()) > 0 {
			t.Errorf("%s: the label was written", name)
		}
	}
}

// between calls then after each dry run of an apply.
type between struct {
	kubeclient.DryRunner
	then func()
}

func (b between) As(user string) kubeclient.Objects {
	return betweenObjects{b.DryRunner.As(user), b.then}
}

type betweenObjects struct {
	kubeclient.Objects
	then func()
}

func (b betweenObjects) ServerSideApply(ctx context.Context, gvr schema.GroupVersionResource, o *unstructured.Unstructured, by kubeclient.FieldManager) (*unstructured.Unstructured, error) {
	got, err := b.Objects.ServerSideApply(ctx, gvr, o, by)
	b.then()
	return got, err
}
