package registration

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
)

// addOnSigner signs the certificates with which add-ons authenticate at the hub's kube-apiserver.
const addOnSigner = certificatesv1.KubeAPIServerClientSignerName

// createCSR builds a CertificateSigningRequest from the object that an agent sent: name, request, signer,
// usages and lifetime. The requester is the user that the broker authenticated, whatever the annotations
// contain.
func createCSR(a agentRequest, s hubState) (call, error) {
	var sent struct {
		Spec certificatesv1.CertificateSigningRequestSpec `json:"spec"`
	}
	if err := utiljson.Unmarshal(a.sent.raw, &sent); err != nil {
		return call{}, a.invalid("its spec cannot be read")
	}
	if err := a.named(); err != nil {
		return call{}, err
	}
	if err := mayCreateCSR(a, s, sent.Spec.SignerName); err != nil {
		return call{}, err
	}
	request, err := identity.ReadRequest(sent.Spec.Request)
	if err == nil {
		err = identity.CheckCommonName(request.Subject)
	}
	if err != nil {
		return call{}, a.invalid("spec.request: %v", err)
	}
	labels := map[string]any{ocm.ClusterLabel: a.cluster}
	if sent.Spec.SignerName == ocm.Signer {
		err = checkClusterRequest(a, request, sent.Spec.Usages)
	} else {
		addOn := a.sent.Metadata.Labels[ocm.AddOnLabel]
		labels[ocm.AddOnLabel] = addOn
		err = checkAddOnRequest(a, request, sent.Spec.SignerName, addOn)
	}
	if err != nil {
		return call{}, err
	}
	annotations := map[string]any{ocm.RequesterAnnotation: a.user}
	if !a.issued.IsZero() {
		annotations[earliest.IssuedAnnotation] = a.issued.UTC().Format(time.RFC3339)
	}
	spec := map[string]any{"request": base64Of(sent.Spec.Request), "signerName": sent.Spec.SignerName, "usages": textsOf(sent.Spec.Usages)}
	if sent.Spec.ExpirationSeconds != nil {
		spec["expirationSeconds"] = int64(*sent.Spec.ExpirationSeconds)
	}
	return call{verb: create, resource: signingRequests, name: a.sent.Metadata.Name, asRegistrar: true, object: map[string]any{
		"apiVersion": signingRequests.GroupVersion().String(), "kind": "CertificateSigningRequest",
		"metadata": map[string]any{
			"name": a.sent.Metadata.Name, "labels": labels, "annotations": annotations,
		},
		"spec": spec,
	}}, nil
}

// mayCreateCSR returns an error if this cluster may not request a certificate of this signer.
func mayCreateCSR(a agentRequest, s hubState, signer string) error {
	named, labelled := a.sent.Metadata.Labels[ocm.ClusterLabel]
	addOns := signer == addOnSigner || slices.Contains(s.signers, signer)
	switch {
	case labelled && named != a.cluster:
		return a.forbidden("its label %s names cluster %s, but cluster %s requests it", ocm.ClusterLabel, named, a.cluster)
	case signer != ocm.Signer && !addOns:
		return a.forbidden("signer %s is not served here", signer)
	case addOns && a.bootstrap:
		return a.forbidden("certificates of add-ons are for clusters that have joined")
	case addOns && a.sent.Metadata.Labels[ocm.AddOnLabel] == "":
		return a.invalid("a request of signer %s needs the label %s", signer, ocm.AddOnLabel)
	}
	return nil
}

var (
	oidCommonName       = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidOrganization     = asn1.ObjectIdentifier{2, 5, 4, 10}
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
)

// checkClusterRequest checks the request of a certificate of a cluster. Its subject must name the requesting
// cluster and an agent of it, with the groups of that cluster and nothing else.
func checkClusterRequest(a agentRequest, r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	group := ocm.UserPrefix + a.cluster
	agent, named := strings.CutPrefix(r.Subject.CommonName, group+":")
	for _, n := range r.Subject.Names {
		if !n.Type.Equal(oidCommonName) && !n.Type.Equal(oidOrganization) {
			return a.invalid("its subject has more than a common name and organizations: %s", n.Type)
		}
	}
	switch {
	case !named || identity.CheckAgent(agent) != nil:
		return a.forbidden("its common name is not %s:<agent>, which cluster %s may have", group, a.cluster)
	case !sameGroups(r.Subject.Organization, group):
		return a.forbidden("its organizations must be %s and, optionally, %s", group, ocm.AllClusters)
	case len(r.Extensions) > 0:
		return a.invalid("it requests extensions, such as names of servers or the rights of a CA")
	}
	allowed := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth}
	for _, u := range usages {
		if !slices.Contains(allowed, u) {
			return a.invalid("usage %q is not one of a client", u)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return a.invalid("it lacks the usage %q", certificatesv1.UsageClientAuth)
	}
	return nil
}

// sameGroups reports whether organizations are the group of a cluster, with or without the group of all
// clusters.
func sameGroups(organizations []string, group string) bool {
	return slices.Contains(organizations, group) && len(organizations) <= 2 && !slices.ContainsFunc(organizations, func(o string) bool {
		return o != group && o != ocm.AllClusters
	})
}

// checkAddOnRequest checks the request of a certificate of an add-on. For the hub's kube-apiserver it must name
// the add-on of this cluster. Other signers decide about the subject themselves.
func checkAddOnRequest(a agentRequest, r *x509.CertificateRequest, signer, addOn string) error {
	for _, e := range r.Extensions {
		if e.Id.Equal(oidBasicConstraints) {
			return a.invalid("it requests the rights of a CA")
		}
	}
	user := ocm.UserPrefix + "cluster:" + a.cluster + ":addon:" + addOn
	groups := []string{user, ocm.UserPrefix + "addon:" + addOn, "system:authenticated"}
	foreign := slices.IndexFunc(r.Subject.Organization, func(o string) bool { return !slices.Contains(groups, o) })
	switch {
	case slices.Contains(r.Subject.Organization, "system:masters"):
		return a.forbidden("organization system:masters is never allowed")
	case signer != addOnSigner:
		return nil
	case !strings.HasPrefix(r.Subject.CommonName, user+":"):
		return a.forbidden("its common name does not begin with %s:, which add-on %s of cluster %s may have", user, addOn, a.cluster)
	case foreign >= 0:
		return a.forbidden("organization %s is not one of add-on %s of cluster %s", r.Subject.Organization[foreign], addOn, a.cluster)
	}
	return nil
}

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func textsOf[T ~string](list []T) []any {
	texts := []any{}
	for _, t := range list {
		texts = append(texts, string(t))
	}
	return texts
}
