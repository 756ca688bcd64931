package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/deploy"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/transport"
)

// The Secrets of an agent that joins: its bootstrap data, and the hub's certificate.
const (
	bootstrapSecret  = "hawser-agent-bootstrap"
	registeredSecret = "hawser-agent-hub"
)

// The Secrets in which the operator of Open Cluster Management's klusterlet expects the bootstrap data.
const (
	klusterletNamespace = "open-cluster-management-agent"
	klusterletSecret    = "bootstrap-hub-kubeconfig"
	klusterletName      = "klusterlet"
)

// klusterletKind is the kind of the object that configures the klusterlet operator.
var klusterletKind = schema.GroupVersionKind{Group: "operator.open-cluster-management.io", Version: "v1", Kind: "Klusterlet"}

// Bootstrap is the data with which a cluster requests to join a hub.
type Bootstrap struct {
	// Broker is its host:port. Several brokers of one hub have commas between them.
	Broker string
	// CA is the PEM of the CA that signed its certificate.
	CA []byte
	// Token is the bearer token that the broker accepts for join requests.
	Token string
}

// check returns one error with all that is missing.
func (b Bootstrap) check() error {
	var missing []error
	if b.Broker == "" {
		missing = append(missing, errors.New("--broker is not set: give the address of the broker for this cluster, host:port"))
	} else if _, err := transport.Addresses(b.Broker); err != nil {
		missing = append(missing, fmt.Errorf("--broker %w", err))
	}
	if len(b.CA) == 0 {
		missing = append(missing, errors.New("--broker-ca is not set: name the file of the authority that signed the broker's certificate"))
	} else if !isAuthority(b.CA) {
		missing = append(missing, errors.New("--broker-ca holds no PEM certificate"))
	}
	switch {
	case b.Token == "":
		missing = append(missing, errors.New("--token-file is not set: make a token on the hub with hawser token create"))
	case strings.ContainsFunc(b.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		missing = append(missing, errors.New("the token has characters that no token has: give what hawser token create printed, and nothing else"))
	}
	return errors.Join(missing...)
}

// isAuthority reports whether a PEM text has at least one block, and all blocks are certificates.
func isAuthority(text []byte) bool {
	found := false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if _, err := identity.ReadCertificate(block.Bytes); err != nil || block.Type != "CERTIFICATE" {
			return false
		}
		found = true
	}
	return found
}

// config returns config.yaml of Open Cluster Management's grpc driver.
func (b Bootstrap) config() ([]byte, error) {
	return sigsyaml.Marshal(map[string]any{"url": b.Broker, "caData": b.CA, "token": b.Token})
}

// hub returns the name of the broker and its CA in a klusterlet's kubeconfig. A klusterlet makes a new join
// request only when this name changes; it does not check config.yaml. So the name changes exactly when the
// address or the CA does.
func (b Bootstrap) hub() string {
	sum := sha256.Sum256(append([]byte(b.Broker+"\n"), b.CA...))
	return "hawser-" + hex.EncodeToString(sum[:5])
}

// kubeconfig returns the kubeconfig of a klusterlet, which uses it to distinguish hubs. It does not contain the
// token, because programs send the token of a kubeconfig to a kube-apiserver.
func (b Bootstrap) kubeconfig() ([]byte, error) {
	c := clientcmdapi.NewConfig()
	c.Clusters[b.hub()] = &clientcmdapi.Cluster{Server: "https://" + b.Broker, CertificateAuthorityData: b.CA}
	c.Contexts["bootstrap"] = &clientcmdapi.Context{Cluster: b.hub(), AuthInfo: "bootstrap", Namespace: "default"}
	c.AuthInfos["bootstrap"] = &clientcmdapi.AuthInfo{}
	c.CurrentContext = "bootstrap"
	return clientcmd.Write(*c)
}

// Join is a managed cluster that requests to join a hub.
type Join struct {
	// Name is the name of the cluster on the hub.
	Name string
	Bootstrap
	// HubIdentity is the permanent identity of the hub on the cluster. Empty means unchanged, and else the address
	// of the broker. A klusterlet does not use it.
	HubIdentity string
	// Images are the images of the Hawser agent.
	Images Images
	// Client is the client of the cluster; nil if the plan is only printed.
	Client kubeclient.Client
}

func (j Join) check() error {
	err := j.Bootstrap.check()
	if wrong := validation.IsDNS1123Label(j.Name); len(wrong) > 0 {
		err = errors.Join(fmt.Errorf("cluster %q: %s", j.Name, strings.Join(wrong, "; ")), err)
	}
	return err
}

