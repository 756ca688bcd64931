package registration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/ocm"
)

// Hub holds the clients of the hub's API.
type Hub struct {
	// Own acts as hub-source, Registrar as [Registrar].
	Own, Registrar dynamic.Interface
	Reviews        authorizationclient.SubjectAccessReviewInterface
	Tokens         authenticationclient.TokenReviewInterface
	Self           authenticationclient.SelfSubjectReviewInterface
	Types          discovery.ServerResourcesInterface
	// Get returns the body at a path of the hub's API.
	Get func(ctx context.Context, path string) ([]byte, error)
	// Token returns hub-source's own token, "" if it has none.
	Token func() (string, error)
}

// NewHub returns the hub of a client configuration. Requests have no rate limit of their own: the number of
// concurrent requests is bounded, and a client waits for each.
func NewHub(config *rest.Config) (h Hub, err error) {
	own := rest.CopyConfig(config)
	own.QPS = -1
	registrar := rest.CopyConfig(own)
	registrar.Impersonate = rest.ImpersonationConfig{UserName: ocm.Registrar}
	h.Own, err = dynamic.NewForConfig(own)
	as, err2 := dynamic.NewForConfig(registrar)
	reviews, err3 := authorizationclient.NewForConfig(own)
	tokens, err4 := authenticationclient.NewForConfig(own)
	types, err5 := discovery.NewDiscoveryClientForConfig(own)
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return Hub{}, fmt.Errorf("reach the hub: %w", err)
	}
	h.Registrar = as
	h.Reviews, h.Tokens, h.Self, h.Types = reviews.SubjectAccessReviews(), tokens.TokenReviews(), tokens.SelfSubjectReviews(), types
	h.Get = func(ctx context.Context, path string) ([]byte, error) {
		return types.RESTClient().Get().AbsPath(path).DoRaw(ctx)
	}
	h.Token = func() (string, error) {
		if own.BearerTokenFile == "" {
			return own.BearerToken, nil
		}
		b, err := os.ReadFile(own.BearerTokenFile)
		return strings.TrimSpace(string(b)), err
	}
	return h, nil
}

// serves reports whether the hub has a type.
func (h Hub) serves(r schema.GroupVersionResource) (bool, error) {
	list, err := h.Types.ServerResourcesForGroupVersion(r.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.APIResources, func(has metav1.APIResource) bool { return has.Name == r.Resource }), nil
}
