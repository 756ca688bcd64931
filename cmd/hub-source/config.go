package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hawser-io/hawser/internal/admission"
	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/leader"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// config holds all settings. The file uses these names; a flag overrides the file.
type config struct {
	SourceID   string `json:"sourceID"`
	Kubeconfig string `json:"kubeconfig"`
	// Transport is the protocol towards the broker: grpc, with the settings below, or mqtt, with the file in
	// TransportConfig.
	Transport       string `json:"transport"`
	TransportConfig string `json:"transportConfig"`
	Broker          string `json:"broker"`

	TLS struct {
		CertFile   string `json:"certFile"`
		KeyFile    string `json:"keyFile"`
		CAFile     string `json:"caFile"`
		ServerName string `json:"serverName"`
	} `json:"tls"`
	Insecure bool `json:"insecure"`
	// Proxy is the HTTP proxy to the broker, for both transports, as http://user:password@proxy.example:3128, or
	// none.
	Proxy string `json:"proxy"`
	// ProxyCAFile is a PEM file of the CAs that sign the certificate of an https:// proxy.
	ProxyCAFile string `json:"proxyCAFile"`

	ClusterSelector   string `json:"clusterSelector"`
	NamespaceSelector string `json:"namespaceSelector"`

	LeaderElection struct {
		Enabled           bool             `json:"enabled"`
		Identity          string           `json:"identity"`
		ResourceName      string           `json:"resourceName"`
		ResourceNamespace string           `json:"resourceNamespace"`
		LeaseDuration     cmdline.Duration `json:"leaseDuration"`
		RenewDeadline     cmdline.Duration `json:"renewDeadline"`
		RetryPeriod       cmdline.Duration `json:"retryPeriod"`
	} `json:"leaderElection"`

	StateNamespace string `json:"stateNamespace"`

	Webhook struct {
		Listen        string `json:"listen"`
		CertFile      string `json:"certFile"`
		KeyFile       string `json:"keyFile"`
		ClientCAFile  string `json:"clientCAFile"`
		ManifestLimit int    `json:"manifestLimit"`
	} `json:"webhook"`
	FeatureGates cmdline.FeatureGates `json:"featureGates"`

	// RegistrationControllers is the configuration of the registration controllers, for a hub that has none.
	RegistrationControllers registrationControllersConfig `json:"registrationControllers"`
	// Registration is the configuration of clusters that join this hub through the broker.
	Registration registrationConfig `json:"registration"`

	KubeAPIQPS   float32 `json:"kubeAPIQPS"`
	KubeAPIBurst int     `json:"kubeAPIBurst"`

	cmdline.Output

	// file is the configuration file, "" without one; reread reads it again.
	file   string
	reread func() (*config, error)
}

// The feature gates, named as in Open Cluster Management.
const (
	gateCleanUp     = "CleanUpCompletedManifestWork"
	gateNilExecutor = "NilExecutorValidating"
)

func defaults() *config {
	c := &config{Transport: transport.GRPC, StateNamespace: "hawser", KubeAPIQPS: 200, KubeAPIBurst: 400, Output: cmdline.NewOutput("127.0.0.1:8082")}
	e := &c.LeaderElection
	e.Enabled, e.ResourceName, e.ResourceNamespace = true, program, "hawser"
	e.LeaseDuration, e.RenewDeadline, e.RetryPeriod = cmdline.Duration(15*time.Second), cmdline.Duration(10*time.Second), cmdline.Duration(2*time.Second)
	c.Webhook.ManifestLimit = manifestwork.MaxManifestsSize
	c.RegistrationControllers = defaultRegistrationControllers()
	c.Registration = defaultRegistration()
	c.FeatureGates = cmdline.NewFeatureGates(map[string]bool{gateCleanUp: false, gateNilExecutor: false})
	return c
}

