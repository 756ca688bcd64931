package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/install"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// joining holds the arguments of hawser join.
type joining struct {
	connection
	install.Join
	agent, caFile, caData, tokenFile, tokenGiven, output string
	klusterlet, dryRun, wait                             bool
}

func newJoin(env Env) *cobra.Command {
	var j joining
	cmd := &cobra.Command{
		Use:   "join CLUSTER --context CONTEXT --broker HOST:PORT --broker-ca FILE --token-file FILE",
		Short: "Make a cluster request to join a hub",
		Long: `Make a cluster request to join a hub, with your rights in the cluster's kubeconfig:

  hawser join cluster1 --context cluster1 --broker broker.example.com:8090 --broker-ca ca.crt --token-file token --image-registry registry.example.com/hawser
  hawser accept cluster1 --context hub

The first command installs the Hawser agent. With --klusterlet it installs the Secrets
that the klusterlet of Open Cluster Management reads. The
token comes from hawser token create. The cluster makes its own key, which never leaves
it. The hub signs its certificate after an operator has accepted the cluster. --wait waits
for that, and prints what is missing.

A second run with another token or broker replaces it; a cluster with a certificate keeps
using that. With --dry-run -o yaml all objects are printed, including the token, and no
cluster is needed.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			j.Name = args[0]
			if err := j.check(cmd); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), j.timeout)
			defer cancel()
			return j.run(ctx, cmd, env)
		},
	}
	j.add(cmd, "the managed cluster (required)")
	f := cmd.Flags()
	f.StringVar(&j.agent, "agent", "hawser", "hawser, the agent that joins; see also --klusterlet")
	f.BoolVar(&j.klusterlet, "klusterlet", false, "let the installed klusterlet of Open Cluster Management join")
	f.StringVar(&j.Broker, "broker", "", "address of the broker for this cluster, host:port; several have commas between them (required)")
	f.StringVar(&j.caFile, "broker-ca", "", "PEM file of the CA that signed the broker's certificate (required)")
	f.StringVar(&j.caData, "broker-ca-data", "", "the same file as base64, as hawser token create prints it")
	f.StringVar(&j.tokenFile, "token-file", "", "file with the token of hawser token create; - means standard input (required)")
	f.StringVar(&j.tokenGiven, "token", "", "rejected: other users can read arguments in the list of processes")
	f.StringVar(&j.HubIdentity, "hub-identity", "", "permanent identity of the hub on this cluster (default: unchanged, else the address of the broker)")
	f.StringVar(&j.Images.Registry, "image-registry", "", "registry of the agent's image, such as registry.example.com/hawser")
	f.StringVar(&j.Images.Version, "image-version", "", "version of the image (default that of this program)")
	f.BoolVar(&j.dryRun, "dry-run", false, "print what would be done, and do nothing; with -o yaml print the objects")
	f.StringVarP(&j.output, "output", "o", "", "with --dry-run: yaml, Secrets included")
	f.BoolVar(&j.wait, "wait", false, "wait until the hub has accepted the cluster")
	cmd.MarkFlagsMutuallyExclusive("broker-ca", "broker-ca-data")
	cmd.MarkFlagsMutuallyExclusive("agent", "klusterlet")
	complete(cmd, "agent", fixed("hawser"))
	if err := f.MarkHidden("token"); err != nil {
		panic(err) // the flag exists
	}
	return cmd
}

// prints reports whether only a text is requested.
func (j *joining) prints() bool { return j.dryRun && j.output == "yaml" }

func (j *joining) check(cmd *cobra.Command) error {
	if j.output != "" && !j.prints() {
		return usageOf(cmd, fmt.Errorf("--output %s: the only format is yaml, together with --dry-run", j.output))
	}
	if j.tokenGiven != "" {
		return usageOf(cmd, errors.New("--token: other users of this machine can read it in the list of processes: write it to a file and use --token-file FILE, or --token-file - for standard input"))
	}
	if j.agent != "hawser" {
		return usageOf(cmd, fmt.Errorf("--agent %s: use hawser; for the klusterlet of Open Cluster Management use --klusterlet", j.agent))
	}
	if j.prints() && j.context == "" {
		return j.connection.check(cmd)
	}
	return j.checkCluster(cmd)
}

// run reads the files of the flags, and applies them to the cluster.
func (j *joining) run(ctx context.Context, cmd *cobra.Command, env Env) error {
	if err := j.read(cmd.InOrStdin()); err != nil {
		return err
	}
	if j.Images.Version == "" {
		j.Images.Version = builtAs()
	}
	var client *kubeclient.Kube
	if j.context != "" {
		var err error
		if client, err = j.dial(j.context); err != nil {
			return err
		}
		j.Client = client
	}
	plan := j.Join.Agent
	if j.klusterlet {
		plan = j.Join.Klusterlet
	}
	p, err := plan(ctx)
	if err != nil {
		return err
	}
	switch {
	case j.prints():
		return printYAML(env.Stdout, p)
	case j.dryRun:
		return installer(env, client).DryRun(ctx, p)
	}
	if err := installer(env, client).Put(ctx, p); err != nil {
		return err
	}
	if !j.wait {
		return printf(env.Stdout, "cluster %s requests to join; accept it on the hub:  hawser accept %[1]s\n", j.Name)
	}
	if err := await(ctx, env, "cluster "+j.Name, func(ctx context.Context) (string, error) { return j.Joined(ctx, j.klusterlet) }); err != nil {
		return err
	}
	return printf(env.Stdout, "cluster %s has joined\n", j.Name)
}

// read reads the named files.
func (j *joining) read(stdin io.Reader) error {
	if j.caFile != "" {
		text, err := os.ReadFile(j.caFile)
		if err != nil {
			return err
		}
		j.CA = text
	}
	if j.caData != "" {
		text, err := base64.StdEncoding.DecodeString(j.caData)
		if err != nil {
			return fmt.Errorf("--broker-ca-data is not base64: %w", err)
		}
		j.CA = text
	}
	if j.tokenFile == "" {
		return nil
	}
	read := func() ([]byte, error) { return os.ReadFile(j.tokenFile) }
	if j.tokenFile == "-" {
		read = func() ([]byte, error) { return io.ReadAll(stdin) }
	}
	text, err := read()
	if err != nil {
		return err
	}
	j.Token = strings.TrimSpace(string(text))
	if j.Token == "" {
		return errors.New("--token-file has no token in it")
	}
	return nil
}

// printYAML prints all objects of a plan.
func printYAML(w io.Writer, p install.Plan) error {
	for _, o := range slices.Concat(p.Objects, p.Last) {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		if err := printf(w, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}
