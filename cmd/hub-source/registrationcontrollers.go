package main

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	addonversioned "open-cluster-management.io/api/client/addon/clientset/versioned"
	clusterversioned "open-cluster-management.io/api/client/cluster/clientset/versioned"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
	"github.com/hawser-io/hawser/internal/hubsource/registration"
	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// registrationControllersConfig configures the registration controllers: namespace, Lease and conditions of each cluster,
// approval and signing of certificates.
type registrationControllersConfig struct {
	// Mode is whether hub-source runs these controllers: off, on, or auto, which is on unless Open Cluster
	// Management's registration controllers are found on the hub.
	Mode clustercontroller.Mode `json:"mode"`
	// Signer is the CA that signs the certificates of clusters. Without it hub-source does not sign.
	Signer struct {
		// CertFile is the PEM file of the CA's certificate. It is read for each certificate.
		CertFile string `json:"certFile"`
		// KeyFile is the PEM file of its key.
		KeyFile string `json:"keyFile"`
		// Duration is the validity of a certificate, unless its CSR requests less.
		Duration cmdline.Duration `json:"duration"`
	} `json:"signer"`
	// AutoApprovedUsers are users of the hub, as system:serviceaccount:NAMESPACE:NAME, whose clusters are accepted
	// and approved automatically, once, and before they have joined.
	AutoApprovedUsers []string `json:"autoApprovedUsers"`
}

func defaultRegistrationControllers() (c registrationControllersConfig) {
	c.Mode = clustercontroller.Off
	c.Signer.Duration = cmdline.Duration(clustercontroller.DefaultDuration)
	return c
}

func (c *registrationControllersConfig) validate() (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch c.Mode { // unquoted on and off are booleans in YAML
	case "true":
		c.Mode = clustercontroller.On
	case "false":
		c.Mode = clustercontroller.Off
	case clustercontroller.Off, clustercontroller.On, clustercontroller.Auto:
	default:
		wrong("registrationControllers.mode %q: use %s, %s or %s", c.Mode, clustercontroller.Auto, clustercontroller.On, clustercontroller.Off)
	}
	if (c.Signer.CertFile == "") != (c.Signer.KeyFile == "") {
		wrong("registrationControllers.signer: a CA needs certFile and keyFile; without both, hub-source does not sign")
	}
	if c.Signer.Duration <= 0 {
		wrong("registrationControllers.signer.duration %s: use a positive time, as %s", time.Duration(c.Signer.Duration), clustercontroller.DefaultDuration)
	}
	for _, user := range c.AutoApprovedUsers {
		if user == "" {
			wrong("registrationControllers.autoApprovedUsers: a user has no name")
		}
	}
	return errs
}

// rights returns the rights that deploy/hub-source-registration/registration-controllers.yaml grants.
func (c *registrationControllersConfig) rights() []kubeconfig.Right {
	if c.Mode == clustercontroller.Off {
		return nil
	}
	const clusters, addons, works = "cluster.open-cluster-management.io", "addon.open-cluster-management.io", "work.open-cluster-management.io"
	const certificates, coordination = "certificates.k8s.io", "coordination.k8s.io"
	return []kubeconfig.Right{
		{Verbs: []string{"list", "watch", "patch"}, Group: clusters, Resource: "managedclusters"},
		{Verbs: []string{"patch"}, Group: clusters, Resource: "managedclusters/status"},
		{Verbs: []string{"get", "create", "patch"}, Resource: "namespaces"},
		{Verbs: []string{"create"}, Group: coordination, Resource: "leases"},
		{Verbs: []string{"list", "watch", "delete"}, Group: coordination, Resource: "leases", Object: ocm.LeaseName},
		{Verbs: []string{"list", "watch", "delete"}, Group: certificates, Resource: "certificatesigningrequests"},
		{Verbs: []string{"update"}, Group: certificates, Resource: "certificatesigningrequests/approval"},
		{Verbs: []string{"update"}, Group: certificates, Resource: "certificatesigningrequests/status"},
		{Verbs: []string{"approve", "sign"}, Group: certificates, Resource: "signers", Object: ocm.Signer},
		{Verbs: []string{"list", "delete"}, Group: addons, Resource: "managedclusteraddons"},
		{Verbs: []string{"patch"}, Group: addons, Resource: "managedclusteraddons/status"},
		{Verbs: []string{"list", "delete"}, Group: works, Resource: "manifestworks"},
		{Verbs: []string{"get"}, Resource: "configmaps", Namespace: earliest.Namespace, Object: earliest.ConfigMap},
		{Verbs: []string{"get"}, Group: "apps", Resource: "deployments", Namespace: clustercontroller.OCMNamespace, Object: clustercontroller.OCMDeployment},
		{Verbs: []string{"get"}, Group: coordination, Resource: "leases", Namespace: clustercontroller.OCMNamespace, Object: clustercontroller.OCMLease},
	}
}

// addRegistrationControllers makes the leading replica run the registration controllers. broker is the registration server
// of agents, nil if they join in another way.
func (c *config) addRegistrationControllers(hub *rest.Config, into *hubsource.Config, broker *registration.Server) error {
	if c.RegistrationControllers.Mode == clustercontroller.Off {
		return nil
	}
	// The controllers have their own rate limit, so that neither they nor works wait behind the other.
	reach := rest.CopyConfig(hub)
	kube, err := kubernetes.NewForConfig(reach)
	clusters, err2 := clusterversioned.NewForConfig(reach)
	addons, err3 := addonversioned.NewForConfig(reach)
	if err := errors.Join(err, err2, err3); err != nil {
		return fmt.Errorf("reach the hub: %w", err)
	}
	var link func() clustercontroller.ConnectionState
	if broker != nil {
		link = func() clustercontroller.ConnectionState {
			connected, since := broker.Connected()
			return clustercontroller.ConnectionState{Connected: connected, Since: since}
		}
	}
	m, err := clustercontroller.New(clustercontroller.Config{
		Broker: link,
		Mode:   c.RegistrationControllers.Mode, AutoApprovedUsers: c.RegistrationControllers.AutoApprovedUsers,
		Signer: clustercontroller.Signer{CertFile: c.RegistrationControllers.Signer.CertFile, KeyFile: c.RegistrationControllers.Signer.KeyFile, Duration: time.Duration(c.RegistrationControllers.Signer.Duration)},
		Kube:   kube, Clusters: clusters, Addons: addons, Metadata: into.Metadata,
		Registerer: into.Registerer, Health: into.Health, Log: into.Log,
	})
	if err != nil {
		return fmt.Errorf("registrationControllers: %w", err)
	}
	into.Leading = append(into.Leading, taskgroup.Task{Name: "registration-controllers", Run: m.Run})
	return nil
}
