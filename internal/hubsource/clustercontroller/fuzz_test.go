package clustercontroller

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
)

// FuzzValidate: for any CSR, a signed certificate names an agent of the cluster in the label. A CSR that is not
// signed has a reason.
func FuzzValidate(f *testing.F) {
	key := newKey(f)
	commonName := asn1.ObjectIdentifier{2, 5, 4, 3}
	for _, s := range []pkix.Name{subject("east", "agent"), {CommonName: "hawser:operator:eve"}, {ExtraNames: []pkix.AttributeTypeAndValue{{Type: commonName, Value: "x"}, {Type: commonName, Value: userOf("east", "agent")}}}} {
		f.Add(pemOf(f, &x509.CertificateRequest{Subject: s}, key), "east")
	}
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n"), "")
	f.Fuzz(func(t *testing.T, text []byte, label string) {
		r, err := validate(&certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{clusterv1.ClusterNameLabelKey: label}},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Request: text, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}},
		})
		if err != nil {
			var u *invalidCSRError
			if !errors.As(err, &u) || u.reason == "" || u.message == "" {
				t.Fatalf("refused for %v", err)
			}
			return
		}
		if r.Cluster != label || r.parsed.Subject.CommonName != r.CommonName() || strings.Count(r.CommonName(), ":") != 3 || r.parsed.CheckSignature() != nil {
			t.Fatalf("took %q of %q for %q", r.parsed.Subject, text, label)
		}
		for _, o := range r.parsed.Subject.Organization {
			if o != ocm.UserPrefix+label && o != ocm.AllClusters {
				t.Fatalf("took the organization %q", o)
			}
		}
		if block, _ := pem.Decode(text); block == nil {
			t.Fatal("took no PEM")
		}
	})
}
