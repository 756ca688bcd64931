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

// objectVerbs are what the agent does with the objects of works.
var objectVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete"}

// The two texts in which a server refuses because of a missing right; all else
// that is forbidden (quotas, policies) is not ended by a rule.
var (
	cannot     = regexp.MustCompile(`User ".*" cannot ([a-z:-]+) resource "([^"]+)" in API group "([^"]*)"`)
	escalation = regexp.MustCompile(`user ".*" .*is attempting to grant RBAC permissions not currently held`)
)

// MissingRule returns the rule that the agent lacks according to a refusal of
// the server; ok is false if err is not such a refusal. The rule has all that
// the agent does with such objects, so that one is enough.
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

// accessReviewGroup has questions instead of objects: they are only created.
const accessReviewGroup = "authorization.k8s.io"

// FormatRule writes a rule as one line of YAML that a ClusterRole can take.
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
