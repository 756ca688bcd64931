package install

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// The Secrets on the hub and on a cluster that deploy/ names, and two of this package: the signing CA, and an
// operator's certificate.
const (
	authoritySecret = "hawser-ca"
	operatorSecret  = "hawser-operator"
	brokerSecret    = "hawser-broker-tls"
	sourceSecret    = "hawser-hub-source-tls"
	webhookSecret   = "hawser-hub-source-webhook-tls"
	agentSecret     = "hawser-agent"
)

// The keys of those Secrets.
const caKey, certKey, keyKey = "ca.crt", "tls.crt", "tls.key"

// certificates makes Secrets with certificates of one CA. It keeps existing ones that are valid for long
// enough.
type certificates struct {
	authority *pki.Authority
	now       time.Time
}

// readAuthority returns the CA of the hub, nil if it has none.
func readAuthority(ctx context.Context, hub kubeclient.Client) (*pki.Authority, error) {
	have, err := readSecret(ctx, hub, authoritySecret)
	if err != nil || have == nil {
		return nil, err
	}
	a, err := pki.ParseAuthority(have[certKey], have[keyKey])
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s on the hub: %w", namespace, authoritySecret, err)
	}
	return a, nil
}

// openAuthority returns the CA of the hub, or a new one if nothing was installed.
func openAuthority(ctx context.Context, hub kubeclient.Client, now time.Time) (*pki.Authority, error) {
	a, err := readAuthority(ctx, hub)
	if err != nil || a != nil {
		return a, err
	}
	if foreign, err := readSecret(ctx, hub, brokerSecret); err != nil || foreign != nil {
		return nil, errors.Join(err, fmt.Errorf("secret %s/%s on the hub was not made by hawser install, and every agent trusts it. "+
			"Go on with kubectl, or put the CA that signed it into the Secret %s as %s and %s", namespace, brokerSecret, authoritySecret, certKey, keyKey))
	}
	return pki.NewAuthority("hawser", pki.Starting(now, pki.AuthorityLifetime))
}

// secret returns the Secret with a certificate for req, plus more. An existing certificate is kept if it
// matches req, is of the same CA, and is not in the last third of its lifetime.
func (c certificates) secret(ctx context.Context, on kubeclient.Client, name string, req pki.Request, more map[string][]byte) (*unstructured.Unstructured, error) {
	have, err := readSecret(ctx, on, name)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{caKey: c.authority.CertificatePEM(), certKey: have[certKey], keyKey: have[keyKey]}
	if !c.good(have, req) {
		req.Valid = pki.Starting(c.now, pki.CertificateLifetime)
		pair, err := c.authority.Issue(req)
		if err != nil {
			return nil, err
		}
		data[certKey], data[keyKey] = pair.CertPEM, pair.KeyPEM
	}
	maps.Copy(data, more)
	return secretOf(name, data), nil
}

// good reports whether the certificate in a Secret can stay.
func (c certificates) good(have map[string][]byte, req pki.Request) bool {
	pair, err := identity.ReadPair(have[certKey], have[keyKey])
	if err != nil || !bytes.Equal(have[caKey], c.authority.CertificatePEM()) {
		return false
	}
	leaf := pair.Leaf
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: c.authority.Pool(), CurrentTime: c.now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return false
	}
	var hosts []string
	for _, ip := range leaf.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	hosts = append(hosts, leaf.DNSNames...)
	wanted := slices.Clone(req.Hosts)
	slices.Sort(hosts)
	slices.Sort(wanted)
	commonName, _ := pki.Subject(req.Role, req.Name)
	return leaf.Subject.CommonName == commonName && slices.Equal(hosts, wanted) && leaf.NotAfter.Sub(c.now) > leaf.NotAfter.Sub(leaf.NotBefore)/3
}