func (c *config) addFlags(f *pflag.FlagSet) {
	cmdline.AddConfigFlag(f)
	f.StringVar(&c.SourceID, "source-id", c.SourceID, "source id of this hub at the broker, unique per hub: the name that the broker assigns to the client certificate. It owns the works, so never change it")
	f.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "kubeconfig of the hub; empty means KUBECONFIG, then the service account of the pod")
	f.StringVar(&c.Transport, "transport", c.Transport, "protocol towards the broker: grpc or mqtt")
	f.StringVar(&c.TransportConfig, "transport-config", c.TransportConfig, "configuration file of the MQTT connection, as for OCM's mqtt driver (brokerHost, topics, caFile, clientCertFile, clientKeyFile, ...); --broker and the TLS files are for grpc")
	f.StringVar(&c.Broker, "broker", c.Broker, "host:port of the broker; several brokers of one store have commas between them")
	f.StringVar(&c.TLS.CertFile, "tls-cert-file", c.TLS.CertFile, "PEM file of the client certificate")
	f.StringVar(&c.TLS.KeyFile, "tls-key-file", c.TLS.KeyFile, "PEM file of its key")
	f.StringVar(&c.TLS.CAFile, "ca-file", c.TLS.CAFile, "PEM file of the CAs that sign the broker's certificate; empty means those of the system")
	f.StringVar(&c.TLS.ServerName, "tls-server-name", c.TLS.ServerName, "name the broker's certificate must have; empty means the host of --broker")
	f.BoolVar(&c.Insecure, "insecure", c.Insecure, "plaintext; only to a broker on a loopback address")
	f.StringVar(&c.Proxy, "proxy", c.Proxy, "HTTP proxy to the broker, as http://proxy.example:3128, or none; empty means the key proxy of --transport-config, then HTTPS_PROXY and NO_PROXY. All users of this machine can read a password in a flag: write it into the file")
	f.StringVar(&c.ProxyCAFile, "proxy-ca-file", c.ProxyCAFile, "PEM file of the CAs that sign the certificate of a proxy with https://; empty means those of the system")
	f.StringVar(&c.ClusterSelector, "cluster-selector", c.ClusterSelector, "serve only the clusters whose ManagedCluster has these labels, as region=eu,tier!=test; empty means every namespace with works")
	f.StringVar(&c.NamespaceSelector, "namespace-selector", c.NamespaceSelector, "serve only the clusters whose namespace has these labels; for hubs without ManagedClusters")
	e := &c.LeaderElection
	f.BoolVar(&e.Enabled, "leader-elect", e.Enabled, "let one replica at a time work; without it there must be only one")
	f.StringVar(&e.Identity, "leader-elect-identity", e.Identity, "name of this replica in the Lease, different from other replicas. If the name survives a restart, the replica takes its Lease back at once. Empty means the host name and a random part")
	f.StringVar(&e.ResourceName, "leader-elect-resource-name", e.ResourceName, "name of the Lease")
	f.StringVar(&e.ResourceNamespace, "leader-elect-resource-namespace", e.ResourceNamespace, "namespace of the Lease")
	f.Var(&e.LeaseDuration, "leader-elect-lease-duration", "time that the other replicas wait for a silent leader; longer than the renew deadline")
	f.Var(&e.RenewDeadline, "leader-elect-renew-deadline", "time that a leader tries to renew before it ends; at least twice the retry period")
	f.Var(&e.RetryPeriod, "leader-elect-retry-period", "time between attempts to become or stay leader")
	f.StringVar(&c.StateNamespace, "state-namespace", c.StateNamespace, "namespace of the ConfigMap hawser-hub-source-<source id>, which has the position of statuses and whether deletions are withheld; empty keeps that in memory")
	f.StringVar(&c.Webhook.Listen, "webhook-listen", c.Webhook.Listen, "host:port of the webhook that checks ManifestWorks, HTTPS; empty switches it off")
	f.StringVar(&c.Webhook.CertFile, "webhook-cert-file", c.Webhook.CertFile, "PEM file of the webhook's certificate")
	f.StringVar(&c.Webhook.KeyFile, "webhook-key-file", c.Webhook.KeyFile, "PEM file of its key")
	f.StringVar(&c.Webhook.ClientCAFile, "webhook-client-ca-file", c.Webhook.ClientCAFile, "PEM file of the CAs that sign the client certificate of the kube-apiserver for the webhook; empty allows every caller that reaches the port")
	f.IntVar(&c.Webhook.ManifestLimit, "webhook-manifest-limit", c.Webhook.ManifestLimit, "largest sum of the manifests of a work, in bytes of their JSON plus 2 to 4 for each. Agents accept no more than the default, so 1 to 512000")
	f.Var(&c.FeatureGates, "feature-gates", c.FeatureGates.Usage())
	f.Float32Var(&c.KubeAPIQPS, "kube-api-qps", c.KubeAPIQPS, "requests per second to the hub, watches not counted, more than 0")
	f.IntVar(&c.KubeAPIBurst, "kube-api-burst", c.KubeAPIBurst, "requests to the hub at once, more than 0")
	c.Output.AddFlags(f)
}

// load reads the file that --config names, if any, overrides it with the given flags, and validates the result.
func (c *config) load(f *pflag.FlagSet) error {
	if err := cmdline.Load(f, c); err != nil {
		return err
	}
	c.file = cmdline.ConfigFile(f)
	c.reread = func() (*config, error) {
		now := defaults()
		flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
		now.addFlags(flags)
		if err := cmdline.Repeat(flags, f); err != nil {
			return nil, err
		}
		return now, now.load(flags)
	}
	return c.validate()
}

