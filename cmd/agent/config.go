package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/internal/leader"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/feedback"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/transport"
)

// config holds all settings. Flags that OCM's work agent has too have the same meaning here.
type config struct {
	clusterName, agentID, hubIdentity string

	spokeKubeconfig    string
	kubeAPIQPS         float32
	kubeAPIBurst       int
	statusSyncInterval time.Duration
	evictionGrace      time.Duration
	workers            int
	profile            string

	sourceDriver, sourceConfig, clientID string
	insecure                             bool
	proxy                                transport.Proxy
	// bootstrapConfig and hubSecret are set for an agent that registers itself.
	bootstrapConfig, hubSecret string
	// pod returns the cluster and the namespace of the agent's pod; nil means ownPod.
	pod func() (*rest.Config, string, error)

	stateDir, namespace, policyFile           string
	noLeaderElection                          bool
	leaseDuration, renewDeadline, retryPeriod time.Duration

	gates        cmdline.FeatureGates
	maxRawLength int

	output cmdline.Output
}

// profile is what the agent may use of its machine and of the kube-apiserver.
type profile struct {
	// inFlight is the number of requests to the kube-apiserver at a time, and the largest number of workers.
	inFlight int
	// gcPercent is the GC percentage; GOGC in the environment overrides it.
	gcPercent int
	// memory is the memory limit of the Go runtime in bytes, unless GOMEMLIMIT is set. 0: that of the control group.
	memory int64
}

const (
	standardProfile = "standard"
	smallProfile    = "small"
)

var profiles = map[string]profile{
	standardProfile: {inFlight: kubeclient.DefaultInFlight, gcPercent: 50}, // the program is mostly idle
	smallProfile:    {inFlight: 4, gcPercent: 20, memory: 16 << 20},
}

// The feature gates, named as in Open Cluster Management.
const (
	gateExecutorCaches = "ExecutorValidatingCaches"
	gateRawFeedback    = "RawFeedbackJsonString"
)

func defaults() *config {
	return &config{
		kubeAPIBurst: 100, statusSyncInterval: agent.DefaultStatusSyncInterval, evictionGrace: agent.DefaultEvictionGrace, workers: agent.DefaultWorkers, profile: standardProfile,
		sourceDriver: driverGRPC, sourceConfig: "/spoke/hub-kubeconfig/config.yaml", hubSecret: "hub-kubeconfig-secret",
		leaseDuration: 137 * time.Second, renewDeadline: 107 * time.Second, retryPeriod: 26 * time.Second,
		gates:        cmdline.NewFeatureGates(map[string]bool{gateExecutorCaches: false, gateRawFeedback: false}),
		maxRawLength: feedback.MaxRawLength,
		output:       cmdline.NewOutput("127.0.0.1:8083"),
	}
}

