package kubeclient_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

func forbidden(group, resource, why string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: group, Resource: resource}, "x", errors.New(why))
}

func TestMissingRule(t *testing.T) {
	const all = `"get", "list", "watch", "create", "update", "patch", "delete"`
	const user = `User "system:serviceaccount:hawser:hawser-agent" `
	const grant = `user "system:serviceaccount:hawser:hawser-agent" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:` + "\n" + `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"namespaced":     {forbidden("example.com", "ropes", user+`cannot create resource "ropes" in API group "example.com" in the namespace "default"`), `{apiGroups: ["example.com"], resources: ["ropes"], verbs: [` + all + `]}`},
		"core, a reason": {forbidden("", "nodes", user+`cannot get resource "nodes" in API group "" at the cluster scope: RBAC: clusterrole.rbac.authorization.k8s.io "x" not found`), `{apiGroups: [""], resources: ["nodes"], verbs: [` + all + `]}`},
		"wrapped":        {fmt.Errorf("replace: %w", forbidden("", "nodes", user+`cannot delete resource "nodes" in API group "" at the cluster scope`)), `{apiGroups: [""], resources: ["nodes"], verbs: [` + all + `]}`},
		"subresource":    {forbidden("work.open-cluster-management.io", "appliedmanifestworks", user+`cannot patch resource "appliedmanifestworks/status" in API group "work.open-cluster-management.io" at the cluster scope`), `{apiGroups: ["work.open-cluster-management.io"], resources: ["appliedmanifestworks/status"], verbs: ["patch"]}`},
		"other verb":     {forbidden("", "serviceaccounts", user+`cannot impersonate resource "serviceaccounts" in API group "" in the namespace "default"`), `{apiGroups: [""], resources: ["serviceaccounts"], verbs: ["impersonate"]}`},
		"a question":     {forbidden("authorization.k8s.io", "subjectaccessreviews", user+`cannot create resource "subjectaccessreviews" in API group "authorization.k8s.io" at the cluster scope`), `{apiGroups: ["authorization.k8s.io"], resources: ["subjectaccessreviews"], verbs: ["create"]}`},
		"escalation":     {forbidden("rbac.authorization.k8s.io", "roles", grant), `{apiGroups: ["rbac.authorization.k8s.io"], resources: ["clusterroles", "roles"], verbs: ["escalate", "bind"]}`},
		"quota":          {forbidden("", "pods", "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"), ""},
		"elsewhere":      {forbidden("", "pods", "is attempting to grant RBAC permissions not currently held"), ""},
		"not forbidden":  {apierrors.NewBadRequest(user + `cannot create resource "ropes" in API group "example.com"`), ""},
		"no status":      {errors.New(user + `cannot create resource "ropes" in API group "example.com"`), ""},
	} {
		rule, ok := kubeclient.MissingRule(c.err)
		got := ""
		if ok {
			got = kubeclient.FormatRule(rule)
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

// FuzzMissingRule: for any error text of a server, the rule is valid YAML.
func FuzzMissingRule(f *testing.F) {
	f.Add("rbac.authorization.k8s.io", `user "a" is attempting to grant RBAC permissions not currently held`)
	f.Add("", `User "a" cannot get resource "pods" in API group ""`)
	f.Fuzz(func(t *testing.T, group, text string) {
		rule, ok := kubeclient.MissingRule(&apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: text, Details: &metav1.StatusDetails{Group: group},
		}})
		if !ok {
			return
		}
		var back rbacv1.PolicyRule
		line := kubeclient.FormatRule(rule)
		if err := yaml.UnmarshalStrict([]byte(line), &back); err != nil || len(back.Verbs) == 0 || strings.Contains(line, "\n") {
			t.Fatalf("%q gives %s: %v", text, line, err)
		}
	})
}
