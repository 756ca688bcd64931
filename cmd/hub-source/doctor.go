package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/doctor"
)

const doctorLong = `Check the connections of this hub-source step by step, and report the first failure: to
the broker files, name, proxy, TCP, TLS, clock, identity, authorization, round trip; then
the API of the hub, the definitions and the rights there.

It stops at the first step that fails and prints the remedy, in a form that you can
forward to the network team. It changes nothing, and does not disturb a running hub-source.
Without flags it uses those of the hub-source in whose container it is started:

  kubectl -n hawser exec deploy/hawser-hub-source -- /hawser-hub-source doctor`

func newDoctor(stdout io.Writer) *cobra.Command {
	cfg := defaults()
	return cmdline.Doctor(program, doctorLong, cfg.addFlags, func(cmd *cobra.Command, step time.Duration) error {
		if err := cfg.load(cmd.Flags()); err != nil {
			return cmdline.Usage(err)
		}
		w, err := cfg.ways(step)
		if err != nil {
			return err
		}
		return w.Report(cmd.Context(), stdout)
	})
}

// ways returns all connections of hub-source.
func (c *config) ways(step time.Duration) (doctor.Path, error) {
	w := doctor.Path{Insecure: c.Insecure, Timeout: step}
	filter := transport.Filter{Source: c.SourceID, DataType: codec.ManifestBundles}
	if c.Transport == transport.MQTT {
		var err error
		if w.Brokers, w.Identity, err = doctor.MQTTFile(c.TransportConfig, filter, c.Insecure); err != nil {
			return w, &doctor.StepError{Step: "files", What: err.Error(), Advice: "correct the file; its keys are in docs/mqtt.md", Err: err}
		}
	} else {
		w.Brokers = doctor.GRPC(c.Broker, c.TLS.ServerName)
		w.Identity = identity.Driver{CAFile: c.TLS.CAFile, ClientCertFile: c.TLS.CertFile, ClientKeyFile: c.TLS.KeyFile}
	}
	w.Identity.OverrideProxy(c.Proxy, c.ProxyCAFile)
	w.Calls = doctor.Subscriber{
		Filter: filter,
		Hello:  func(context.Context) transport.Hello { return transport.Hello{Protocol: transport.Protocol} },
		Denied: fmt.Sprintf("the broker knows this identity, but it may not be source %s. Use the certificate of that source, or correct sourceID, or the rules in the broker's configuration", c.SourceID),
	}.Calls()
	for _, s := range c.check().Steps() {
		w.Calls = append(w.Calls, doctor.Step(s.Name, s.Look))
	}
	return w, nil
}

// check returns hub-source's requirements on its hub.
func (c *config) check() kubeconfig.Check {
	works := schema.GroupVersionResource{Group: workv1.GroupName, Version: workv1.GroupVersion.Version, Resource: "manifestworks"}
	verbs := []string{"get", "list", "watch", "patch"}
	if c.FeatureGates.Enabled(gateCleanUp) {
		verbs = append(verbs, "delete")
	}
	rights := []kubeconfig.Right{
		{Verbs: verbs, Group: works.Group, Resource: works.Resource},
		{Verbs: []string{"patch"}, Group: works.Group, Resource: works.Resource + "/status"},
		{Verbs: []string{"get"}, Resource: "namespaces", Object: metav1.NamespaceSystem},
	}
	add := func(needed bool, r kubeconfig.Right) {
		if needed {
			rights = append(rights, r)
		}
	}
	add(c.ClusterSelector != "", kubeconfig.Right{Verbs: []string{"list", "watch"}, Group: "cluster.open-cluster-management.io", Resource: "managedclusters"})
	add(c.NamespaceSelector != "", kubeconfig.Right{Verbs: []string{"list", "watch"}, Resource: "namespaces"})
	add(c.StateNamespace != "", kubeconfig.Right{Verbs: []string{"create"}, Resource: "configmaps", Namespace: c.StateNamespace})
	add(c.StateNamespace != "", kubeconfig.Right{Verbs: []string{"get", "update"}, Resource: "configmaps", Namespace: c.StateNamespace, Object: hubsource.StateName(c.SourceID)})
	e := c.LeaderElection
	add(e.Enabled, kubeconfig.Right{Verbs: []string{"create"}, Group: "coordination.k8s.io", Resource: "leases", Namespace: e.ResourceNamespace})
	add(e.Enabled, kubeconfig.Right{Verbs: []string{"get", "update"}, Group: "coordination.k8s.io", Resource: "leases", Namespace: e.ResourceNamespace, Object: e.ResourceName})
	add(c.Webhook.Listen != "", kubeconfig.Right{Verbs: []string{"create"}, Group: "authorization.k8s.io", Resource: "subjectaccessreviews"})
	rights = append(rights, c.RegistrationControllers.rights()...)
	if c.Registration.Enabled {
		rights = append(rights, registrationRights()...)
	}
	return kubeconfig.Check{
		Name: "hub API", Definitions: []schema.GroupVersionResource{works}, Rights: rights,
		Load:  func() (*rest.Config, error) { return kubeconfig.Load(c.Kubeconfig, "kubeconfig") },
		Grant: "the administrator of the hub applies deploy/hub-source and deploy/crds/manifestworks.yaml, or runs hawser install hub",
	}
}