func (c *config) addFlags(f *pflag.FlagSet) {
	f.StringVar(&c.clusterName, "spoke-cluster-name", c.clusterName, "name of this cluster on the hub: lower-case letters, digits and '-', at most 63; required")
	f.StringVar(&c.clusterName, "cluster-name", c.clusterName, "the same as --spoke-cluster-name")
	f.StringVar(&c.agentID, "agent-id", c.agentID, "id of this agent in AppliedManifestWorks: the agent manages those with its own id; empty means the hash of the hub identity")
	f.StringVar(&c.hubIdentity, "hub-identity", c.hubIdentity, "identity of the hub on this cluster, independent of the address of its broker. Empty means the recorded identity of this broker, at first the url, or brokerHost, of --workload-source-config. Another identity is another hub; hawser hub-identity transfer transfers objects")
	f.StringVar(&c.spokeKubeconfig, "spoke-kubeconfig", c.spokeKubeconfig, "kubeconfig of the managed cluster; empty means the file in KUBECONFIG, else the service account of the pod")
	f.Float32Var(&c.kubeAPIQPS, "kube-api-qps", c.kubeAPIQPS, "limit of the requests per second to the managed cluster; 0 means none: the agent sends as many as the kube-apiserver answers, at most 20 at a time")
	f.IntVar(&c.kubeAPIBurst, "kube-api-burst", c.kubeAPIBurst, "with --kube-api-qps, requests to the managed cluster at once, more than 0")
	f.DurationVar(&c.statusSyncInterval, "status-sync-interval", c.statusSyncInterval, "interval of reads of objects that cannot be watched, at least 1s")
	f.DurationVar(&c.evictionGrace, "appliedmanifestwork-eviction-grace-period", c.evictionGrace, "grace period before the objects of an orphan work are removed, after it is certain that no source has the work; 100 years (876000h) or more mean for ever")
	f.IntVar(&c.workers, "workload-agent-workers", c.workers, "number of works that are reconciled concurrently, at least 1")
	f.StringVar(&c.profile, "profile", c.profile, "use of the machine: standard, or small for an edge device with little memory and few works: at most 4 workers and 4 requests to the managed cluster at a time, and 16 MiB of Go memory before garbage is collected all the time; GOGC and GOMEMLIMIT in the environment override that")
	f.StringVar(&c.sourceDriver, "workload-source-driver", c.sourceDriver, "driver of the broker connection: grpc or mqtt")
	f.StringVar(&c.sourceConfig, flagSource, c.sourceConfig, "configuration file of the broker connection, as for OCM's driver: with grpc url, caFile, clientCertFile, clientKeyFile, ..., with mqtt brokerHost and topics instead of url")
	f.StringVar(&c.bootstrapConfig, flagBootstrap, c.bootstrapConfig, "file instead of --workload-source-config for an agent that registers its cluster itself: url, caFile or caData, and token or tokenFile for the request of a client certificate. docs/join.md describes how a cluster joins")
	f.StringVar(&c.hubSecret, "hub-kubeconfig-secret", c.hubSecret, "with --grpc-bootstrap-config, Secret for the client certificate of the hub and its key. It is in --namespace or, if the agent runs in a pod of another cluster than its managed one, in the namespace of the pod. Agents of several hubs need one Secret each")
	f.StringVar(&c.clientID, "cloudevents-client-id", c.clientID, "name of this agent in the events that it sends; empty means <cluster>-work-agent")
	f.BoolVar(&c.insecure, "insecure", c.insecure, "plaintext; only to a broker on a loopback address")
	f.StringVar(&c.proxy.URL, "proxy", c.proxy.URL, "HTTP proxy to the broker, as http://proxy.example:3128, or none; overrides the key proxy of --workload-source-config, which overrides HTTPS_PROXY and NO_PROXY. All users of this machine can read a password in a flag: write it into the file")
	f.StringVar(&c.proxy.CAFile, "proxy-ca-file", c.proxy.CAFile, "PEM file of the CAs that sign the certificate of a proxy with https://; wins over the key proxyCAFile; empty means those of the system")
	f.StringVar(&c.stateDir, "state-dir", c.stateDir, "state directory: the desired state of this cluster, for a restart without the broker. It contains works unencrypted, Secrets included. No other process may use it. Empty: an agent that starts waits for the broker")
	f.StringVar(&c.namespace, "namespace", c.namespace, "namespace on the managed cluster for the Lease of the active agent, and for the ConfigMap with the hub identities; empty means the namespace of the pod")
	f.StringVar(&c.policyFile, "policy-file", c.policyFile, "file with the allowed kinds of objects per hub and namespace of this cluster; read again when it changes. Empty: all rights of the service account, except objects that agents need")
	f.BoolVar(&c.noLeaderElection, "disable-leader-election", c.noLeaderElection, "run without the Lease; there must then be only one agent")
	f.DurationVar(&c.leaseDuration, "leader-election-lease-duration", c.leaseDuration, "time that other agents wait for a silent active agent, longer than the renew deadline; an agent that restarts with the same state directory does not wait")
	f.DurationVar(&c.renewDeadline, "leader-election-renew-deadline", c.renewDeadline, "time that the active agent tries to renew the Lease before it ends; at least twice the retry period")
	f.DurationVar(&c.retryPeriod, "leader-election-retry-period", c.retryPeriod, "time between attempts to get or renew the Lease")
	f.Var(&c.gates, "feature-gates", c.gates.Usage())
	f.IntVar(&c.maxRawLength, "max-json-raw-length", c.maxRawLength, fmt.Sprintf("bytes of the longest feedback value that is raw JSON, with feature gate %s; at most %d, which is what the hub accepts", gateRawFeedback, feedback.MaxRawLength))
	c.output.AddFlags(f)
}

