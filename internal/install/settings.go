package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// namespace is the namespace of the programs in deploy/.
const namespace = "hawser"

// settingsName is the ConfigMap on the hub with the settings.
const settingsName = "hawser-install"

// Keys of the settings that a hub may lack.
const (
	secretKey   = "postgres-secret"
	replicasKey = "replicas"
)

// Settings are the settings of a hub's installation. They are stored on the hub, so that a later run needs no
// flags.
type Settings struct {
	// Address is the address of the broker for agents, host:port.
	Address string
	// HubIdentity is the permanent identity of the hub on its clusters.
	HubIdentity string
	Images      Images
	// Issuer makes the certificates; none means a CA of the hub's own.
	Issuer Issuer
	// PostgresSecret is the Secret with the database of the brokers, "none" for no database. Empty means unchanged,
	// and at first no database.
	PostgresSecret string
	// Replicas is the number of brokers; 0 means unchanged, and at first one without and three with a database.
	Replicas int
	// Registration is whether clusters join the hub through the broker; empty means unchanged.
	Registration Switch
	// Confined is whether a policy confines hub-source to the namespaces of its clusters, on a hub with
	// registration.
	Confined Switch
}

// Switch is On or Off, or empty.
type Switch string

// Values of a Switch.
const (
	On  Switch = "on"
	Off Switch = "off"
)

// or returns s with its empty fields taken from kept.
func (s Settings) or(kept Settings) Settings {
	if s.PostgresSecret == noDatabase {
		s.PostgresSecret, kept.PostgresSecret, kept.Replicas = "", "", 0
	}
	for value, other := range map[*string]string{
		&s.Address: kept.Address, &s.HubIdentity: kept.HubIdentity, &s.Images.Registry: kept.Images.Registry, &s.Images.Version: kept.Images.Version,
		&s.PostgresSecret: kept.PostgresSecret,
	} {
		if *value == "" {
			*value = other
		}
	}
	if s.Issuer.none() {
		s.Issuer = kept.Issuer
	}
	s.Replicas = cmp.Or(s.Replicas, kept.Replicas)
	s.Registration, s.Confined = cmp.Or(s.Registration, kept.Registration), cmp.Or(s.Confined, kept.Confined)
	return s
}

// check returns one error with all that is missing.
func (s Settings) check() error {
	var missing []error
	if s.Address == "" {
		missing = append(missing, errors.New("--address is not set: give the address of the broker for agents on other clusters, host:port"))
	} else if _, _, err := net.SplitHostPort(s.Address); err != nil {
		missing = append(missing, fmt.Errorf("--address %s is not host:port: %w", s.Address, err))
	}
	return errors.Join(append(missing, s.Images.check(), s.checkReplicas())...)
}

// check returns an error for missing values.
func (i Images) check() error {
	var missing []error
	if i.Registry == "" {
		missing = append(missing, errors.New("--image-registry is not set: give the registry of `make push REGISTRY=…`"))
	}
	if i.Version == "" {
		missing = append(missing, errors.New("--image-version is not set, and this program was built without one: give the pushed version"))
	}
	return errors.Join(missing...)
}

// readSettings returns the settings of the hub's installation; found is false if there is none.
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
	replicas, wrong := strconv.Atoi(cmp.Or(data[replicasKey], "0"))
	if err = errors.Join(err, wrong); err != nil {
		return s, true, fmt.Errorf("ConfigMap %s/%s: %w", namespace, settingsName, err)
	}
	return Settings{
		Address: data["address"], HubIdentity: data["hub-identity"], Issuer: issuer,
		Images: Images{Registry: data["image-registry"], Version: data["image-version"]}, Registration: Switch(data["registration"]), Confined: Switch(data["confined"]),
		PostgresSecret: data[secretKey], Replicas: replicas,
	}, true, nil
}

func (s Settings) object() *unstructured.Unstructured {
	data := map[string]any{
		"address": s.Address, "hub-identity": s.HubIdentity, "image-registry": s.Images.Registry, "image-version": s.Images.Version,
	}
	if !s.Issuer.none() {
		data[issuerKey] = s.Issuer.String()
	}
	more := map[string]string{"registration": string(s.Registration), "confined": string(s.Confined), secretKey: s.PostgresSecret}
	if s.Replicas > 0 {
		more[replicasKey] = strconv.Itoa(s.Replicas)
	}
	for key, value := range more {
		if value != "" {
			data[key] = value
		}
	}
	return object("v1", "ConfigMap", namespace, settingsName, "data", data)
}

// object makes an object; more are pairs of field and value.
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

// get returns the existing object of that kind and name, nil if there is none.
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
