package admission

import (
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// executeAs is the verb of the right to use an executor.
const executeAs = "execute-as"

// agentAccount is the service account, without a namespace, that stands for the agent as the executor of works
// without an executor.
const agentAccount = "klusterlet-work-sa"

// Executor is the question whether a user may create works that are applied with the rights of a service
// account of their cluster.
type Executor struct {
	user                     authenticationv1.UserInfo
	workNamespace            string
	saNamespace, accountName string
}

// executor returns the question about the executor of a work, nil if there is none. problem is what is wrong
// with the executor itself, "" for nothing.
func (r Rules) executor(req *admissionv1.AdmissionRequest, work *workv1.ManifestWork) (e *Executor, problem string) {
	e = &Executor{user: req.UserInfo, workNamespace: req.Namespace, accountName: agentAccount}
	switch x := work.Spec.Executor; {
	case x == nil && !r.CheckNilExecutor:
		return nil, ""
	case x == nil:
	case x.Subject.ServiceAccount == nil:
		return nil, "executor service account can not be nil"
	default:
		e.saNamespace, e.accountName = x.Subject.ServiceAccount.Namespace, x.Subject.ServiceAccount.Name
	}
	return e, ""
}

// Review returns the question in the form of the hub's API.
func (e *Executor) Review() *authorizationv1.SubjectAccessReview {
	var extra map[string]authorizationv1.ExtraValue
	if e.user.Extra != nil {
		extra = make(map[string]authorizationv1.ExtraValue, len(e.user.Extra))
	}
	for key, values := range e.user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: e.user.Username, UID: e.user.UID, Groups: e.user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: executeAs, Group: workv1.GroupName, Resource: Resource, Namespace: e.workNamespace,
			Name: fmt.Sprintf("system:serviceaccount:%s:%s", e.saNamespace, e.accountName),
		},
	}}
}

// Denial returns the message for a user without the right.
func (e *Executor) Denial() string {
	return fmt.Sprintf("user %s cannot manipulate the Manifestwork with executor %s/%s in namespace %s",
		e.user.Username, e.saNamespace, e.accountName, e.workNamespace)
}
