package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

func newMQTT(env Env) *cobra.Command {
	return group(&cobra.Command{
		Use:   "mqtt",
		Short: "Set up a third-party MQTT broker",
	}, newMQTTACL(env))
}

// The third-party MQTT brokers that rules can be written for.
const (
	forMosquitto = "mosquitto"
	forEMQX      = "emqx"
	forAWS       = "aws"
)

// aclFlags are the flags of hawser mqtt acl.
type aclFlags struct {
	broker, source, config, kubeconfig     string
	user, clientID                         string
	sourceUser, sourceClientID             string
	partition, region, account, policyName string
}

func newMQTTACL(env Env) *cobra.Command {
	var f aclFlags
	cmd := &cobra.Command{
		Use:   "acl --for=mosquitto|emqx|aws --source ID [CLUSTER[=USER]]...",
		Short: "Write the access rules of a third-party MQTT broker, so that clusters are isolated",
		Long: `Write the access rules of a third-party MQTT broker, so that clusters are isolated.

  hawser mqtt acl --for=mosquitto --source hub --kubeconfig hub.kubeconfig > acl
  hawser mqtt acl --for=mosquitto --source hub cluster1 cluster2 > acl

The source may publish to all clusters. Each cluster may publish to the source only, and
receive only its own events. All else is denied. There are rules for each CLUSTER, or
without arguments for each ManagedCluster of the hub. Write the rules again when a
cluster joins.

USER is the broker's user name of the cluster's agent: the common name of its certificate,
if the broker uses that. The default is --user, which is the name that hawser pki issues.
Open Cluster Management gives agents common names with a random suffix: specify those. A
Hawser broker needs no rules: it authorizes by certificate.

For aws it writes one line of JSON per client, for aws iot create-policy --cli-input-json.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return usageOf(cmd, err)
			}
			return f.write(cmd.Context(), env.Stdout, args)
		},
	}
	s := cmd.Flags()
	s.StringVar(&f.broker, "for", "", "mosquitto, emqx or aws (required)")
	s.StringVar(&f.source, "source", "", "source id of the hub (required)")
	s.StringVar(&f.config, "config", "", "MQTT configuration file of hub-source: its topics are used; without it sources/ID/clusters/CLUSTER/...")
	s.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the hub, for its ManagedClusters; empty means the file in KUBECONFIG")
	s.StringVar(&f.user, "user", "system:open-cluster-management:{cluster}:agent", "user name of an agent, {cluster} being the name of its cluster")
	s.StringVar(&f.clientID, "client-id", "", "MQTT client id of an agent, {cluster} being the name of its cluster. Empty: for aws the default of Hawser's agent, else the user name, because the broker replaces the id by it")
	s.StringVar(&f.sourceUser, "source-user", "hawser:source:{source}", "user name of the source, {source} being its id")
	s.StringVar(&f.sourceClientID, "source-client-id", "", "MQTT client id of the source, {source} being its id; empty as for --client-id")
	s.StringVar(&f.region, "aws-region", "", "region of AWS IoT Core, as eu-west-1 (required for aws)")
	s.StringVar(&f.account, "aws-account", "", "number of the account (required for aws)")
	s.StringVar(&f.partition, "aws-partition", "aws", "partition of the account")
	s.StringVar(&f.policyName, "aws-policy-prefix", "hawser", "prefix of the names of policies")
	return cmd
}

func (f *aclFlags) check() error {
	switch {
	case !slices.Contains([]string{forMosquitto, forEMQX, forAWS}, f.broker):
		return fmt.Errorf("--for %q: use mosquitto, emqx or aws", f.broker)
	case f.source == "":
		return errors.New("--source is not set: give the source id of the hub")
	case f.broker == forAWS && (f.region == "" || f.account == ""):
		return errors.New("--aws-region and --aws-account are not set: a policy names both")
	}
	return nil
}

func (f *aclFlags) write(ctx context.Context, out io.Writer, clusters []string) error {
	layout, err := f.layout()
	if err != nil {
		return err
	}
	if f.broker == forAWS { // aws keeps client ids unchanged
		f.clientID, f.sourceClientID = cmp.Or(f.clientID, "hawser-agent-{cluster}"), cmp.Or(f.sourceClientID, "hawser-source-{source}")
	}
	if len(clusters) == 0 {
		if clusters, err = managedClusters(ctx, f.kubeconfig); err != nil {
			return hint(err, "give the names of the clusters as arguments, or --kubeconfig of a hub with ManagedClusters")
		}
	}
	rules, err := f.rules(layout, clusters)
	if err != nil {
		return err
	}
	switch f.broker {
	case forMosquitto:
		_, err = io.WriteString(out, mqttacl.Mosquitto(rules))
	case forEMQX:
		_, err = io.WriteString(out, mqttacl.EMQX(rules))
	default:
		err = f.writeAWS(out, rules)
	}
	return err
}

func (f *aclFlags) writeAWS(out io.Writer, rules []mqttacl.Rules) error {
	policies, err := mqttacl.AWS(rules, mqttacl.Account{Partition: f.partition, Region: f.region, ID: f.account}, f.policyName)
	if err != nil {
		return err
	}
	e := json.NewEncoder(out)
	for _, p := range policies {
		if err := e.Encode(p); err != nil {
			return err
		}
	}
	return nil
}

// layout returns the topics of the configuration file, or the default ones.
func (f *aclFlags) layout() (mqttacl.Layout, error) {
	l := mqttacl.DefaultLayout(f.source)
	if f.config == "" {
		return l, nil
	}
	b, err := os.ReadFile(f.config)
	if err != nil {
		return l, err
	}
	var file struct {
		Topics topic.Set `json:"topics"`
	}
	if err := cmdline.DecodeLenient(b, &file); err != nil {
		return l, fmt.Errorf("%s: %w", f.config, err)
	}
	l.Topics = file.Topics
	return l, nil
}

// rules returns the rules of the source and of each cluster.
func (f *aclFlags) rules(l mqttacl.Layout, clusters []string) ([]mqttacl.Rules, error) {
	source, err := l.OfSource(principal(f.source, "{source}", f.sourceUser, f.sourceClientID))
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", f.source, err)
	}
	rules := []mqttacl.Rules{source}
	users := map[string]string{source.User: "the source"}
	for _, arg := range clusters {
		cluster, user, named := strings.Cut(arg, "=")
		if !named {
			user = f.user
		}
		r, err := l.OfAgent(principal(cluster, "{cluster}", user, f.clientID))
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", cluster, err)
		}
		if other := users[r.User]; other != "" {
			return nil, hint(fmt.Errorf("%s and %s have the same user name %s", other, cluster, r.User), "give each client its own user name: use CLUSTER=USER, or --user with {cluster} in it")
		}
		users[r.User] = cluster
		rules = append(rules, r)
	}
	return rules, nil
}

func principal(name, place, user, clientID string) mqttacl.Principal {
	p := mqttacl.Principal{Name: name, User: strings.ReplaceAll(user, place, name)}
	if p.ClientID = strings.ReplaceAll(clientID, place, name); p.ClientID == "" {
		p.ClientID = p.User
	}
	return p
}

// managedClusters returns the sorted names of a hub's ManagedClusters.
func managedClusters(ctx context.Context, file string) ([]string, error) {
	cfg, err := kubeconfig.Load(file, "kubeconfig")
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	list, err := client.Resource(clusterKind).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ManagedClusters: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("the hub has no ManagedCluster")
	}
	return names(list.Items, func(c metav1.PartialObjectMetadata) string { return c.Name }), nil
}
