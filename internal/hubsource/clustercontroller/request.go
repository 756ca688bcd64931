package clustercontroller

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/identity"
)

const (
	// SignerName is the signer of the certificates by which clusters are known to the broker.
	SignerName = "open-cluster-management.io/grpc"
	// CreatorName is the account as which hub-source makes CSRs for who asks for them. From
	// anybody else the annotation UserAnnotation says nothing.
	CreatorName = "system:serviceaccount:open-cluster-management-hub:grpc-server-sa"
	// UserAnnotation names who asked.
	UserAnnotation = "open-cluster-management.io/csr-user"

	subjectPrefix  = "system:open-cluster-management:"
	groupOfMembers = subjectPrefix + "managed-clusters"
	addonLabel     = "open-cluster-management.io/addon-name"
)

// request is what a CSR asks for, as far as it is sound.
type request struct {
	cluster, agent string
	parsed         *x509.CertificateRequest
	approved       time.Time // by the clock of the hub; zero: it does not say
	earliest       time.Time // from when on certificates of the cluster count; zero: all do
}

// user is the name by which the agent is known with the certificate.
func (r *request) user() string { return subjectPrefix + r.cluster + ":" + r.agent }

// key says which key the certificate is for.
func (r *request) key() string {
	sum := sha256.Sum256(r.parsed.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// invalidCSRError is why a CSR is not signed. The reason is that of its condition Failed.
type invalidCSRError struct{ reason, message string }

func (u *invalidCSRError) Error() string { return u.message }

func refuse(reason, format string, args ...any) error {
	return &invalidCSRError{reason, fmt.Sprintf(format, args...)}
}

// validate reads what a CSR asks for. Its errors are [invalidCSRError].
//
// Extensions that it asks for are no error: nobody copies them.
func validate(csr *certificatesv1.CertificateSigningRequest) (request, error) {
	parsed, err := identity.ReadRequest(csr.Spec.Request)
	if err != nil {
		return request{}, refuse("RequestInvalid", "spec.request: %v", err)
	}
	r, err := parseSubject(parsed.Subject)
	if err != nil {
		return request{}, refuse("SubjectRefused", "the subject of spec.request: %v", err)
	}
	r.parsed = parsed
	if label := csr.Labels[clusterv1.ClusterNameLabelKey]; label != r.cluster {
		return request{}, refuse("ClusterDiffers", "the label %s is %q, the subject of spec.request is of the cluster %q", clusterv1.ClusterNameLabelKey, label, r.cluster)
	}
	if !slices.Contains(csr.Spec.Usages, certificatesv1.UsageClientAuth) {
		return request{}, refuse("UsageRefused", "spec.usages has no %q: certificates of this signer are for clients", certificatesv1.UsageClientAuth)
	}
	return r, nil
}

var (
	oidCommonName   = []int{2, 5, 4, 3}
	oidOrganization = []int{2, 5, 4, 10}
)

// parseSubject reads the subject of an agent: one common name, which names cluster and agent,
// the organization of the cluster, that of all clusters if it is there, and nothing else. Of
// several common names everybody would read another one.
func parseSubject(subject pkix.Name) (r request, err error) {
	names, organizations, err := attributes(subject)
	if err != nil {
		return r, err
	}
	if len(names) != 1 {
		return r, fmt.Errorf("it has %d common names, and needs one", len(names))
	}
	rest, found := strings.CutPrefix(names[0], subjectPrefix)
	cluster, agent, both := strings.Cut(rest, ":")
	if !found || !both || cluster == "" || identity.CheckAgent(agent) != nil {
		return r, fmt.Errorf("the common name %q is not %sCLUSTER:AGENT", names[0], subjectPrefix)
	}
	r.cluster, r.agent = cluster, agent
	if err := identity.CheckCluster(cluster); err != nil {
		return r, err
	}
	slices.Sort(organizations)
	own := subjectPrefix + cluster
	if own == groupOfMembers {
		return r, fmt.Errorf("%q can be the name of no cluster: its organization is that of all clusters", cluster)
	}
	if both := []string{own, groupOfMembers}; slices.Equal(organizations, []string{own}) || slices.Equal(organizations, slices.Sorted(slices.Values(both))) {
		return r, nil
	}
	return r, fmt.Errorf("its organizations are %q: it needs %q, and may have %q", organizations, own, groupOfMembers)
}

// attributes are those of a subject, of which [x509.ParseCertificateRequest] keeps all.
func attributes(subject pkix.Name) (names, organizations []string, err error) {
	for _, a := range subject.Names {
		text, isText := a.Value.(string)
		switch {
		case !isText:
			return nil, nil, fmt.Errorf("the attribute %s is no text", a.Type)
		case a.Type.Equal(oidCommonName):
			names = append(names, text)
		case a.Type.Equal(oidOrganization):
			organizations = append(organizations, text)
		default:
			return nil, nil, fmt.Errorf("it has the attribute %s: only a common name and organizations are signed", a.Type)
		}
	}
	return names, organizations, nil
}
