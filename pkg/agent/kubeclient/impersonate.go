package kubeclient

import (
	"context"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
)

// As implements Rehearser. Only the name of the user is sent; for a service
// account the server adds the groups that it has.
func (k *Kube) As(user string) Objects {
	other := *k
	other.objects, other.user, other.dryRun = k.others, user, []string{metav1.DryRunAll}
	return &other
}

// by says in whose name a request is made.
func (k *Kube) by(ctx context.Context) context.Context {
	return context.WithValue(ctx, userKey{}, k.user)
}

// impersonation sends requests in the name of the user in their context. So one
// client serves all users, and has connections and limits in common with the
// agent's own.
type impersonation struct{ next http.RoundTripper }

type userKey struct{}

// client is like c, but impersonates.
func (i impersonation) client(c *http.Client) *http.Client {
	if i.next == nil {
		i.next = http.DefaultTransport
	}
	wrapped := *c
	wrapped.Transport = i
	return &wrapped
}

// RoundTrip implements http.RoundTripper. A request without a user would be made
// with the rights of the agent, and is not made.
func (i impersonation) RoundTrip(r *http.Request) (*http.Response, error) {
	user, _ := r.Context().Value(userKey{}).(string)
	if user == "" {
		return nil, errors.New("nobody to impersonate: the user has no name")
	}
	r = r.Clone(r.Context())
	r.Header.Set(transport.ImpersonateUserHeader, user)
	return i.next.RoundTrip(r)
}