// validate returns all problems of the settings, each with its remedy.
func (c *config) validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case c.clusterName == "":
		wrong("spoke-cluster-name is empty: give the name that this cluster has on the hub")
	case len(validation.IsDNS1123Label(c.clusterName)) > 0:
		wrong("spoke-cluster-name %q: use lower-case letters, digits and '-', at most 63, as cluster1", c.clusterName)
	}
	if c.kubeAPIQPS < 0 || c.kubeAPIBurst <= 0 {
		wrong("kube-api-qps %v and kube-api-burst %d: use positive numbers, or kube-api-qps 0 for no limit", c.kubeAPIQPS, c.kubeAPIBurst)
	}
	if c.statusSyncInterval < time.Second {
		wrong("status-sync-interval %v: use at least 1s", c.statusSyncInterval)
	}
	if c.evictionGrace < 0 {
		wrong("appliedmanifestwork-eviction-grace-period %v: use a positive duration, as 60m, or 0 for at once", c.evictionGrace)
	}
	if c.workers < 1 {
		wrong("workload-agent-workers must be >= 1, got %d", c.workers)
	}
	if _, known := profiles[c.profile]; !known {
		wrong("profile %q: use %s or %s", c.profile, standardProfile, smallProfile)
	}
	if c.maxRawLength < 1 || c.maxRawLength > feedback.MaxRawLength {
		wrong("max-json-raw-length %d: use 1 to %d; the hub accepts no longer values", c.maxRawLength, feedback.MaxRawLength)
	}
	if c.sourceDriver != driverGRPC && c.sourceDriver != driverMQTT {
		wrong("workload-source-driver %q is not supported by this agent: use %s or %s", c.sourceDriver, driverGRPC, driverMQTT)
	}
	if _, err := c.proxy.Server(); err != nil {
		errs = append(errs, err)
	}
	if c.sourceConfig == "" {
		wrong("workload-source-config is empty: name the file with the address and the credentials of the broker")
	}
	errs = append(errs, c.output.Validate())
	return errors.Join(append(errs, c.validateJoin(), c.validateLease())...)
}

func (c *config) validateJoin() error {
	var errs []error
	switch {
	case !c.joins():
		return nil
	case c.sourceDriver == driverMQTT:
		errs = append(errs, errors.New("grpc-bootstrap-config with workload-source-driver mqtt: a cluster joins over gRPC only. Remove one of them; over MQTT an agent needs a certificate or a password from an operator"))
	case c.insecure:
		errs = append(errs, errors.New("grpc-bootstrap-config and insecure exclude each other: the certificate that the hub issues needs TLS"))
	}
	if len(validation.IsDNS1123Subdomain(c.hubSecret)) > 0 {
		errs = append(errs, fmt.Errorf("hub-kubeconfig-secret %q: use lower-case letters, digits, '-' and '.', as hub-kubeconfig-secret", c.hubSecret))
	}
	return errors.Join(errs...)
}

func (c *config) validateLease() error {
	if c.noLeaderElection {
		return nil
	}
	err := leader.CheckTimes(c.leaseDuration, c.renewDeadline, c.retryPeriod)
	if c.namespace != "" && len(validation.IsDNS1123Label(c.namespace)) > 0 {
		err = errors.Join(err, fmt.Errorf("namespace %q: use lower-case letters, digits and '-', at most 63, as hawser", c.namespace))
	}
	return err
}

// cluster returns the client configuration of the managed cluster.
func (c *config) cluster() (*rest.Config, error) {
	r, err := kubeconfig.Load(c.spokeKubeconfig, "spoke-kubeconfig")
	if err != nil {
		return nil, fmt.Errorf("reach the managed cluster: %w", err)
	}
	return r, nil
}