// Joining returns the data with which clusters request to join a hub: address and CA of its broker, and the
// images. known is false if hawser install has not installed a hub with registration there.
func Joining(ctx context.Context, hub kubeclient.Client) (j Join, known bool, err error) {
	s, _, err := readSettings(ctx, hub)
	if err != nil || s.Registration != On {
		return j, false, err
	}
	operator, err := Operator(ctx, hub)
	return Join{Bootstrap: Bootstrap{Broker: s.Address, CA: operator[caKey]}, Images: s.Images}, err == nil, err
}

// Refused returns why the hub would reject the agent of an installation, or "". A hub with registration
// delivers works only to accepted clusters. A cluster that joined renews its Lease and its certificate; an
// agent installed over it would not.
func (m Managed) Refused(ctx context.Context) (why string, err error) {
	s, _, err := readSettings(ctx, m.Hub)
	if err != nil || s.Registration != On {
		return "", err
	}
	if joined, err := readSecret(ctx, m.Client, bootstrapSecret); err != nil || joined != nil {
		return "this cluster joined its hub with hawser join: hawser install cluster would end that", err
	}
	c, err := get(ctx, m.Hub, object(clusterv1.GroupVersion.String(), "ManagedCluster", "", m.Name))
	if err != nil {
		return "", err
	}
	if c != nil {
		accepted, _, err := unstructured.NestedBool(c.Object, "spec", "hubAcceptsClient")
		if err != nil || accepted {
			return "", err
		}
	}
	return fmt.Sprintf("clusters join this hub, which was installed with --registration, and it has not accepted cluster %s: it would reject the agent", m.Name), nil
}

// Agent returns the plan with which the Hawser agent joins.
func (j Join) Agent(ctx context.Context) (Plan, error) {
	p := Plan{Manager: "hawser-install-cluster", whole: true, Settings: Settings{Images: j.Images}}
	if err := errors.Join(j.check(), j.Images.check()); err != nil {
		return p, err
	}
	identity, err := j.identity(ctx)
	if err != nil {
		return p, err
	}
	config, err := j.config()
	if err != nil {
		return p, err
	}
	secret := secretOf(bootstrapSecret, map[string][]byte{"cluster-name": []byte(j.Name), "hub-identity": []byte(identity), "config.yaml": config})
	label(secret, map[string]string{"hawser.dev/agent": "true"})
	definition, err := readObjects(deploy.Files, "crds/appliedmanifestworks.yaml")
	if err != nil {
		return p, err
	}
	agent, err := render(deploy.Files, []string{"agent-registration"}, j.Images)
	if err != nil {
		return p, err
	}
	p.take(slices.Concat(definition, agent, []*unstructured.Unstructured{secret}))
	return p, nil
}

// identity returns the hub's identity on the cluster. Objects of one identity never move to another
// automatically.
func (j Join) identity(ctx context.Context) (string, error) {
	identity := j.HubIdentity
	if j.Client != nil {
		for _, name := range []string{bootstrapSecret, agentSecret} {
			have, err := readSecret(ctx, j.Client, name)
			if err != nil {
				return "", err
			}
			if was := string(have["cluster-name"]); was != "" && was != j.Name {
				return "", fmt.Errorf("this cluster joined as %s: is --context right? hawser uninstall cluster %s releases that name", was, was)
			}
			was := string(have["hub-identity"])
			if was != "" && identity != "" && was != identity {
				return "", fmt.Errorf("the objects on this cluster belong to the hub %s, not to %s: leave --hub-identity out, or transfer them with hawser hub-identity transfer first", was, identity)
			}
			if was != "" {
				identity = was
			}
		}
	}
	if identity == "" {
		identity = j.Broker
	}
	return identity, nil
}

