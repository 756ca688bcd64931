package kubeclient

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// objectVerbs are the verbs that the agent uses on objects of works.
var objectVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete"}

// The two texts of a server's refusal for a missing right. Other refusals (quotas, policies) do not end with a
// rule.
var (
	cannot     = regexp.MustCompile(`User ".*" cannot ([a-z:-]+) resource "([^"]+)" in API group "([^"]*)"`)
	escalation = regexp.MustCompile(`user ".*" .*is attempting to grant RBAC permissions not currently held`)
)

// MissingRule returns the rule that the agent lacks according to a server's refusal; ok is false for other
// errors. The rule has all verbs that the agent uses on such objects, so that one rule is enough.
func MissingRule(err error) (rule rbacv1.PolicyRule, ok bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsForbidden(err) {
		return rule, false
	}
	text := status.Status().Message
	if m := cannot.FindStringSubmatch(text); m != nil {
		verb, resource, group := m[1], m[2], m[3]
		rule = rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{verb}}
		if slices.Contains(objectVerbs, verb) && !strings.Contains(resource, "/") && group != accessReviewGroup {
			rule.Verbs = slices.Clone(objectVerbs)
		}
		return rule, true
	}
	if d := status.Status().Details; d != nil && d.Group == rbacv1.GroupName && escalation.MatchString(text) {
		return rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles", "roles"}, Verbs: []string{"escalate", "bind"}}, true
	}
	return rule, false
}

// accessReviewGroup has reviews instead of objects: they are only created.
const accessReviewGroup = "authorization.k8s.io"

// FormatRule formats a rule as one line of YAML for a ClusterRole.
func FormatRule(r rbacv1.PolicyRule) string {
	list := func(l []string) string {
		quoted := make([]string, len(l))
		for i, s := range l {
			quoted[i] = fmt.Sprintf("%q", s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	return fmt.Sprintf("{apiGroups: %s, resources: %s, verbs: %s}", list(r.APIGroups), list(r.Resources), list(r.Verbs))
}
