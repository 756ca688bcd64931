package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
	"github.com/hawser-io/hawser/internal/hubsource/registration"
	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
)

// registrationConfig configures the service for clusters that join.
type registrationConfig struct {
	// Enabled is whether clusters join this hub through the broker, whose configuration names this source in
	// registration.source.
	Enabled bool `json:"enabled"`
	// CustomSigners are the signers whose certificates add-ons may request, besides
	// kubernetes.io/kube-apiserver-client.
	CustomSigners []string `json:"customSigners"`
	// AccessReviews is whether hub-source checks the rights of a requester on the hub before it acts for a cluster:
	// true, false, or auto. auto is true if the registration controllers of Open Cluster Management are found,
	// because these create roles for clusters. Without them no cluster has such rights.
	AccessReviews registration.AccessReviews `json:"accessReviews"`
	// MaxPending is the maximum number of pending clusters per requesting account, and of its undecided certificate
	// requests. Twice that is the limit of all accounts. More are rejected.
	MaxPending int `json:"maxPending"`
}

func defaultRegistration() registrationConfig {
	return registrationConfig{MaxPending: registration.DefaultMaxPending, AccessReviews: registration.Auto}
}

func (c *registrationConfig) validate(over string) (errs []error) {
	if c.Enabled && over == transport.MQTT {
		errs = append(errs, errors.New("registration.enabled: clusters join over a Hawser broker that hub-source reaches by grpc; with transport mqtt they cannot"))
	}
	switch c.AccessReviews {
	case registration.Auto, registration.Always, registration.Never:
	default:
		errs = append(errs, fmt.Errorf("registration.accessReviews %q: use %s, %s or %s", c.AccessReviews, registration.Auto, registration.Always, registration.Never))
	}
	if c.MaxPending <= 0 {
		errs = append(errs, fmt.Errorf("registration.maxPending %d: use a positive number", c.MaxPending))
	}
	for _, s := range c.CustomSigners {
		if len(validation.IsQualifiedName(s)) > 0 || s == ocm.Signer {
			errs = append(errs, fmt.Errorf("registration.customSigners: %q is not the name of an add-on's signer, as example.com/my-signer", s))
		}
	}
	return errs
}

// registrationRights returns hub-source's rights on the hub for registration.
func registrationRights() []kubeconfig.Right {
	const clusters, addOns, roles = "cluster.open-cluster-management.io", "addon.open-cluster-management.io", "rbac.authorization.k8s.io"
	return []kubeconfig.Right{
		{Verbs: []string{"list", "watch", "create"}, Group: clusters, Resource: "managedclusters"},
		{Verbs: []string{"update"}, Group: clusters, Resource: "managedclusters/status"},
		{Verbs: []string{"create"}, Group: clusters, Resource: "managedclustersets/join", Object: "default"},
		{Verbs: []string{"list", "watch"}, Group: "certificates.k8s.io", Resource: "certificatesigningrequests"},
		{Verbs: []string{"list", "watch", "patch"}, Group: "coordination.k8s.io", Resource: "leases", Object: "managed-cluster-lease"},
		{Verbs: []string{"list", "watch"}, Group: addOns, Resource: "managedclusteraddons"},
		{Verbs: []string{"update"}, Group: addOns, Resource: "managedclusteraddons/status"},
		{Verbs: []string{"create", "patch"}, Group: "events.k8s.io", Resource: "events"},
		{Verbs: []string{"create"}, Group: "authentication.k8s.io", Resource: "tokenreviews"},
		{Verbs: []string{"create"}, Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
		{Verbs: []string{"bind"}, Group: roles, Resource: "clusterroles", Object: "hawser-hub-source-tokens"},
		{Verbs: []string{"create"}, Group: roles, Resource: "rolebindings"},
		{Verbs: []string{"list", "delete"}, Group: roles, Resource: "rolebindings", Object: "hawser-hub-source-tokens"},
		{Verbs: []string{"impersonate"}, Resource: "serviceaccounts", Namespace: "open-cluster-management-hub", Object: "grpc-server-sa"},
		{Verbs: []string{"get"}, Resource: "configmaps", Namespace: registration.BundleNamespace, Object: registration.BundleConfigMap},
		{Verbs: []string{"list", "watch", "patch"}, Resource: "configmaps", Namespace: earliest.Namespace, Object: earliest.ConfigMap},
		{Verbs: []string{"get"}, Group: "apps", Resource: "deployments", Namespace: clustercontroller.OCMNamespace, Object: clustercontroller.OCMDeployment},
		{Verbs: []string{"get"}, Group: "coordination.k8s.io", Resource: "leases", Namespace: clustercontroller.OCMNamespace, Object: clustercontroller.OCMLease},
	}
}

// addRegistration makes the leading replica serve registration, if it is enabled; otherwise it returns nil.
func (c *config) addRegistration(hub *rest.Config, into *hubsource.Config) (*registration.Server, error) {
	if !c.Registration.Enabled {
		return nil, nil //nolint:nilnil // it need not be
	}
	reach, err := registration.NewHub(hub)
	if err != nil {
		return nil, err
	}
	if into.Sessions, err = session.NewMetrics(into.Registerer); err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(hub)
	if err != nil {
		return nil, fmt.Errorf("reach the hub: %w", err)
	}
	both := newBoth(into.Changed)
	into.Changed = both.first
	s := registration.New(registration.Config{
		ID: c.SourceID, Hub: reach, Signers: c.Registration.CustomSigners, AccessReviews: c.Registration.AccessReviews,
		FindOCM:    func(ctx context.Context) (string, error) { return clustercontroller.FindOCM(ctx, kube) },
		MaxPending: c.Registration.MaxPending, Dialer: into.Dialer, Changed: both.second, Sessions: into.Sessions,
		Registerer: into.Registerer, Health: into.Health, Log: into.Log,
	})
	into.Leading = append(into.Leading, taskgroup.Task{Name: "registration", Run: s.Run}, taskgroup.Task{Name: "changed files", Run: both.Run})
	return s, nil
}

// both forwards the signals of one channel to two sessions.
type both struct {
	changed       <-chan struct{}
	first, second taskgroup.Bell
}

func newBoth(changed <-chan struct{}) *both {
	return &both{changed, taskgroup.NewBell(), taskgroup.NewBell()}
}

// Run forwards signals until ctx ends.
func (b *both) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.changed:
		}
		b.first.Ring()
		b.second.Ring()
	}
}
