package executor

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Account is a service account of the managed cluster.
type Account struct{ Namespace, Name string }

// Of returns the account that spec.executor of a work names. Its errors last
// until the work changes.
func Of(e workv1.ManifestWorkExecutor) (Account, error) {
	s := e.Subject
	switch {
	case s.Type != workv1.ExecutorSubjectTypeServiceAccount:
		return Account{}, errors.New("only support ServiceAccount type for the executor")
	case s.ServiceAccount == nil:
		return Account{}, errors.New("the executor service account is nil")
	}
	a := Account{Namespace: s.ServiceAccount.Namespace, Name: s.ServiceAccount.Name}
	// The hub's definition of works demands the same. Works can come from
	// elsewhere, and what is no name could be somebody else's user name.
	for _, part := range []struct{ field, value string }{{"namespace", a.Namespace}, {"name", a.Name}} {
		if len(validation.IsDNS1123Subdomain(part.value)) > 0 {
			return Account{}, fmt.Errorf("the executor service account has the %s %q: use lower-case letters, digits, '-' and '.'", part.field, part.value)
		}
	}
	return a, nil
}

const prefix = "system:serviceaccount"

// User is the name under which the account makes requests.
func (a Account) User() string { return prefix + ":" + a.Namespace + ":" + a.Name }

// groups are those that every service account of the namespace is in.
func (a Account) groups() []string {
	return []string{prefix + "s", "system:authenticated", prefix + "s:" + a.Namespace}
}
