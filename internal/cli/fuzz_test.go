package cli

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"regexp"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// FuzzApplication: for any request, hawser accept may approve only one for an agent of this cluster, in its
// groups, with a signer for clusters. The requester is the user that the hub or its courier names.
func FuzzApplication(f *testing.F) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []pkix.Name{
		{CommonName: own + ":a", Organization: []string{own, allOfUs}},
		{CommonName: own + ":a:b", Organization: []string{own}},
		{CommonName: "system:open-cluster-management:c2:a", Organization: []string{own, "system:masters"}},
	} {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: s}, key)
		if err != nil {
			f.Fatal(err)
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
		f.Add(text, "c1", "", courier, bootstrapUser, grpcSigner, false)
		f.Add(text, "c1", "", "mallory", bootstrapUser, grpcSigner, true)
	}
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n"), "c2", "x", "system:bootstrap:abcdef", "", "kubernetes.io/kubelet-serving", true)
	labelValue := regexp.MustCompile(`^[0-9A-Za-z]([0-9A-Za-z._-]*[0-9A-Za-z])?$`) // a terminal prints these characters unchanged
	f.Fuzz(func(t *testing.T, text []byte, label, addOn, user, annotation, signer string, inGroup bool) {
		r := &certificatesv1.CertificateSigningRequest{}
		r.Name, r.Labels = "c1-x", map[string]string{"open-cluster-management.io/cluster-name": label, addOnLabel: addOn}
		r.Annotations = map[string]string{requesterAnnotation: annotation}
		r.Spec = certificatesv1.CertificateSigningRequestSpec{Request: text, Username: user, SignerName: signer}
		if inGroup {
			r.Spec.Groups = []string{bootstrapGroup}
		}
		a, first, err := applicationOf("c1", r)
		if err != nil || label != "c1" || addOn != "" {
			if first || err != nil && err.Error() == "" {
				t.Fatalf("%+v may be approved, %v", a, err)
			}
			return
		}
		requester := user
		if user == courier {
			requester = annotation
		}
		if a.requester != requester || first != (a.agent != requester) {
			t.Fatalf("%+v (first %t) was requested by %q", a, first, requester)
		}
		if known := requester == bootstrapUser || strings.HasPrefix(requester, "system:bootstrap:"); a.trusted && !known && (user == courier || !inGroup) {
			t.Fatalf("%q is trusted", requester)
		}
		block, _ := pem.Decode(text)
		parsed, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		agent, ours := strings.CutPrefix(a.agent, own+":")
		if !ours || !labelValue.MatchString(agent) || a.agent != parsed.Subject.CommonName {
			t.Fatalf("took %q of %q", a.agent, parsed.Subject)
		}
		foreign := func(o string) bool { return o != own && o != allOfUs }
		if !slices.Contains(parsed.Subject.Organization, own) || slices.ContainsFunc(parsed.Subject.Organization, foreign) {
			t.Fatalf("took the organizations %q", parsed.Subject.Organization)
		}
		if signer != grpcSigner && signer != certificatesv1.KubeAPIServerClientSignerName {
			t.Fatalf("took the signer %q", signer)
		}
	})
}