// Klusterlet returns the plan with which the klusterlet of Open Cluster Management joins.
func (j Join) Klusterlet(ctx context.Context) (Plan, error) {
	p := Plan{Manager: "hawser-join"}
	if err := j.check(); err != nil {
		return p, err
	}
	if len(transport.SplitAddresses(j.Broker)) > 1 {
		return p, fmt.Errorf("--broker %s: a klusterlet has one address of its broker: give a name with several IP addresses, or a load balancer", j.Broker)
	}
	if err := j.operator(ctx); err != nil {
		return p, err
	}
	config, err := j.config()
	if err != nil {
		return p, err
	}
	kubeconfig, err := j.kubeconfig()
	if err != nil {
		return p, err
	}
	secret := secretOf(klusterletSecret, map[string][]byte{"kubeconfig": kubeconfig, "config.yaml": config})
	secret.SetNamespace(klusterletNamespace)
	klusterlet := object(klusterletKind.GroupVersion().String(), klusterletKind.Kind, "", klusterletName, "spec", map[string]any{
		"clusterName": j.Name, "namespace": klusterletNamespace,
		"registrationConfiguration": map[string]any{"registrationDriver": map[string]any{"authType": "grpc"}},
	})
	// They are not marked as Hawser's, because the operator owns them.
	p.Objects = []*unstructured.Unstructured{object("v1", "Namespace", "", klusterletNamespace), secret, klusterlet}
	return p, nil
}

// operator checks the existing objects of the klusterlet operator.
func (j Join) operator(ctx context.Context) error {
	if j.Client == nil {
		return nil
	}
	have, err := get(ctx, j.Client, object(klusterletKind.GroupVersion().String(), klusterletKind.Kind, "", klusterletName))
	switch {
	case errors.As(err, new(*kubeclient.NoKindError)):
		return errors.New("the cluster has no kind Klusterlet: install the klusterlet operator of Open Cluster Management first, or print the objects with --dry-run -o yaml")
	case err != nil || have == nil:
		return err
	}
	for field, want := range map[string]string{"clusterName": j.Name, "namespace": klusterletNamespace} {
		is, _, err := unstructured.NestedString(have.Object, "spec", field)
		if err == nil && is != "" && is != want {
			err = fmt.Errorf("the Klusterlet %s has the %s %s, not %s: is --context right? For another kind of installation, print the objects with --dry-run -o yaml", klusterletName, field, is, want)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hubOf returns the hub name in a klusterlet's kubeconfig, "" if there is none.
func hubOf(kubeconfig []byte) string {
	c, err := clientcmd.Load(kubeconfig)
	if err != nil || c.Contexts[c.CurrentContext] == nil {
		return ""
	}
	return c.Contexts[c.CurrentContext].Cluster
}

// Joined returns what an agent, or a klusterlet, of the cluster still waits for. It is empty when the client
// has its certificate and runs. The cluster does not show whether the hub accepts a klusterlet. A client that
// moves keeps the certificate of its former hub until this hub issues one.
func (j Join) Joined(ctx context.Context, klusterlet bool) (missing string, err error) {
	at := object("v1", "Secret", namespace, registeredSecret)
	if klusterlet {
		at = object("v1", "Secret", klusterletNamespace, "hub-kubeconfig-secret")
	}
	o, err := get(ctx, j.Client, at)
	if err != nil {
		return "", err
	}
	data := map[string][]byte{}
	if o != nil {
		if data, err = dataOf(o); err != nil {
			return "", err
		}
	}
	if len(data[certKey]) == 0 {
		if pending := string(data["pending-name"]); pending != "" {
			return fmt.Sprintf("the hub has to approve its certificate request %s: hawser accept %s", pending, j.Name), nil
		}
		return fmt.Sprintf("it has to request a certificate, and the hub to accept it: hawser accept %s", j.Name), nil
	}
	if klusterlet {
		if is := hubOf(data["kubeconfig"]); is != j.hub() {
			return fmt.Sprintf("it still has the certificate of the hub %q. It has to request one here, and the hub to accept it: hawser accept %s", is, j.Name), nil
		}
		return "", nil
	}
	d, err := get(ctx, j.Client, object("apps/v1", "Deployment", namespace, "hawser-agent"))
	if err != nil {
		return "", err
	}
	if d == nil {
		return "there is no Deployment hawser-agent", nil
	}
	if missing := running(d); missing != "" {
		return fmt.Sprintf("it has its certificate; its Deployment %s: the hub has to accept it (hawser accept %s)", missing, j.Name), nil
	}
	return "", nil
}

// Leave deletes the agent's bootstrap data and the hub's certificate: a token and a key that are no longer
// needed.
func (i Installer) Leave(ctx context.Context) error {
	for _, name := range []string{bootstrapSecret, registeredSecret} {
		have, err := get(ctx, i.Client, object("v1", "Secret", namespace, name))
		if err != nil {
			return err
		}
		if have == nil {
			continue
		}
		if i.Dry {
			i.Printf("%s would be deleted", nameOf(have))
			continue
		}
		if err := i.remove(ctx, have); err != nil {
			return err
		}
		i.Printf("%s deleted", nameOf(have))
	}
	return nil
}
