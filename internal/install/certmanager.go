package install

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// certificateKind is the kind of cert-manager's Certificates.
var certificateKind = schema.GroupVersionKind{Group: "cert-manager.io", Version: "v1", Kind: "Certificate"}

// issuerKey is the key in an agent's Secret with the issuer of its certificate.
const issuerKey = "cert-manager"

// Issuer is a cert-manager issuer that makes certificates instead of a CA of this package. The zero value is
// none.
type Issuer struct{ Kind, Group, Name string }

// ParseIssuer parses NAME or KIND[.GROUP]/NAME; without a kind it is a ClusterIssuer.
func ParseIssuer(s string) (i Issuer, err error) {
	if s == "" {
		return i, nil
	}
	kind, name, ok := strings.Cut(s, "/")
	if !ok {
		kind, name = "ClusterIssuer", s
	}
	i.Name = name
	i.Kind, i.Group, _ = strings.Cut(kind, ".")
	if i.Group == "" {
		i.Group = certificateKind.Group
	}
	for _, known := range []string{"Issuer", "ClusterIssuer"} {
		if strings.EqualFold(i.Kind, known) {
			i.Kind = known
		}
	}
	if i.Kind == "" || len(validation.IsDNS1123Subdomain(i.Name)) > 0 || len(validation.IsDNS1123Subdomain(i.Group)) > 0 {
		return i, fmt.Errorf("--cert-manager %s is not the name of an issuer: write NAME for a ClusterIssuer, Issuer/NAME for an Issuer in the namespace %s, or KIND.GROUP/NAME", s, namespace)
	}
	return i, nil
}

// String returns the form that ParseIssuer reads.
func (i Issuer) String() string {
	switch {
	case i.Name == "":
		return ""
	case i.Group == certificateKind.Group:
		return i.Kind + "/" + i.Name
	}
	return i.Kind + "." + i.Group + "/" + i.Name
}

// none reports whether this package makes the certificates.
func (i Issuer) none() bool { return i.Name == "" }

// check returns an error with the remedy if cert-manager is missing.
func (i Issuer) check(ctx context.Context, client kubeclient.Client) error {
	_, err := client.Resolve(ctx, certificateKind)
	if errors.As(err, new(*kubeclient.NoKindError)) {
		return fmt.Errorf("--cert-manager %s: the cluster has no kind Certificate of cert-manager: install cert-manager first, or leave the flag out", i)
	}
	return err
}

// certificate returns the Certificate from which cert-manager makes a Secret.
func (i Issuer) certificate(name, secret string, req pki.Request) (*unstructured.Unstructured, error) {
	commonName, organization := pki.Subject(req.Role, req.Name)
	if most := 64; len(commonName) > most {
		return nil, fmt.Errorf("the name %s is too long for cert-manager: the common name %s would have %d characters, of at most %d", req.Name, commonName, len(commonName), most)
	}
	usage := "client auth"
	if len(req.Hosts) > 0 {
		usage = "server auth"
	}
	spec := map[string]any{
		"secretName": secret, "commonName": commonName,
		"usages":     []any{"digital signature", usage},
		"privateKey": map[string]any{"algorithm": "ECDSA", "size": int64(256), "rotationPolicy": "Always"},
		"issuerRef":  map[string]any{"kind": i.Kind, "group": i.Group, "name": i.Name},
	}
	if organization != "" {
		spec["subject"] = map[string]any{"organizations": []any{organization}}
	}
	for _, h := range req.Hosts {
		field := "dnsNames"
		if net.ParseIP(h) != nil {
			field = "ipAddresses"
		}
		list, _ := spec[field].([]any)
		spec[field] = append(list, h)
	}
	return object(certificateKind.GroupVersion().String(), certificateKind.Kind, namespace, name, "spec", spec), nil
}

// issued returns what a Certificate lacks, or "".
func issued(o *unstructured.Unstructured) string {
	conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		m, ok := c.(map[string]any)
		if !ok || err != nil || m["type"] != "Ready" {
			continue
		}
		seen, isNumber := m["observedGeneration"].(int64)
		switch {
		case m["status"] == "True" && (!isNumber || seen == o.GetGeneration()):
			return ""
		case m["message"] != nil:
			return fmt.Sprintf("is not issued: %v", m["message"])
		}
	}
	return "is not issued yet"
}

// hasAuthority checks that cert-manager has put the CA into the Secret of a Certificate.
func hasAuthority(ctx context.Context, client kubeclient.Client, certificate *unstructured.Unstructured) error {
	name, _, err := unstructured.NestedString(certificate.Object, "spec", "secretName")
	if err != nil {
		return err
	}
	data, err := readSecret(ctx, client, name)
	if err == nil && (len(data[certKey]) == 0 || len(data[keyKey]) == 0) {
		err = fmt.Errorf("%s is issued, but the Secret %s/%s has no %s and %s", nameOf(certificate), namespace, name, certKey, keyKey)
	}
	if err == nil && len(data[caKey]) == 0 {
		err = fmt.Errorf("the Secret %s/%s has no %s: its issuer does not publish its CA; use an issuer of a private CA (CA, Vault, …), not ACME", namespace, name, caKey)
	}
	return err
}

// Operator returns the certificate of an operator, from the hub.
func Operator(ctx context.Context, hub kubeclient.Client) (map[string][]byte, error) {
	data, err := readSecret(ctx, hub, operatorSecret)
	if err == nil && data == nil {
		err = fmt.Errorf("the hub has no Secret %s/%s", namespace, operatorSecret)
	}
	return data, err
}

// CheckTrust returns an error unless the broker of a hub and the agent of a cluster trust each other's
// certificates. Two issuers can belong to two CAs.
func CheckTrust(ctx context.Context, hub, managed kubeclient.Client, now time.Time) error {
	broker, err := readSecret(ctx, hub, brokerSecret)
	if err != nil {
		return err
	}
	agent, err := readSecret(ctx, managed, agentSecret)
	if err != nil {
		return err
	}
	if err := signedBy(agent, broker, now); err != nil {
		return fmt.Errorf("the broker will reject this agent: the certificate in the Secret %s/%s on the cluster is not of the CA in %s on the hub: %w. "+
			"Both issuers must belong to one CA", namespace, agentSecret, brokerSecret, err)
	}
	if err := signedBy(broker, agent, now); err != nil {
		return fmt.Errorf("this agent will reject the broker: the certificate in the Secret %s/%s on the hub is not of the CA in %s on the cluster: %w. "+
			"Both issuers must belong to one CA", namespace, brokerSecret, agentSecret, err)
	}
	return nil
}

// signedBy verifies the certificate in one Secret with the CA in another.
func signedBy(leaf, authority map[string][]byte, now time.Time) error {
	pair, err := identity.ReadPair(leaf[certKey], leaf[keyKey])
	if err != nil {
		return err
	}
	roots, err := identity.ReadPool(authority[caKey])
	if err != nil {
		return fmt.Errorf("%s: %w", caKey, err)
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return err
		}
		between.AddCert(c)
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	return err
}
