package install

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/cluster"
)

// The Secrets on the hub, and on a cluster, that deploy/ names, and two of this
// package: the authority that signs, and an operator's certificate.
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

// certificates makes Secrets of certificates that one authority signs, and keeps
// those that are there and good for long enough.
type certificates struct {
	authority *pki.Authority
	now       time.Time
}

// readAuthority returns that of the hub, nil if it has none.
func readAuthority(ctx context.Context, hub cluster.Client) (*pki.Authority, error) {
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

// openAuthority returns that of the hub, a new one if nothing was installed.
func openAuthority(ctx context.Context, hub cluster.Client, now time.Time) (*pki.Authority, error) {
	a, err := readAuthority(ctx, hub)
	if err != nil || a != nil {
		return a, err
	}
	if foreign, err := readSecret(ctx, hub, brokerSecret); err != nil || foreign != nil {
		return nil, errors.Join(err, fmt.Errorf("secret %s/%s on the hub was not made by hawser install, and every agent trusts it: "+
			"go on with kubectl, or put the authority that signed it into the Secret %s as %s and %s", namespace, brokerSecret, authoritySecret, certKey, keyKey))
	}
	return pki.NewAuthority("hawser", pki.Starting(now, pki.AuthorityLifetime))
}

// secret returns the Secret with a certificate for who is asked for, and with more.
// The certificate that is there stays if it is for the same, of the same authority,
// and not in the last third of its life.
func (c certificates) secret(ctx context.Context, on cluster.Client, name string, req pki.Request, more map[string][]byte) (*unstructured.Unstructured, error) {
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

// good tells whether the certificate in a Secret can stay.
func (c certificates) good(have map[string][]byte, req pki.Request) bool {
	pair, err := tls.X509KeyPair(have[certKey], have[keyKey])
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

// readSecret returns what is in a Secret, nil if there is none.
func readSecret(ctx context.Context, c cluster.Client, name string) (map[string][]byte, error) {
	o, err := get(ctx, c, object("v1", "Secret", namespace, name))
	if err != nil || o == nil {
		return nil, err
	}
	return dataOf(o)
}

// dataOf returns what is in a Secret.
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
