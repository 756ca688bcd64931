package install

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hawser-io/hawser/deploy"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// The names that deploy/ gives the parties on the hub: the source in the
// configuration of hub-source and broker, and the Services.
const (
	sourceID       = "hub"
	operatorName   = "operator"
	brokerService  = "hawser-broker.hawser.svc"
	webhookService = "hawser-hub-source.hawser.svc"
	// membershipName is that of all in deploy/hub-source-registration/membership.yaml.
	membershipName = "hawser-hub-source-membership"
)

// Plan is what is to be on a hub or a cluster.
type Plan struct {
	// Objects come first, in this order; Last only when all Deployments run.
	Objects, Last []*unstructured.Unstructured
	// Manager owns the fields of all of them.
	Manager string
	// Settings are those that the hub is, or was, installed with.
	Settings Settings
	// whole tells that the plan has all that its manager applies: what else has been
	// applied by it is not needed any more.
	whole bool
}

// Hub says what is to be on the hub that client leads to. What settings leave out
// is as it was.
func Hub(ctx context.Context, client kubeclient.Client, settings Settings, now time.Time) (Plan, error) {
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
	secrets, caPEM, err := settings.hubCertificates(ctx, client, kept, now)
	if err != nil {
		return p, err
	}
	others, err := ocmRuns(ctx, client)
	if err != nil {
		return p, err
	}
	objects, err := settings.programs(others)
	if err != nil {
		return p, err
	}
	for _, o := range objects {
		if o.GetKind() != "ValidatingWebhookConfiguration" || caPEM == nil {
			continue // with cert-manager an annotation says whose authority it puts there
		}
		if err := trust(o, caPEM); err != nil {
			return p, err
		}
	}
	p.take(slices.Concat(objects, secrets, []*unstructured.Unstructured{settings.object()}))
	return p, nil
}

// programs is what deploy/ has for a hub; others tells that Open Cluster Management looks after its
// members.
func (s Settings) programs(others bool) ([]*unstructured.Unstructured, error) {
	definitions, bases := []string{"manifestworks"}, []string{"broker", "hub-source"}
	if s.Registration == On {
		definitions = append(definitions, "managedclusters", "managedclusteraddons")
		bases = []string{"broker-registration", "hub-source-registration"}
		if s.Confined == On {
			bases = append(bases, "hub-source-policy")
		}
	}
	var edits []edit
	if others {
		edits = append(edits, withoutMembership)
	}
	var all []*unstructured.Unstructured
	for _, name := range definitions {
		objects, err := readObjects(deploy.Files, "crds/"+name+".yaml")
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	for _, base := range bases {
		objects, err := render(deploy.Files, base, s.Images, edits...)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// membershipOn is the line of deploy/hub-source-registration/config.yaml that has members looked after.
var membershipOn = regexp.MustCompile(`(?m)^registrationControllers:\n  mode: auto$`)

// withoutMembership takes out of deploy/hub-source-registration that members are looked after, as
// its membership.yaml says.
func withoutMembership(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	for _, o := range objects {
		if data, ok := o.Object["data"].(map[string]any); ok && o.GetKind() == "ConfigMap" {
			for name, text := range data {
				data[name] = membershipOn.ReplaceAllLiteralString(fmt.Sprint(text), "registrationControllers:\n  mode: off")
			}
		}
	}
	return slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetName() == membershipName })
}

// Installed is what is on a hub, as it was said when it was installed.
func Installed(ctx context.Context, hub kubeclient.Client, now time.Time) (Plan, error) {
	_, found, err := readSettings(ctx, hub)
	if err == nil && !found {
		err = fmt.Errorf("hawser install has put nothing here: there is no ConfigMap %s/%s; is this the right --context", namespace, settingsName)
	}
	if err != nil {
		return Plan{}, err
	}
	return Hub(ctx, hub, Settings{}, now)
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
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "cert-manager.io/inject-ca-from") // it has no part in this
	return unstructured.SetNestedSlice(o.Object, webhooks, "webhooks")
}

// Managed is a managed cluster.
type Managed struct {
	// Name is what the hub calls it.
	Name        string
	Hub, Client kubeclient.Client
	// Images are those of the hub where they say nothing.
	Images Images
	// Issuer, of the cluster, makes the agent's certificate; none means the authority
	// of the hub, or what was said the last time.
	Issuer Issuer
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
	if !found {
		return p, notInstalled(settingsName)
	}
	p.Settings = Settings{Images: m.Images}.or(kept)
	secrets, err := m.certificate(ctx, &p.Settings, now)
	if err != nil {
		return p, err
	}
	for _, o := range secrets {
		label(o, map[string]string{"hawser.dev/agent": "true"})
	}
	definition, err := readObjects(deploy.Files, "crds/appliedmanifestworks.yaml")
	if err != nil {
		return p, err
	}
	agent, err := render(deploy.Files, "agent", p.Settings.Images)
	if err != nil {
		return p, err
	}
	p.take(slices.Concat(definition, agent, secrets))
	return p, nil
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
var order = []string{"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ConfigMap", "Secret", "Certificate"}

// position is where a kind is in that order; Deployments and others come last.
func position(kind string) int {
	if i := slices.Index(order, kind); i >= 0 {
		return i
	}
	return len(order)
}

// take sorts the objects and marks them as those of this package.
func (p *Plan) take(objects []*unstructured.Unstructured) {
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return position(a.GetKind()) - position(b.GetKind()) })
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
