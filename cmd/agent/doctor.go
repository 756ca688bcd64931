package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/doctor"
)

const doctorLong = `Check the connections of this agent step by step, and report the first failure.

The steps to the broker are files, name, proxy, TCP, TLS, clock, identity, authorization
and round trip. The API of the managed cluster, the definitions and the rights there
follow.

It stops at the first step that fails and prints the remedy, in a form that you can
forward to the network team. It changes nothing, and does not disturb a running agent.
Without flags it uses those of the agent in whose container it is started:

  kubectl -n hawser exec deploy/hawser-agent -- /hawser-agent doctor`

func newDoctor(stdout io.Writer) *cobra.Command {
	cfg := defaults()
	return cmdline.Doctor(program, doctorLong, cfg.addFlags, func(cmd *cobra.Command, step time.Duration) error {
		if err := cfg.validate(); err != nil {
			return cmdline.Usage(err)
		}
		w, err := cfg.way(cmd.Context(), step)
		if err != nil {
			return err
		}
		return w.Report(cmd.Context(), stdout)
	})
}

// way returns all connections of the agent.
func (c *config) way(ctx context.Context, step time.Duration) (doctor.Path, error) {
	w := doctor.Path{Insecure: c.insecure, Timeout: step}
	namespace, err := c.ownNamespace(podNamespace)
	if err != nil {
		return w, err
	}
	requests, err := c.wayToBroker(ctx, namespace, &w)
	if err != nil {
		return w, &doctor.StepError{Step: "files", What: err.Error(), Advice: "correct the file; its keys are in docs/operations/README.md and docs/mqtt.md", Err: err}
	}
	w.Identity.OverrideProxy(c.proxy.URL, c.proxy.CAFile)
	requests.Hello = c.hello
	w.Calls = requests.Calls()
	for _, check := range c.checks(namespace) {
		for _, s := range check.Steps() {
			w.Calls = append(w.Calls, doctor.Step(s.Name, s.Look))
		}
	}
	return w, nil
}

// wayToBroker fills in the broker connection, and returns the agent's subscription there.
func (c *config) wayToBroker(ctx context.Context, namespace string, w *doctor.Path) (doctor.Subscriber, error) {
	requests := doctor.Subscriber{
		Filter: transport.Filter{Cluster: c.clusterName, DataType: codec.ManifestBundles},
		Denied: fmt.Sprintf("the broker knows this identity, but it may not be cluster %s: use the certificate of that cluster, or correct --spoke-cluster-name", c.clusterName),
	}
	if c.sourceDriver == driverMQTT {
		var err error
		w.Brokers, w.Identity, err = doctor.MQTTFile(c.sourceConfig, transport.Filter{Cluster: c.clusterName}, c.insecure)
		return requests, err
	}
	flag, path := c.brokerFile()
	d, err := readDriver(flag, path, c.insecure)
	if err != nil {
		return requests, err
	}
	if c.joins() {
		if own := c.kept(ctx, namespace); own != nil {
			d.withCertificate(own)
		} else {
			requests.DataType = codec.ManagedClusters
			requests.Denied = "the broker knows this identity, but it may not request to join: put a token of hawser token create into " + path
		}
	}
	w.Brokers, w.Identity = doctor.GRPC(d.URL, ""), d.Driver
	return requests, nil
}

// uidPatience bounds the wait for the cluster's uid. Without the uid the broker is checked anyway, and later
// steps report the problem of the cluster.
const uidPatience = 3 * time.Second

// hello returns the client's part of a subscribe, with the cluster uid, as the agent sends it.
func (c *config) hello(ctx context.Context) transport.Hello {
	hello := transport.Hello{Protocol: transport.Protocol}
	r, err := c.cluster()
	if err != nil {
		return hello
	}
	r.Timeout = uidPatience
	core, err := corev1.NewForConfig(r)
	if err != nil {
		return hello
	}
	if namespace, err := core.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err == nil {
		hello.ClusterUID = string(namespace.UID)
	}
	return hello
}

// checks returns the agent's requirements on its cluster, and in hosted mode on the hosting cluster.
func (c *config) checks(namespace string) []kubeconfig.Check {
	own := c.check(namespace)
	if !c.joins() {
		return []kubeconfig.Check{own}
	}
	own.Rights = append(own.Rights, factRights...)
	spoke, err := c.cluster()
	if err != nil {
		return []kubeconfig.Check{own} // its first step reports the reason
	}
	hosting, beside, err := c.hosting(spoke)
	if err == nil && hosting == nil {
		own.Rights = append(own.Rights, c.secretRights(namespace)...)
		return []kubeconfig.Check{own}
	}
	return []kubeconfig.Check{own, {
		Name: "hosting cluster", Load: func() (*rest.Config, error) { return hosting, err }, Rights: c.secretRights(beside),
		Grant: "the administrator of the hosting cluster grants the service account of this pod the rights in docs/join.md under Hosted mode",
	}}
}

// check returns the agent's own requirements on its cluster. Missing rights for the objects of works are
// reported with the works.
func (c *config) check(namespace string) kubeconfig.Check {
	record := appliedwork.Resource
	rights := []kubeconfig.Right{
		{Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}, Group: record.Group, Resource: record.Resource},
		{Verbs: []string{"patch"}, Group: record.Group, Resource: record.Resource + "/status"},
		{Verbs: []string{"get"}, Resource: "namespaces", Object: metav1.NamespaceSystem},
		{Verbs: []string{"create"}, Resource: "configmaps", Namespace: namespace},
		{Verbs: []string{"get", "update"}, Resource: "configmaps", Namespace: namespace, Object: hubidentity.ClaimsName},
	}
	if !c.noLeaderElection {
		rights = append(rights, kubeconfig.Right{Verbs: []string{"get", "create", "update"}, Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace})
	}
	return kubeconfig.Check{
		Name: "cluster API", Load: c.cluster, Definitions: []schema.GroupVersionResource{record}, Rights: rights,
		Grant: "the administrator of the cluster applies deploy/agent and deploy/crds/appliedmanifestworks.yaml, or runs hawser install cluster",
	}
}

// factRights are the additional rights of an agent that reports facts of the cluster to its hub.
var factRights = []kubeconfig.Right{{Verbs: []string{"list"}, Resource: "nodes"}}

// secretRights are the additional rights of an agent that stores the certificate of its hub.
func (c *config) secretRights(namespace string) []kubeconfig.Right {
	return []kubeconfig.Right{
		{Verbs: []string{"create"}, Resource: "secrets", Namespace: namespace},
		{Verbs: []string{"get", "update"}, Resource: "secrets", Namespace: namespace, Object: c.hubSecret},
	}
}
