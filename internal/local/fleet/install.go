package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/controlplane"
	"github.com/hawser-io/hawser/internal/pki"
)

// namespace is the namespace of the programs in deploy/.
const namespace = "hawser"

func certificateOf(program string) (pki.Role, string) {
	if strings.HasPrefix(program, Broker) {
		return pki.Broker, "broker"
	}
	return pki.Source, SourceID
}

// kubectl runs kubectl against a control plane as its administrator.
func (f *Fleet) kubectl(ctx context.Context, c *controlplane.Cluster, args ...string) ([]byte, error) {
	return childproc.Run(ctx, f.Kubectl(), append([]string{"--kubeconfig", c.KubeconfigPath}, args...)...)
}

// install applies CRDs and the bases of deploy/ to the control planes.
func (f *Fleet) install(ctx context.Context) error {
	f.cfg.Printf("installing CRDs and RBAC from deploy/")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := f.apply(ctx, f.Hub, "-f", f.deploy("crds/manifestworks.yaml")); err != nil {
			return err
		}
		if err := f.apply(ctx, f.Hub, "-k", f.folder(Broker)); err != nil {
			return err
		}
		if err := f.installHubSource(ctx); err != nil {
			return err
		}
		for _, c := range f.cfg.Clusters {
			if err := f.ensureNamespace(ctx, f.Hub, c); err != nil {
				return err
			}
		}
		return nil
	})
	for _, c := range f.Clusters {
		g.Go(func() error {
			if err := f.apply(ctx, c, "-f", f.deploy("crds/appliedmanifestworks.yaml")); err != nil {
				return err
			}
			return f.apply(ctx, c, "-k", f.deploy(Agent))
		})
	}
	return g.Wait()
}

// installHubSource applies its base, with the address of the webhook's process.
func (f *Fleet) installHubSource(ctx context.Context) error {
	r, err := render(ctx, f.Kubectl(), f.deploy(HubSource))
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(f.PKI().CACert())
	if err != nil {
		return err
	}
	manifests, err := r.onThisMachine(webhookAt{off: f.cfg.NoWebhook, ip: f.ip(HubSource), caBundle: ca})
	if err != nil {
		return fmt.Errorf("%s: %w", f.deploy(HubSource), err)
	}
	file := filepath.Join(f.cfg.Dir, HubSource+".yaml")
	if err := os.WriteFile(file, manifests, 0o600); err != nil {
		return err
	}
	return f.apply(ctx, f.Hub, "-f", file)
}

func (f *Fleet) deploy(path string) string { return filepath.Join(f.cfg.Root, "deploy", path) }

// apply runs kubectl apply --server-side, and waits for CRDs.
func (f *Fleet) apply(ctx context.Context, c *controlplane.Cluster, args ...string) error {
	if _, err := f.kubectl(ctx, c, append([]string{"apply", "--server-side", "--force-conflicts"}, args...)...); err != nil {
		return err
	}
	if strings.Contains(args[1], "/crds/") {
		_, err := f.kubectl(ctx, c, "wait", "--for=condition=Established", "--timeout=30s", "-f", args[1])
		return err
	}
	return nil
}

func (f *Fleet) ensureNamespace(ctx context.Context, c *controlplane.Cluster, name string) error {
	if out, err := f.kubectl(ctx, c, "get", "namespace", name, "--ignore-not-found", "-o", "name"); err != nil || len(out) > 0 {
		return err
	}
	_, err := f.kubectl(ctx, c, "create", "namespace", name)
	return err
}

// startPrograms starts broker, hub-source and agents.
func (f *Fleet) startPrograms(ctx context.Context) error {
	f.cfg.Printf("starting %s, hub-source and %d agents over mTLS", f.brokerName(), len(f.cfg.Clusters))
	if err := f.startBrokers(ctx); err != nil {
		return err
	}
	if err := f.startProgram(ctx, HubSource, HubSource, f.Hub); err != nil {
		return err
	}
	for _, name := range f.cfg.Clusters {
		if err := f.startProgram(ctx, AgentOf(name), Agent, f.Clusters[name]); err != nil {
			return err
		}
	}
	return nil
}

// startBrokers starts the brokers of the fleet, one after the other, as a Deployment does it with surge.
func (f *Fleet) startBrokers(ctx context.Context) (err error) {
	if f.cfg.Transport != Mosquitto {
		for _, name := range f.Brokers() {
			if err := f.startProgram(ctx, name, Broker, nil); err != nil {
				return err
			}
		}
		return nil
	}
	if f.programs[Broker], err = f.newMosquitto(ctx); err != nil {
		delete(f.programs, Broker)
		return err
	}
	return f.programs[Broker].Start(ctx)
}

func (f *Fleet) startProgram(ctx context.Context, name, base string, c *controlplane.Cluster) error {
	kubeconfig := ""
	if c != nil {
		kubeconfig = filepath.Join(f.cfg.Dir, name, "kubeconfig")
		if err := f.serviceAccountKubeconfig(ctx, c, "hawser-"+base, kubeconfig); err != nil {
			return err
		}
	}
	p, err := f.newProgram(ctx, name, base, kubeconfig)
	if err != nil {
		return err
	}
	f.programs[name] = p
	return p.Start(ctx)
}

// serviceAccountKubeconfig writes a kubeconfig with a token of a ServiceAccount of deploy/, because the
// programs never run as administrator.
func (f *Fleet) serviceAccountKubeconfig(ctx context.Context, c *controlplane.Cluster, account, path string) error {
	token, err := f.kubectl(ctx, c, "create", "token", account, "-n", namespace, "--duration", "24h")
	if err != nil {
		return fmt.Errorf("token of ServiceAccount %s: %w", account, err)
	}
	cfg, err := clientcmd.LoadFromFile(c.KubeconfigPath)
	if err != nil {
		return err
	}
	user := cfg.Contexts[cfg.CurrentContext].AuthInfo
	cfg.AuthInfos = map[string]*clientcmdapi.AuthInfo{user: {Token: strings.TrimSpace(string(token))}}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return clientcmd.WriteToFile(*cfg, path)
}
