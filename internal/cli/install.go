package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/install"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// connection configures access to a hub or a cluster, as for kubectl.
type connection struct {
	kubeconfig, context string
	timeout             time.Duration
}

func (c *connection) add(cmd *cobra.Command, of string) {
	fs := cmd.Flags()
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig file; empty means KUBECONFIG, else that of kubectl")
	fs.StringVar(&c.context, "context", "", "context of "+of)
	fs.DurationVar(&c.timeout, "timeout", 5*time.Minute, "total timeout")
}

func (c *connection) check(cmd *cobra.Command) error {
	if c.timeout <= 0 {
		return usageOf(cmd, fmt.Errorf("--timeout %s: programs need some time to start and to stop", c.timeout))
	}
	return nil
}

// checkCluster is check for commands that also use a hub.
func (c *connection) checkCluster(cmd *cobra.Command) error {
	if c.context == "" {
		return usageOf(cmd, errors.New("--context is not set: name the context of the managed cluster, so that the hub is not used by mistake"))
	}
	return c.check(cmd)
}

// config returns the client configuration of a context in the kubeconfig.
func (c *connection) config(name string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
	if err != nil {
		return nil, hint(fmt.Errorf("kubeconfig: %w", err), "list the contexts with: kubectl config get-contexts")
	}
	return cfg, nil
}

// dial returns a client of a context of the kubeconfig.
func (c *connection) dial(name string) (*kubeclient.Kube, error) {
	cfg, err := c.config(name)
	if err != nil {
		return nil, err
	}
	return kubeclient.NewKube(kubeclient.KubeConfig{REST: cfg, QPS: moveQPS, Burst: moveBurst})
}

// both holds the clients of a hub and of one of its clusters.
type both struct{ hub, cluster *kubeclient.Kube }

func (c *connection) dialBoth(hubContext string) (b both, err error) {
	if b.hub, err = c.dial(hubContext); err == nil {
		b.cluster, err = c.dial(c.context)
	}
	return b, err
}

func installer(env Env, client *kubeclient.Kube) install.Installer {
	return install.Installer{Client: client, List: drift.Metadata(client.Metadata()), Printf: func(format string, args ...any) { _ = printf(env.Stdout, format+"\n", args...) }}
}

// installFlags are the flags that both verbs have.
type installFlags struct {
	connection
	images install.Images
	issuer string
	output string
	dryRun bool
}

func (f *installFlags) add(cmd *cobra.Command, of string) {
	f.connection.add(cmd, of)
	fs := cmd.Flags()
	fs.StringVar(&f.images.Registry, "image-registry", "", "registry of the images, such as registry.example.com/hawser")
	fs.StringVar(&f.images.Version, "image-version", "", "version of the images (default that of this program)")
	fs.StringVar(&f.issuer, "cert-manager", "", "cert-manager issuer on this cluster that makes the certificates: NAME of a ClusterIssuer, Issuer/NAME or KIND.GROUP/NAME")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print what would be done, and do nothing; with -o yaml print the objects")
	fs.StringVarP(&f.output, "output", "o", "", "with --dry-run: yaml, Secrets included")
}

func (f *installFlags) check(cmd *cobra.Command) error {
	if f.output != "" && (f.output != "yaml" || !f.dryRun) {
		return usageOf(cmd, fmt.Errorf("--output %s: the only format is yaml, together with --dry-run", f.output))
	}
	return f.connection.check(cmd)
}

// carryOut applies plans, or reports or prints what would be applied.
func (f *installFlags) carryOut(ctx context.Context, env Env, client *kubeclient.Kube, p install.Plan) error {
	i := installer(env, client)
	switch {
	case f.output == "yaml":
		return printYAML(env.Stdout, p)
	case f.dryRun:
		return i.DryRun(ctx, p)
	}
	return i.Apply(ctx, p)
}

// builtAs returns the version of this program, empty if it was built without one.
func builtAs() string {
	if v := strings.Fields(telemetry.Version("hawser"))[1]; !strings.HasPrefix(v, "(") && v != "unknown" {
		return v
	}
	return ""
}

func newInstall(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "install",
		Short: "Install Hawser on a hub and on managed clusters",
		Long: `Install Hawser on a hub and on managed clusters:

  hawser install hub --context hub --address broker.example.com:8090 --image-registry registry.example.com/hawser
  hawser install cluster cluster1 --hub-context hub --context cluster1

Both apply the manifests of deploy/, with your rights in the kubeconfig, and wait until
the programs run. A second run changes nothing, except that it renews certificates in the
last third of their lifetime. With a newer program it upgrades.`,
	}, newInstallHub(env), newInstallCluster(env))
}

// hubFlags are the flags of the installation of a hub.
type hubFlags struct {
	installFlags
	settings              install.Settings
	registration, confine bool
	access                string
}

