package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hawser-io/hawser/deploy"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/cluster"
)

// The names that deploy/ gives the parties on the hub: the source in the
// configuration of hub-source and broker, and the Services.
const (
	sourceID       = "hub"
	operatorName   = "operator"
	brokerService  = "hawser-broker.hawser.svc"
	webhookService = "hawser-hub-source.hawser.svc"
)

// Plan is what is to be on a hub or a cluster.
type Plan struct {
	// Objects come first, in this order; Last only when all Deployments run.
	Objects, Last []*unstructured.Unstructured
	// Manager owns the fields of all of them.
	Manager string
	// Settings are those that the hub is, or was, installed with.
	Settings Settings
	// Operator is the Secret with the certificate of an operator; nil on a cluster.
	Operator map[string][]byte
	// whole tells that the plan has all that its manager applies: what else has been
	// applied by it is not needed any more.
	whole bool
}

// Hub says what is to be on the hub that client leads to. What settings leave out
// is as it was.
func Hub(ctx context.Context, client cluster.Client, settings Settings, now time.Time) (Plan, error) {
	p := Plan{Manager: "hawser-install-hub", whole: true}
	kept, _, err := readSettings(ctx, client)
	if err != nil {
		return p, err
	}
	settings = settings.or(kept)
	if err := settings.check(); err != nil {
		return p, err
	}
	if settings.HubIdentity == "" {
		// No two hubs have the same, and it outlives every address.
		system, err := get(ctx, client, object("v1", "Namespace", "", "kube-system"))
		if err != nil || system == nil {
			return p, errors.Join(err, errors.New("the hub has no namespace kube-system that would say which hub it is"))
		}
		settings.HubIdentity = string(system.GetUID())
	}
	p.Settings = settings
	authority, err := openAuthority(ctx, client, now)
	if err != nil {
		return p, err
	}
	secrets, err := p.hubSecrets(ctx, client, certificates{authority, now})
	if err != nil {
		return p, err
	}
	definition, err := readObjects(deploy.Files, "crds/manifestworks.yaml")
	if err != nil {
		return p, err
	}
	broker, err := render(deploy.Files, "broker", settings.Images)
	if err != nil {
		return p, err
	}
	source, err := render(deploy.Files, "hub-source", settings.Images)
	if err != nil {
		return p, err
	}
	objects := slices.Concat(definition, broker, source)
	for _, o := range objects {
		if o.GetKind() != "ValidatingWebhookConfiguration" {
			continue
		}
		if err := trust(o, authority.CertificatePEM()); err != nil {
			return p, err
		}
	}
	p.take(slices.Concat(objects, secrets, []*unstructured.Unstructured{settings.object()}))
	return p, nil
}

