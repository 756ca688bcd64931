package kubeclient

import (
	"context"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
)

// As implements DryRunner. It sends only the name of the user; for a service account the server adds its
// groups.
func (k *Kube) As(user string) Objects {
	other := *k
	other.objects, other.user, other.dryRun = k.others, user, []string{metav1.DryRunAll}
	return &other
}

// by sets the user of a request.
func (k *Kube) by(ctx context.Context) context.Context {
	return context.WithValue(ctx, userKey{}, k.user)
}

// impersonation sends requests as the user in their context. So one client serves all users, and shares
// connections and limits with the agent's own requests.
type impersonation struct{ next http.RoundTripper }

type userKey struct{}

// client returns a copy of c that impersonates.
func (i impersonation) client(c *http.Client) *http.Client {
	if i.next == nil {
		i.next = http.DefaultTransport
	}
	wrapped := *c
	wrapped.Transport = i
	return &wrapped
}

// RoundTrip implements http.RoundTripper. A request without a user would have the rights of the agent, so it is
// rejected.
func (i impersonation) RoundTrip(r *http.Request) (*http.Response, error) {
	user, _ := r.Context().Value(userKey{}).(string)
	if user == "" {
		return nil, errors.New("cannot impersonate a user without a name")
	}
	r = r.Clone(r.Context())
	r.Header.Set(transport.ImpersonateUserHeader, user)
	return i.next.RoundTrip(r)
}