func newInstallHub(env Env) *cobra.Command {
	var f hubFlags
	cmd := &cobra.Command{
		Use:   "hub --address HOST:PORT --image-registry REGISTRY",
		Short: "Install broker and hub-source on a hub, with certificates for both and for an operator",
		Long: `Install broker and hub-source on a hub, with certificates for both and for an operator.

The first run makes the CA that signs them and stores it in the Secret hawser-ca in the
namespace hawser. Keep it secret: its holder can use any identity at the broker. The
Service hawser-broker is for the hub only. --address must lead to its port 8090, through a
load balancer that passes TLS through.

With --registration clusters request to join (hawser join), and an operator accepts them
(hawser accept). The CA that signs their certificates is in the Secret hawser-signer. If
the hub has the controllers of Open Cluster Management, these sign instead. With --confine
too, a ValidatingAdmissionPolicy lets hub-source write only in the namespaces of its
clusters, independent of its roles.

With --postgres-secret several brokers share a PostgreSQL database. The Secret is in the
namespace hawser, and has the keys url and password, and as needed ca.crt, which url names
as /etc/hawser/postgres/ca.crt. A broker that runs with a volume is not replaced: its works
must be copied first.

With --cert-manager an issuer of cert-manager makes and renews the certificates, and
there is no Secret hawser-ca. The issuer must belong to a private CA; the issuers on the
clusters must belong to the same CA.`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, env) },
	}
	f.add(cmd, "the hub (default the current one)")
	fs, s := cmd.Flags(), &f.settings
	fs.StringVar(&s.Address, "address", "", "address of the broker for agents on other clusters, host:port")
	fs.StringVar(&s.PostgresSecret, "postgres-secret", "", "Secret with url and password of a PostgreSQL database that several brokers share, or none for the volume of one broker (default: unchanged)")
	fs.IntVar(&s.Replicas, "replicas", 0, "number of brokers (default: unchanged, at first 3 with --postgres-secret and 1 without)")
	fs.BoolVar(&f.registration, "registration", false, "let clusters join through the broker (default: unchanged)")
	fs.BoolVar(&f.confine, "confine", false, "with --registration, let hub-source write only in the namespaces of its clusters (default: unchanged)")
	fs.StringVar(&f.access, "access", accessDir, "directory for the operator's certificate")
	return cmd
}

func (f *hubFlags) run(cmd *cobra.Command, env Env) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	client, err := f.dial(f.context)
	if err != nil {
		return err
	}
	if f.images.Version == "" {
		f.images.Version = builtAs()
	}
	f.settings.Images = f.images
	if f.settings.Issuer, err = install.ParseIssuer(f.issuer); err != nil {
		return usageOf(cmd, err)
	}
	switches := map[bool]install.Switch{true: install.On, false: install.Off}
	if cmd.Flags().Changed("registration") {
		f.settings.Registration = switches[f.registration]
	}
	if cmd.Flags().Changed("confine") {
		f.settings.Confined = switches[f.confine]
	}
	p, err := install.Hub(ctx, client, f.settings, env.Now())
	if err != nil {
		return err
	}
	if err := f.carryOut(ctx, env, client, p); err != nil || f.dryRun {
		return err
	}
	operator, err := install.Operator(ctx, client)
	if err != nil {
		return err
	}
	return f.giveAccess(env, p.Settings, operator, f.access)
}

// giveAccess writes the operator's certificate and prints how to use it.
func (f *installFlags) giveAccess(env Env, s install.Settings, operator map[string][]byte, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	settings := fmt.Sprintf("export HAWSER_BROKER=%s HAWSER_CA='%s' HAWSER_CERT='%s' HAWSER_KEY='%s'\n",
		s.Address, filepath.Join(dir, "ca.crt"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	for name, data := range map[string][]byte{"ca.crt": operator["ca.crt"], "tls.crt": operator["tls.crt"], "tls.key": operator["tls.key"], "env": []byte(settings)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return printf(env.Stdout, "the hub is ready\nagents dial %s:  let it lead to port 8090 of the Service hawser-broker in the namespace hawser\nyour own access:  . '%s' && %s get clusters\n%s",
		s.Address, filepath.Join(dir, "env"), env.name(), lines(f.clusterLines(env, s, dir)))
}

func newInstallCluster(env Env) *cobra.Command {
	var f installFlags
	var hubContext string
	cmd := &cobra.Command{
		Use:   "cluster NAME --context CONTEXT",
		Short: "Install the agent on a managed cluster, with a certificate that the hub's CA signs",
		Long: `Install the agent on a managed cluster, with a certificate that the hub's CA signs, and
create the namespace of its works on the hub.

If cert-manager makes the certificates of the hub, --cert-manager names an issuer of the
same CA on the managed cluster.

On a hub that was installed with --registration, a cluster receives works only after the
hub has accepted it. Until then this command fails, and prints how to join (hawser join).`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkCluster(cmd); err != nil {
				return err
			}
			if err := f.check(cmd); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			b, err := f.dialBoth(hubContext)
			if err != nil {
				return err
			}
			issuer, err := install.ParseIssuer(f.issuer)
			if err != nil {
				return usageOf(cmd, err)
			}
			if err := f.admits(ctx, env, b, args[0], hubContext); err != nil {
				return err
			}
			p, err := install.Cluster(ctx, install.Managed{Name: args[0], Hub: b.hub, Client: b.cluster, Images: f.images, Issuer: issuer}, env.Now())
			if err != nil {
				return err
			}
			if f.output == "" { // the printed objects are for the cluster only
				if err := printf(env.Stdout, "on the hub:\n"); err != nil {
					return err
				}
				if err := f.carryOut(ctx, env, b.hub, install.OnHub(args[0])); err != nil {
					return err
				}
				if err := printf(env.Stdout, "on the cluster, context %s:\n", f.context); err != nil {
					return err
				}
			}
			if err := f.carryOut(ctx, env, b.cluster, p); err != nil || f.dryRun {
				return err
			}
			if err := install.CheckTrust(ctx, b.hub, b.cluster, env.Now()); err != nil {
				return err
			}
			return printf(env.Stdout, "cluster %s is ready: apply its works on the hub, in the namespace %[1]s\n", args[0])
		},
	}
	f.add(cmd, "the managed cluster (required)")
	cmd.Flags().StringVar(&hubContext, "hub-context", "", "context of the hub (default the current one)")
	return cmd
}
