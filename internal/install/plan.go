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

// The names in deploy/ of the programs on the hub: the source in the configuration of hub-source and broker,
// and the Services.
const (
	sourceID       = "hub"
	operatorName   = "operator"
	brokerService  = "hawser-broker.hawser.svc"
	webhookService = "hawser-hub-source.hawser.svc"
	// registrationControllersName is the name of all objects in deploy/hub-source-registration/registration-controllers.yaml.
	registrationControllersName = "hawser-hub-source-registration-controllers"
)

// Plan holds the desired objects of a hub or a cluster.
type Plan struct {
	// Objects are applied first, in this order; Last is applied only when all Deployments run.
	Objects, Last []*unstructured.Unstructured
	// Manager is the field manager of all objects.
	Manager string
	// Settings are the settings of the installed hub.
	Settings Settings
	// whole: the plan has all objects of its manager. Other objects that the manager applied are no longer needed.
	whole bool
}

// Hub returns the plan of the hub of client. Empty settings keep their installed values.
func Hub(ctx context.Context, client kubeclient.Client, settings Settings, now time.Time) (Plan, error) {
	p, err := planHub(ctx, client, settings, now)
	if err != nil {
		return p, err
	}
	return p, p.Settings.checkStore(ctx, client)
}

// planHub is Hub without the check that the works are where the brokers will look for them.
func planHub(ctx context.Context, client kubeclient.Client, settings Settings, now time.Time) (Plan, error) {
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
		// The uid of kube-system is unique per hub, and survives changes of addresses.
		system, err := get(ctx, client, object("v1", "Namespace", "", "kube-system"))
		if err != nil || system == nil {
			return p, errors.Join(err, errors.New("the hub has no namespace kube-system, whose uid identifies it"))
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
			continue // with cert-manager an annotation names the certificate with the CA
		}
		if err := trust(o, caPEM); err != nil {
			return p, err
		}
	}
	p.take(slices.Concat(objects, secrets, []*unstructured.Unstructured{settings.object()}))
	return p, nil
}

// part is a base or an overlay of deploy/, with components and edits.
type part struct {
	layers []string
	edits  []edit
}

// programs returns the objects of deploy/ for a hub. others: Open Cluster Management has registration
// controllers there.
func (s Settings) programs(others bool) ([]*unstructured.Unstructured, error) {
	definitions, broker, source := []string{"manifestworks"}, part{layers: []string{"broker"}}, part{layers: []string{"hub-source"}}
	var policies []part
	if s.Registration == On {
		definitions = append(definitions, "managedclusters", "managedclusteraddons")
		broker.layers, source.layers = []string{"broker-registration"}, []string{"hub-source-registration"}
		if s.Confined == On {
			policies = []part{{layers: []string{"hub-source-policy"}}}
		}
	}
	if s.PostgresSecret != "" {
		broker.layers, broker.edits = append(broker.layers, "postgres"), []edit{s.overDatabase}
	}
	if others {
		source.edits = []edit{withoutRegistrationControllers}
	}
	var all []*unstructured.Unstructured
	for _, name := range definitions {
		objects, err := readObjects(deploy.Files, "crds/"+name+".yaml")
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	for _, p := range append([]part{broker, source}, policies...) {
		objects, err := render(deploy.Files, p.layers, s.Images, p.edits...)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// registrationControllersOn matches the part of deploy/hub-source-registration/config.yaml that enables the registration
// controllers.
var registrationControllersOn = regexp.MustCompile(`(?m)^registrationControllers:\n  mode: auto$`)

// withoutRegistrationControllers disables the registration controllers in deploy/hub-source-registration, as its
// registration-controllers.yaml describes.
func withoutRegistrationControllers(objects []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	for _, o := range objects {
		if data, ok := o.Object["data"].(map[string]any); ok && o.GetKind() == "ConfigMap" {
			for name, text := range data {
				data[name] = registrationControllersOn.ReplaceAllLiteralString(fmt.Sprint(text), "registrationControllers:\n  mode: off")
			}
		}
	}
	return slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetName() == registrationControllersName }), nil
}

// Installed returns the plan of a hub with the settings of its installation.
func Installed(ctx context.Context, hub kubeclient.Client, now time.Time) (Plan, error) {
	_, found, err := readSettings(ctx, hub)
	if err == nil && !found {
		err = fmt.Errorf("hawser install has installed nothing here: there is no ConfigMap %s/%s; is this the right --context", namespace, settingsName)
	}
	if err != nil {
		return Plan{}, err
	}
	return planHub(ctx, hub, Settings{}, now)
}

// trust sets the CA with which the kube-apiserver verifies a webhook.
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
	unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "cert-manager.io/inject-ca-from") // the field is not affected
	return unstructured.SetNestedSlice(o.Object, webhooks, "webhooks")
}

// Managed is a managed cluster.
type Managed struct {
	// Name is its name on the hub.
	Name        string
	Hub, Client kubeclient.Client
	// Images are the images of the agent; empty means those of the hub.
	Images Images
	// Issuer, on the cluster, makes the agent's certificate. None means the CA of the hub, or the recorded issuer.
	Issuer Issuer
}

// Cluster returns the plan of a managed cluster.
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
	agent, err := render(deploy.Files, []string{"agent"}, p.Settings.Images)
	if err != nil {
		return p, err
	}
	p.take(slices.Concat(definition, agent, secrets))
	return p, nil
}

// OnHub returns the objects of a cluster on its hub: the namespace of its works.
func OnHub(name string) Plan {
	p := Plan{Manager: "hawser-install-hub"}
	p.take([]*unstructured.Unstructured{object("v1", "Namespace", "", name)})
	return p
}

// url matches the line of deploy/agent/config.yaml that each installation replaces.
var url = regexp.MustCompile(`(?m)^url: .*$`)

// driverFile returns deploy/agent/config.yaml with the address of the broker.
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

// order is the order of kinds: objects that others are in, or refer to, come first.
var order = []string{"CustomResourceDefinition", "Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ConfigMap", "Secret", "Certificate"}

// position returns the index of a kind in that order; Deployments and other kinds come last.
func position(kind string) int {
	if i := slices.Index(order, kind); i >= 0 {
		return i
	}
	return len(order)
}

// take sorts the objects and marks them as managed by this package.
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