// validate returns all problems of the settings, each with its remedy.
func (c *config) validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case c.SourceID == "":
		wrong("source-id is empty: name this hub, as the broker's configuration names the holder of the client certificate")
	case len(validation.IsDNS1123Subdomain(c.SourceID)) > 0:
		wrong("source-id %q: use lower-case letters, digits, '-' and '.', as hub-eu", c.SourceID)
	}
	errs = append(errs, c.Output.Validate())
	if _, err := c.proxy().Server(); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, c.validateTransport()...)
	errs = append(errs, c.validateWebhook()...)
	errs = append(errs, c.RegistrationControllers.validate()...)
	errs = append(errs, c.Registration.validate(c.Transport)...)
	if err := c.selection().Validate(); err != nil {
		wrong("%w (flags --cluster-selector and --namespace-selector)", err)
	}
	if e := c.LeaderElection; e.Enabled {
		if e.ResourceName == "" || e.ResourceNamespace == "" {
			wrong("leader election needs leader-elect-resource-name and leader-elect-resource-namespace; with a single replica it can be switched off by --leader-elect=false")
		}
		errs = append(errs, leader.CheckTimes(time.Duration(e.LeaseDuration), time.Duration(e.RenewDeadline), time.Duration(e.RetryPeriod)))
	}
	if c.KubeAPIQPS <= 0 || c.KubeAPIBurst <= 0 {
		wrong("kube-api-qps %v and kube-api-burst %d: use positive numbers", c.KubeAPIQPS, c.KubeAPIBurst)
	}
	return errors.Join(errs...)
}

// validateTransport ignores the grpc settings if grpc is not used, so that they may stay for a later change
// back.
func (c *config) validateTransport() []error {
	switch {
	case c.Transport == transport.MQTT && c.TransportConfig == "":
		return []error{errors.New("transport mqtt needs transport-config, the configuration file of the MQTT connection")}
	case c.Transport == transport.MQTT:
		return nil
	case c.Transport != transport.GRPC:
		return []error{fmt.Errorf("transport %q: use %s or %s", c.Transport, transport.GRPC, transport.MQTT)}
	case c.TransportConfig != "":
		return []error{errors.New("transport-config is for transport mqtt: for grpc, use broker and the TLS files")}
	}
	return c.validateBroker()
}

func (c *config) validateBroker() (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	brokers, err := transport.Addresses(c.Broker)
	if err != nil {
		wrong("broker %w", err)
	}
	tls := c.TLS.CertFile != "" || c.TLS.KeyFile != "" || c.TLS.CAFile != "" || c.TLS.ServerName != ""
	switch {
	case c.Insecure && tls:
		wrong("insecure and TLS settings exclude each other: drop one of them")
	case c.Insecure && !cmdline.LoopbackOnly(brokers):
		wrong("insecure to %s: plaintext is allowed to a loopback address only, as --broker 127.0.0.1:8090", c.Broker)
	case !c.Insecure && (c.TLS.CertFile == "" || c.TLS.KeyFile == ""):
		wrong("TLS needs tls-cert-file and tls-key-file, because the broker identifies this hub by them. To try things out on this machine, use --insecure with a broker on 127.0.0.1")
	}
	return errs
}

func (c *config) validateWebhook() (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	h := c.Webhook
	if err := admission.ValidateLimit(h.ManifestLimit); err != nil {
		wrong("webhook-manifest-limit: %w", err)
	}
	if h.Listen == "" {
		if h.CertFile != "" || h.KeyFile != "" || h.ClientCAFile != "" {
			wrong("webhook-cert-file, webhook-key-file and webhook-client-ca-file are of no use without webhook-listen, which switches the webhook on")
		}
		if c.FeatureGates.Enabled(gateNilExecutor) {
			wrong("feature gate %s is for the webhook, which is off: set webhook-listen", gateNilExecutor)
		}
		return errs
	}
	if _, _, err := net.SplitHostPort(h.Listen); err != nil {
		wrong("webhook-listen %q: use host:port, as 0.0.0.0:9443, or nothing to switch it off", h.Listen)
	}
	if h.CertFile == "" || h.KeyFile == "" {
		wrong("webhook-listen needs webhook-cert-file and webhook-key-file: a kube-apiserver calls webhooks over HTTPS only")
	}
	return errs
}

func (c *config) proxy() transport.Proxy {
	return transport.Proxy{URL: c.Proxy, CAFile: c.ProxyCAFile}
}

func (c *config) selection() hubsource.Selection {
	return hubsource.Selection{Clusters: c.ClusterSelector, Namespaces: c.NamespaceSelector}
}
