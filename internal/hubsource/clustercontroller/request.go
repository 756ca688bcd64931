package clustercontroller

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
)

// request is the valid content of a CSR.
type request struct {
	ocm.Subject
	parsed   *x509.CertificateRequest
	approved time.Time // by the clock of the hub; zero if unknown
	earliest time.Time // earliest issue time of valid certificates of the cluster; zero: all are valid
}

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
	s, err := ocm.ParseSubject(parsed.Subject)
	if err != nil {
		return request{}, refuse("SubjectRejected", "the subject of spec.request: %v", err)
	}
	if label := csr.Labels[clusterv1.ClusterNameLabelKey]; label != s.Cluster {
		return request{}, refuse("ClusterDiffers", "the label %s is %q, the subject of spec.request is of the cluster %q", clusterv1.ClusterNameLabelKey, label, s.Cluster)
	}
	if !slices.Contains(csr.Spec.Usages, certificatesv1.UsageClientAuth) {
		return request{}, refuse("UsageRejected", "spec.usages has no %q: certificates of this signer are for clients", certificatesv1.UsageClientAuth)
	}
	return request{Subject: s, parsed: parsed}, nil
}
