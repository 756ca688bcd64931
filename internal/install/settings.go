package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// namespace is where deploy/ puts the programs.
const namespace = "hawser"

// settingsName is the ConfigMap on the hub that has the settings.
const settingsName = "hawser-install"

// Settings are what a hub is installed with. They are kept there, so that they are
// said once.
type Settings struct {
	// Address is the host:port by which agents dial the broker.
	Address string
	// HubIdentity names the hub on its clusters, for ever.
	HubIdentity string
	Images      Images
	// Issuer makes the certificates; none means an authority of the hub's own.
	Issuer Issuer
	// Registration is whether clusters join the hub through the broker; empty means as it was.
	Registration Switch
	// Confined is whether a policy confines hub-source to the namespaces of its clusters, where they join.
	Confined Switch
}

// Switch is On or Off, or empty.
type Switch string

// What a Switch can be.
const (
	On  Switch = "on"
	Off Switch = "off"
)

// or takes what is empty from others.
func (s Settings) or(kept Settings) Settings {
	for value, other := range map[*string]string{
		&s.Address: kept.Address, &s.HubIdentity: kept.HubIdentity, &s.Images.Registry: kept.Images.Registry, &s.Images.Version: kept.Images.Version,
	} {
		if *value == "" {
			*value = other
		}
	}
	if s.Issuer.none() {
		s.Issuer = kept.Issuer
	}
	s.Registration, s.Confined = cmp.Or(s.Registration, kept.Registration), cmp.Or(s.Confined, kept.Confined)
	return s
}

// check says all that is missing at once.
func (s Settings) check() error {
	var missing []error
	if s.Address == "" {
		missing = append(missing, errors.New("--address is not set: say by which host:port agents on other clusters will dial the broker"))
	} else if _, _, err := net.SplitHostPort(s.Address); err != nil {
		missing = append(missing, fmt.Errorf("--address %s is not host:port: %w", s.Address, err))
	}
	return errors.Join(append(missing, s.Images.check())...)
}

// check says what is missing.
func (i Images) check() error {
	var missing []error
	if i.Registry == "" {
		missing = append(missing, errors.New("--image-registry is not set: say where `make push REGISTRY=…` has put the images"))
	}
	if i.Version == "" {
		missing = append(missing, errors.New("--image-version is not set, and this program was built without one: say which was pushed"))
	}
	return errors.Join(missing...)
}

// readSettings returns what the hub was installed with, nothing if it was not.
func readSettings(ctx context.Context, hub kubeclient.Client) (s Settings, found bool, err error) {
	o, err := get(ctx, hub, object("v1", "ConfigMap", namespace, settingsName))
	if err != nil || o == nil {
		return s, false, err
	}
	data, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil {
		return s, false, fmt.Errorf("ConfigMap %s/%s: %w", namespace, settingsName, err)
	}
	issuer, err := ParseIssuer(data[issuerKey])
	return Settings{
		Address: data["address"], HubIdentity: data["hub-identity"], Issuer: issuer,
		Images: Images{Registry: data["image-registry"], Version: data["image-version"]}, Registration: Switch(data["registration"]), Confined: Switch(data["confined"]),
	}, true, err
}

func (s Settings) object() *unstructured.Unstructured {
	data := map[string]any{
		"address": s.Address, "hub-identity": s.HubIdentity, "image-registry": s.Images.Registry, "image-version": s.Images.Version,
	}
	if !s.Issuer.none() {
		data[issuerKey] = s.Issuer.String()
	}
	for key, value := range map[string]Switch{"registration": s.Registration, "confined": s.Confined} {
		if value != "" {
			data[key] = string(value)
		}
	}
	return object("v1", "ConfigMap", namespace, settingsName, "data", data)
}

// object makes an object; more are fields and their values.
func object(apiVersion, kind, namespace, name string, more ...any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	o.SetName(name)
	o.SetNamespace(namespace)
	for i := 0; i+1 < len(more); i += 2 {
		o.Object[fmt.Sprint(more[i])] = more[i+1]
	}
	return o
}

func refOf(ctx context.Context, c kubeclient.Client, o *unstructured.Unstructured) (kubeclient.Ref, error) {
	r, err := c.Resolve(ctx, o.GroupVersionKind())
	return kubeclient.Ref{GroupVersionResource: r.GroupVersionResource, Namespace: o.GetNamespace(), Name: o.GetName()}, err
}

// get returns the object of that kind and name as it is there, nil if it is not.
func get(ctx context.Context, c kubeclient.Client, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	ref, err := refOf(ctx, c, o)
	if err != nil {
		return nil, err
	}
	have, err := c.Get(ctx, ref)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	return have, nil
}
