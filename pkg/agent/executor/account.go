package executor

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	workv1 "open-cluster-management.io/api/work/v1"
)

// Account is a service account of the managed cluster.
type Account struct{ Namespace, Name string }

// Of returns the account in spec.executor of a work. Its errors last until the work changes.
func Of(e workv1.ManifestWorkExecutor) (Account, error) {
	s := e.Subject
	switch {
	case s.Type != workv1.ExecutorSubjectTypeServiceAccount:
		return Account{}, errors.New("only support ServiceAccount type for the executor")
	case s.ServiceAccount == nil:
		return Account{}, errors.New("the executor service account is nil")
	}
	a := Account{Namespace: s.ServiceAccount.Namespace, Name: s.ServiceAccount.Name}
	// The hub's CRD of works requires the same. Works can have another origin, and an invalid name could be another
	// user's name.
	for _, part := range []struct{ field, value string }{{"namespace", a.Namespace}, {"name", a.Name}} {
		if len(validation.IsDNS1123Subdomain(part.value)) > 0 {
			return Account{}, fmt.Errorf("the executor service account has the %s %q: use lower-case letters, digits, '-' and '.'", part.field, part.value)
		}
	}
	return a, nil
}

const prefix = "system:serviceaccount"

// User returns the user name of the account's requests.
func (a Account) User() string { return prefix + ":" + a.Namespace + ":" + a.Name }

// groups returns the groups of every service account of the namespace.
func (a Account) groups() []string {
	return []string{prefix + "s", "system:authenticated", prefix + "s:" + a.Namespace}
}