// hubSecrets are the certificates of the parties on the hub, and the authority.
func (p *Plan) hubSecrets(ctx context.Context, hub cluster.Client, c certificates) ([]*unstructured.Unstructured, error) {
	host, _, err := net.SplitHostPort(p.Settings.Address)
	if err != nil {
		return nil, err
	}
	all := []*unstructured.Unstructured{secretOf(authoritySecret, map[string][]byte{certKey: c.authority.CertificatePEM(), keyKey: c.authority.KeyPEM()})}
	hosts := slices.Compact(slices.Sorted(slices.Values([]string{brokerService, host})))
	for _, of := range []struct {
		name string
		pki.Request
	}{
		{brokerSecret, pki.Request{Role: pki.Broker, Name: "broker", Hosts: hosts}},
		{sourceSecret, pki.Request{Role: pki.Source, Name: sourceID}},
		{webhookSecret, pki.Request{Role: pki.Webhook, Name: sourceID, Hosts: []string{webhookService}}},
		{operatorSecret, pki.Request{Role: pki.Operator, Name: operatorName}},
	} {
		s, err := c.secret(ctx, hub, of.name, of.Request, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
		if of.name == operatorSecret {
			if p.Operator, err = dataOf(s); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// trust has the kube-apiserver verify a webhook by an authority.
func trust(o *unstructured.Unstructured, caPEM []byte) error {
	webhooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, w := range webhooks {
		m, ok := w.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: a webhook is a %T", o.GetName(), w)
		}
		if err := unstructured.SetNestedField(m, base64Of(caPEM), "clientConfig", "caBundle"); err != nil {
			return err
		}
	}
	o.SetAnnotations(nil) // cert-manager has no part in it
	return unstructured.SetNestedSlice(o.Object, webhooks, "webhooks")
}

// Managed is a managed cluster.
type Managed struct {
	// Name is what the hub calls it.
	Name        string
	Hub, Client cluster.Client
	// Images are those of the hub where they say nothing.
	Images Images
}

// Cluster says what is to be on a managed cluster.
func Cluster(ctx context.Context, m Managed, now time.Time) (Plan, error) {
	p := Plan{Manager: "hawser-install-cluster", whole: true}
	if wrong := validation.IsDNS1123Label(m.Name); len(wrong) > 0 {
		return p, fmt.Errorf("cluster %q: %s", m.Name, strings.Join(wrong, "; "))
	}
	kept, found, err := readSettings(ctx, m.Hub)
	if err != nil {
		return p, err
	}
	authority, err := readAuthority(ctx, m.Hub)
	if err != nil {
		return p, err
	}
	if !found || authority == nil {
		return p, fmt.Errorf("the hub has no ConfigMap %s/%s and Secret %s: run hawser install hub first, and name the hub with --hub-context", namespace, settingsName, authoritySecret)
	}
	p.Settings = Settings{Images: m.Images}.or(kept)
	have, err := m.mine(ctx, authority)
	if err != nil {
		return p, err
	}
	if was := string(have["hub-identity"]); was != "" {
		p.Settings.HubIdentity = was // what is on the cluster belongs to it
	}
	driver, err := driverFile(p.Settings.Address)
	if err != nil {
		return p, err
	}
	secret, err := certificates{authority, now}.secret(ctx, m.Client, agentSecret, pki.Request{Role: pki.Agent, Name: m.Name}, map[string][]byte{
		"cluster-name": []byte(m.Name), "hub-identity": []byte(p.Settings.HubIdentity), "config.yaml": driver,
	})
	if err != nil {
		return p, err
	}
	label(secret, map[string]string{"hawser.io/agent": "true"})
	definition, err := readObjects(deploy.Files, "crds/appliedmanifestworks.yaml")
	if err != nil {
		return p, err
	}
	agent, err := render(deploy.Files, "agent", p.Settings.Images)
	if err != nil {
		return p, err
	}
	p.take(append(slices.Concat(definition, agent), secret))
	return p, nil
}

// mine returns what is in the agent's Secret, nothing if there is none. One of
// another cluster or hub is an error.
func (m Managed) mine(ctx context.Context, authority *pki.Authority) (map[string][]byte, error) {
	have, err := readSecret(ctx, m.Client, agentSecret)
	if err != nil || have == nil {
		return nil, err
	}
	if was := string(have["cluster-name"]); was != "" && was != m.Name {
		return nil, fmt.Errorf("this cluster is installed as %s: is --context right? hawser uninstall cluster %s gives that name up", was, was)
	}
	if !bytes.Equal(have[caKey], authority.CertificatePEM()) {
		return nil, fmt.Errorf("the agent of this cluster trusts another authority than this hub's: it belongs to another hub, or was installed by hand; "+
			"go on by hand, or delete the Secret %s/%s to have it belong to this hub", namespace, agentSecret)
	}
	return have, nil
}

// OnHub is what a cluster has on its hub: the namespace of its works.
func OnHub(name string) Plan {
	p := Plan{Manager: "hawser-install-hub"}
	p.take([]*unstructured.Unstructured{object("v1", "Namespace", "", name)})
	return p
}

// url is the line of deploy/agent/config.yaml that everybody has to change.
var url = regexp.MustCompile(`(?m)^url: .*$`)

// driverFile is deploy/agent/config.yaml with the address of the broker.
func driverFile(address string) ([]byte, error) {
	data, err := deploy.Files.ReadFile("agent/config.yaml")
	if err != nil {
		return nil, err
	}
	if !url.Match(data) {
		return nil, errors.New("deploy/agent/config.yaml has no url")
	}
	return url.ReplaceAllLiteral(data, []byte("url: "+address)), nil
}

// order is that of kinds: what others are in, or name, comes before them.
var order = []string{"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ConfigMap", "Secret"}

// take sorts the objects and marks them as those of this package.
func (p *Plan) take(objects []*unstructured.Unstructured) {
	place := func(o *unstructured.Unstructured) int {
		if i := slices.Index(order, o.GetKind()); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return place(a) - place(b) })
	seen := map[string]bool{}
	for _, o := range objects {
		if seen[keyOf(o)] {
			continue // the namespace, which each base has
		}
		seen[keyOf(o)] = true
		label(o, map[string]string{managedBy: managedByUs})
		if o.GetKind() == "ValidatingWebhookConfiguration" {
			p.Last = append(p.Last, o)
		} else {
			p.Objects = append(p.Objects, o)
		}
	}
}
