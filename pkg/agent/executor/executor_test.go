package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/cluster"
	"github.com/hawser-io/hawser/pkg/agent/cluster/clustertest"
	"github.com/hawser-io/hawser/pkg/agent/executor"
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
		"nobody":         {workv1.ManifestWorkExecutorSubject{Type: "ServiceAccount"}, "the executor service account is nil"},
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

// asked answers reviews by verb, and records what they ask.
type asked struct {
	cluster.Rehearser
	answer func(verb string) (authorizationv1.SubjectAccessReviewStatus, error)

	mu    sync.Mutex
	specs []authorizationv1.SubjectAccessReviewSpec
}

func (a *asked) Create(_ context.Context, gvr schema.GroupVersionResource, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
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

func TestChecker_AsksExactly(t *testing.T) {
	ref := cluster.Ref{GroupVersionResource: deployments, Namespace: "shop", Name: "web"}
	for _, owned := range []bool{true, false} {
		a := &asked{answer: func(string) (authorizationv1.SubjectAccessReviewStatus, error) { return yes("RBAC: allowed by x"), nil }}
		byRoles, err := executor.Checker{Cluster: a}.MayApply(t.Context(), account, executor.Object{Ref: ref, Owned: owned})
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
			want = append(want, authorizationv1.SubjectAccessReviewSpec{
				User:   "system:serviceaccount:team:deployer",
				Groups: []string{"system:serviceaccounts", "system:authenticated", "system:serviceaccounts:team"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: v, Group: "apps", Version: "v1", Resource: "deployments", Namespace: "shop", Name: "web",
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
	namespaced := cluster.Ref{GroupVersionResource: deployments, Namespace: "shop", Name: "web"}
	node := cluster.Ref{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, Name: "n"}
	for name, c := range map[string]struct {
		ref     cluster.Ref
		answers map[string]any // of verbs; the others are allowed by a role
		denied  []string
		byRoles bool
		want    string
	}{
		"all allowed":            {namespaced, nil, nil, true, ""},
		"one by somebody else":   {namespaced, map[string]any{"get": yes("a webhook says so")}, nil, false, ""},
		"denied":                 {namespaced, map[string]any{"delete": status{}, "create": status{Denied: true}}, []string{"create", "delete"}, false, "not allowed to apply the resource apps deployments, shop web, will try again in 1m0s"},
		"denied in the core":     {node, map[string]any{"get": status{EvaluationError: "a role is missing"}}, []string{"get"}, false, "not allowed to apply the resource  nodes,  n, will try again in 1m0s"},
		"an error":               {namespaced, map[string]any{"get": away}, nil, false, "ask what the executor may do: away"},
		"a denial beside errors": {namespaced, map[string]any{"get": away, "patch": status{}}, []string{"patch"}, false, "not allowed to apply the resource apps deployments, shop web, will try again in 1m0s"},
	} {
		a := &asked{answer: func(verb string) (status, error) {
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

// rehearsal refuses every creation with an error.
type rehearsal struct {
	executor.Cluster
	err error
}

func (r rehearsal) RehearseCreate(_ context.Context, user string, _ schema.GroupVersionResource, _ *unstructured.Unstructured) error {
	if user != account.User() {
		return errors.New("as " + user)
	}
	return r.err
}

func TestChecker_WhatTheServerSaysAboutGivingRights(t *testing.T) {
	gr := roles.GroupResource()
	refused := func(why string) error { return apierrors.NewForbidden(gr, "r", errors.New(why)) }
	const asking = "find out whether the executor has the rights that the object gives away: "
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"made":                {nil, ""},
		"there already":       {apierrors.NewAlreadyExists(gr, "r"), ""},
		"escalation":          {refused(`user "x" is attempting to grant RBAC permissions not currently held`), "not allowed to apply the resource rbac.authorization.k8s.io roles, shop r, error: permission escalation, will try again in 1m0s"},
		"no namespace":        {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop"), asking + `namespaces "shop" not found`},
		"agent may not do so": {refused(`User "agent" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "team"`), asking + `roles.rbac.authorization.k8s.io "r" is forbidden: User "agent" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "team"`},
	} {
		ref := cluster.Ref{GroupVersionResource: roles, Namespace: "shop", Name: "r"}
		err := executor.Checker{Cluster: rehearsal{err: c.err}}.MayGive(t.Context(), account, ref, clustertest.Object("rbac.authorization.k8s.io/v1", "Role", "shop", "r"))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestGivesRights(t *testing.T) {
	for resource, want := range map[string]bool{"roles": true, "rolebindings": true, "clusterroles": true, "clusterrolebindings": true, "others": false} {
		if got := executor.GivesRights(schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: resource}); got != want {
			t.Errorf("%s: got %t", resource, got)
		}
	}
	if executor.GivesRights(schema.GroupResource{Group: "example.com", Resource: "roles"}) {
		t.Error("another group's roles are only objects")
	}
}
