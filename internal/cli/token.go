package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/internal/cmdline"
)

// The resources for token requests.
var (
	namespaces      = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	serviceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
)

// bootstrapAccount is the service account of the tokens with which clusters join, as Open Cluster Management
// names it.
const bootstrapAccount = "open-cluster-management/agent-registration-bootstrap"

// The shortest lifetime of a token that a hub's API accepts.
const shortestToken = 10 * time.Minute

func newToken(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make the token with which clusters join the hub",
		Args:  cmdline.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenCreate(env))
	return cmd
}

func newTokenCreate(env Env) *cobra.Command {
	var c connection
	a := tokenRequest{account: bootstrapAccount}
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token with which clusters join the hub, and print it",
		Long: `Make a token with which clusters join the hub, and print it.

  hawser token create --context hub > token

On standard error it prints the complete hawser join command for this hub and this token.

It is a token of a service account on the hub, for the audience hawser: the broker accepts
it, the hub's API does not. Its holder may only request to join, under any name; an
operator must accept the cluster (hawser accept). The token expires. To invalidate all
tokens of the account earlier: kubectl -n open-cluster-management delete serviceaccount
agent-registration-bootstrap.

A missing account is created only if it is the default one.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(c.check(cmd), a.check(cmd)); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
			defer cancel()
			hub, err := c.hub()
			if err != nil {
				return err
			}
			token, err := a.create(ctx, hub)
			if err != nil {
				return err
			}
			if err := printf(env.Stdout, "%s\n", token); err != nil {
				return err
			}
			return printf(env.Stderr, "%s", lines(c.afterToken(ctx, env)))
		},
	}
	c.add(cmd, "the hub (default the current one)")
	f := cmd.Flags()
	f.StringVar(&a.account, "service-account", a.account, "NAMESPACE/NAME of the service account; the broker's configuration has the allowed ones")
	f.StringVar(&a.audience, "audience", "hawser", "audience of the token, one of tokens.audiences of the broker")
	f.DurationVar(&a.valid, "duration", time.Hour, "lifetime of the token; the hub may shorten it")
	return cmd
}

// tokenRequest holds the arguments of a token request.
type tokenRequest struct {
	account, audience string
	valid             time.Duration
}

func (a *tokenRequest) check(cmd *cobra.Command) error {
	namespace, name, ok := strings.Cut(a.account, "/")
	switch {
	case !ok || namespace == "" || name == "" || strings.Contains(name, "/"):
		return usageOf(cmd, fmt.Errorf("--service-account %s is not NAMESPACE/NAME", a.account))
	case a.audience == "":
		return usageOf(cmd, errors.New("--audience is empty: the hub's API would accept the token, too"))
	case a.valid < shortestToken:
		return usageOf(cmd, fmt.Errorf("--duration %s: a hub issues no token for less than %s", a.valid, shortestToken))
	}
	return nil
}

// create requests a token from the hub, and creates the default account if it is missing.
func (a *tokenRequest) create(ctx context.Context, hub hubAPI) (string, error) {
	token, err := a.send(ctx, hub)
	if !apierrors.IsNotFound(err) {
		return token, err
	}
	if a.account != bootstrapAccount {
		return "", hint(fmt.Errorf("the hub has no service account %s", a.account), "make it with kubectl create serviceaccount, or leave --service-account out")
	}
	namespace, name, _ := strings.Cut(a.account, "/")
	for _, o := range []struct {
		gvr             schema.GroupVersionResource
		kind            string
		namespace, name string
	}{{namespaces, "Namespace", "", namespace}, {serviceAccounts, "ServiceAccount", namespace, name}} {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": o.gvr.Version, "kind": o.kind}}
		u.SetName(o.name)
		u.SetNamespace(o.namespace)
		if _, err := hub.Resource(o.gvr).Namespace(o.namespace).Create(ctx, u, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return "", err
		}
	}
	return a.send(ctx, hub)
}

func (a *tokenRequest) send(ctx context.Context, hub hubAPI) (string, error) {
	namespace, name, _ := strings.Cut(a.account, "/")
	seconds := int64(a.valid / time.Second)
	kind := authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")
	o, err := untyped(&authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{a.audience}, ExpirationSeconds: &seconds},
	}, kind)
	if err != nil {
		return "", err
	}
	o.SetName(name)
	o, err = hub.Resource(serviceAccounts).Namespace(namespace).Create(ctx, o, metav1.CreateOptions{}, "token")
	if err != nil {
		return "", err
	}
	answer, err := typed[authenticationv1.TokenRequest](o)
	if err == nil && answer.Status.Token == "" {
		err = fmt.Errorf("the hub answered without a token for %s", a.account)
	}
	if err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}
