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
	// SignerName is the signer of the certificates with which clusters authenticate at the broker.
	SignerName = "open-cluster-management.io/grpc"
	// CreatorName is the account with which hub-source creates CSRs for clients. On CSRs of other creators the
	// annotation UserAnnotation is ignored.
	CreatorName = "system:serviceaccount:open-cluster-management-hub:grpc-server-sa"
	// UserAnnotation names the requesting user.
	UserAnnotation = "open-cluster-management.io/csr-user"

	subjectPrefix  = "system:open-cluster-management:"
	groupOfMembers = subjectPrefix + "managed-clusters"
	addonLabel     = "open-cluster-management.io/addon-name"
)

// request is the valid content of a CSR.
type request struct {
	cluster, agent string
	parsed         *x509.CertificateRequest
	approved       time.Time // by the clock of the hub; zero if unknown
	earliest       time.Time // earliest issue time of valid certificates of the cluster; zero: all are valid
}

// user returns the user name of the agent with this certificate.
func (r *request) user() string { return subjectPrefix + r.cluster + ":" + r.agent }

// key returns the hash of the public key of the certificate.
func (r *request) key() string {
	sum := sha256.Sum256(r.parsed.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// invalidCSRError is why a CSR is not signed. reason is the reason of its condition Failed.
type invalidCSRError struct{ reason, message string }

func (u *invalidCSRError) Error() string { return u.message }

func refuse(reason, format string, args ...any) error {
	return &invalidCSRError{reason, fmt.Sprintf(format, args...)}
}

// validate reads the content of a CSR. Its errors are [invalidCSRError].
//
// Requested extensions are no error, because the signer does not copy them.
func validate(csr *certificatesv1.CertificateSigningRequest) (request, error) {
	parsed, err := identity.ReadRequest(csr.Spec.Request)
	if err != nil {
		return request{}, refuse("RequestInvalid", "spec.request: %v", err)
	}
	r, err := parseSubject(parsed.Subject)
	if err != nil {
		return request{}, refuse("SubjectRejected", "the subject of spec.request: %v", err)
	}
	r.parsed = parsed
	if label := csr.Labels[clusterv1.ClusterNameLabelKey]; label != r.cluster {
		return request{}, refuse("ClusterDiffers", "the label %s is %q, the subject of spec.request is of the cluster %q", clusterv1.ClusterNameLabelKey, label, r.cluster)
	}
	if !slices.Contains(csr.Spec.Usages, certificatesv1.UsageClientAuth) {
		return request{}, refuse("UsageRejected", "spec.usages has no %q: certificates of this signer are for clients", certificatesv1.UsageClientAuth)
	}
	return r, nil
}

var (
	oidCommonName   = []int{2, 5, 4, 3}
	oidOrganization = []int{2, 5, 4, 10}
)

// parseSubject reads the subject of an agent. It needs one common name with cluster and agent, the organization
// of the cluster, optionally that of all clusters, and nothing else. With several common names, each program
// could read another one.
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

// attributes returns the common names and organizations of a subject. [x509.ParseCertificateRequest] keeps all
// attributes.
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