func secretOf(name string, data map[string][]byte) *unstructured.Unstructured {
	encoded := map[string]any{}
	for k, v := range data {
		encoded[k] = base64Of(v)
	}
	return object("v1", "Secret", namespace, name, "type", "Opaque", "data", encoded)
}

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// readSecret returns the data of a Secret, nil if there is none.
func readSecret(ctx context.Context, c kubeclient.Client, name string) (map[string][]byte, error) {
	o, err := get(ctx, c, object("v1", "Secret", namespace, name))
	if err != nil || o == nil {
		return nil, err
	}
	return dataOf(o)
}

// dataOf returns the data of a Secret.
func dataOf(o *unstructured.Unstructured) (map[string][]byte, error) {
	encoded, _, err := unstructured.NestedStringMap(o.Object, "data")
	data := map[string][]byte{}
	for k, v := range encoded {
		b, decodeErr := base64.StdEncoding.DecodeString(v)
		data[k], err = b, errors.Join(err, decodeErr)
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	return data, nil
}

// hubCertificates returns the certificates of the programs on the hub, and the CA unless an issuer of
// cert-manager makes them.
func (s Settings) hubCertificates(ctx context.Context, hub kubeclient.Client, kept Settings, now time.Time) (all []*unstructured.Unstructured, caPEM []byte, err error) {
	host, _, err := net.SplitHostPort(s.Address)
	if err != nil {
		return nil, nil, err
	}
	hosts := slices.Compact(slices.Sorted(slices.Values([]string{brokerService, host})))
	clients := []certificateHolder{
		{"hawser-broker", brokerSecret, pki.Request{Role: pki.Broker, Name: "broker", Hosts: hosts}},
		{"hawser-hub-source", sourceSecret, pki.Request{Role: pki.Source, Name: sourceID}},
		{webhookCertificate, webhookSecret, pki.Request{Role: pki.Webhook, Name: sourceID, Hosts: []string{webhookService}}},
		{"hawser-operator", operatorSecret, pki.Request{Role: pki.Operator, Name: operatorName}},
	}
	if !s.Issuer.none() {
		if err := s.Issuer.takesOver(ctx, hub, kept); err != nil {
			return nil, nil, err
		}
		for _, p := range clients {
			c, err := s.Issuer.certificate(p.certificate, p.secret, p.Request)
			if err != nil {
				return nil, nil, err
			}
			all = append(all, c)
		}
		if s.Registration != On {
			return all, nil, nil
		}
		own, err := issuedAuthority(ctx, hub)
		if err != nil {
			return nil, nil, err
		}
		secrets, more, err := s.registration(ctx, hub, own, now)
		// cert-manager adds to the existing Secret.
		return slices.Concat(all, secrets, []*unstructured.Unstructured{secretOf(brokerSecret, more)}), nil, err
	}
	authority, err := openAuthority(ctx, hub, now)
	if err != nil {
		return nil, nil, err
	}
	all = append(all, secretOf(authoritySecret, map[string][]byte{certKey: authority.CertificatePEM(), keyKey: authority.KeyPEM()}))
	signer, more, err := s.registration(ctx, hub, authority.CertificatePEM(), now)
	if err != nil {
		return nil, nil, err
	}
	all = append(all, signer...)
	for _, p := range clients {
		var beside map[string][]byte
		if p.secret == brokerSecret {
			beside = more
		}
		secret, err := certificates{authority, now}.secret(ctx, hub, p.secret, p.Request, beside)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, secret)
	}
	return all, authority.CertificatePEM(), nil
}

// webhookCertificate is the name in the annotation of the webhook in deploy/.
const webhookCertificate = "hawser-hub-source-webhook"

// certificateHolder is the subject of a certificate and its Secret.
type certificateHolder struct {
	certificate, secret string
	pki.Request
}

// takesOver rejects a hub whose agents trust another CA than the issuer's.
func (i Issuer) takesOver(ctx context.Context, hub kubeclient.Client, kept Settings) error {
	if err := i.check(ctx, hub); err != nil || !kept.Issuer.none() {
		return err
	}
	for _, name := range []string{authoritySecret, brokerSecret} {
		if have, err := readSecret(ctx, hub, name); err != nil || have != nil {
			return errors.Join(err, fmt.Errorf("the hub has the Secret %s/%s of another CA than that of %s, and every agent trusts it. "+
				"To start again, delete the Secrets %s and %s, and install the agent of every cluster again", namespace, name, i, authoritySecret, brokerSecret))
		}
	}
	return nil
}

// certificate returns the agent's Secret and its cert-manager objects. It replaces settings in s by the ones
// recorded on the cluster.
func (m Managed) certificate(ctx context.Context, s *Settings, now time.Time) ([]*unstructured.Unstructured, error) {
	have, err := m.mine(ctx)
	if err != nil {
		return nil, err
	}
	if was := string(have["hub-identity"]); was != "" {
		s.HubIdentity = was // the existing Secret belongs to it
	}
	driver, err := driverFile(s.Address)
	if err != nil {
		return nil, err
	}
	more := map[string][]byte{"cluster-name": []byte(m.Name), "hub-identity": []byte(s.HubIdentity), "config.yaml": driver}
	request := pki.Request{Role: pki.Agent, Name: m.Name}
	issuer := m.Issuer
	if issuer.none() {
		if issuer, err = ParseIssuer(string(have[issuerKey])); err != nil {
			return nil, err
		}
	}
	s.Issuer = issuer
	if !issuer.none() {
		if err := issuer.check(ctx, m.Client); err != nil {
			return nil, err
		}
		more[issuerKey] = []byte(issuer.String())
		// cert-manager adds to the existing Secret, and keeps its type.
		c, err := issuer.certificate("hawser-agent", agentSecret, request)
		return []*unstructured.Unstructured{secretOf(agentSecret, more), c}, err
	}
	authority, err := m.authority(ctx, have)
	if err != nil {
		return nil, err
	}
	secret, err := certificates{authority, now}.secret(ctx, m.Client, agentSecret, request, more)
	return []*unstructured.Unstructured{secret}, err
}

// mine returns the data of the agent's Secret, nil if there is none. A Secret of another cluster is an error.
func (m Managed) mine(ctx context.Context) (map[string][]byte, error) {
	have, err := readSecret(ctx, m.Client, agentSecret)
	if err != nil || have == nil {
		return nil, err
	}
	if was := string(have["cluster-name"]); was != "" && was != m.Name {
		return nil, fmt.Errorf("this cluster is installed as %s: is --context right? hawser uninstall cluster %s releases that name", was, was)
	}
	return have, nil
}

// authority returns the hub's CA that signs for the agent. It must be the one that the agent already trusts.
func (m Managed) authority(ctx context.Context, have map[string][]byte) (*pki.Authority, error) {
	kept, _, err := readSettings(ctx, m.Hub)
	if err != nil {
		return nil, err
	}
	if !kept.Issuer.none() {
		return nil, fmt.Errorf("the hub has its certificates from cert-manager (%s): name with --cert-manager the issuer of the same CA on this cluster, for the certificate of the agent", kept.Issuer)
	}
	authority, err := readAuthority(ctx, m.Hub)
	if err != nil {
		return nil, err
	}
	if authority == nil {
		return nil, notInstalled(authoritySecret)
	}
	if have != nil && !bytes.Equal(have[caKey], authority.CertificatePEM()) {
		return nil, fmt.Errorf("the agent of this cluster trusts another CA than this hub's: it belongs to another hub, or was installed by hand. "+
			"Go on by hand, or delete the Secret %s/%s to make it belong to this hub", namespace, agentSecret)
	}
	return authority, nil
}

func notInstalled(what string) error {
	return fmt.Errorf("the hub has no %s in the namespace %s: run hawser install hub first, and name the hub with --hub-context", what, namespace)
}
