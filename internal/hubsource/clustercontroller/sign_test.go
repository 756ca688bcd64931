package clustercontroller

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
)

func signerOf(t testing.TB, from, to time.Time) authority {
	t.Helper()
	a, err := newAuthority(caOf(t, from, to))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// issued signs the request of a CSR and returns the certificate.
func issued(t *testing.T, a authority, csr *certificatesv1.CertificateSigningRequest, now time.Time, valid time.Duration, earliest ...time.Time) *x509.Certificate {
	t.Helper()
	r, err := validate(csr)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range earliest {
		r.earliest = at
	}
	text, err := a.issue(r, rand.Reader, now, valid)
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode(text)
	if block == nil || len(rest) > 0 {
		t.Fatalf("issued %q", text)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// caExtension returns an extension that requests the rights of a CA.
func caExtension(t *testing.T) pkix.Extension {
	t.Helper()
	value, err := asn1.Marshal(struct {
		IsCA bool `asn1:"optional"`
	}{true})
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: value}
}

// TestIssue_DropsUnrequestedUsages: a certificate has no CA bits, names and extensions of its request. Its
// subject and key are those of the request, byte by byte.
func TestIssue_DropsUnrequestedUsages(t *testing.T) {
	a := signerOf(t, start.Add(-time.Hour), start.Add(10*365*24*time.Hour))
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"ecdsa": newKey(t), "rsa": rsaKey, "ed25519": edKey} {
		t.Run(name, func(t *testing.T) {
			csr := renewalCSR(t, func(c *certificatesv1.CertificateSigningRequest) {
				c.Spec.Request = pemOf(t, &x509.CertificateRequest{
					Subject: subject("east", "agent"), DNSNames: []string{"broker.example.com"}, IPAddresses: []net.IP{{127, 0, 0, 1}}, EmailAddresses: []string{"a@example.com"},
					ExtraExtensions: []pkix.Extension{caExtension(t), {Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: []byte("x")}},
				}, key)
				c.Spec.Usages = append(c.Spec.Usages, certificatesv1.UsageServerAuth, certificatesv1.UsageCertSign, certificatesv1.UsageAny)
			})
			requested, err := validate(csr)
			if err != nil {
				t.Fatal(err)
			}
			c := issued(t, a, csr, start, DefaultDuration)
			if !bytes.Equal(c.RawSubject, requested.parsed.RawSubject) || !bytes.Equal(c.RawSubjectPublicKeyInfo, requested.parsed.RawSubjectPublicKeyInfo) {
				t.Errorf("certificate of %s, the request is for %s", c.Subject, requested.parsed.Subject)
			}
			if c.IsCA || c.KeyUsage&x509.KeyUsageCertSign != 0 || len(c.DNSNames)+len(c.IPAddresses)+len(c.EmailAddresses)+len(c.URIs) > 0 {
				t.Errorf("certificate with CA %t, usage %b, names %v %v %v", c.IsCA, c.KeyUsage, c.DNSNames, c.IPAddresses, c.EmailAddresses)
			}
			if !slices.Equal(c.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || len(c.UnknownExtKeyUsage) > 0 {
				t.Errorf("uses %v", c.ExtKeyUsage)
			}
			for _, e := range c.Extensions {
				if e.Id.Equal(asn1.ObjectIdentifier{1, 2, 3, 4}) {
					t.Error("an extension was copied")
				}
			}
			roots := x509.NewCertPool()
			roots.AddCert(a.cert)
			if _, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: start, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestIssue_Lifetimes(t *testing.T) {
	seconds := func(n int32) *int32 { return &n }
	year := start.Add(365 * 24 * time.Hour)
	for _, c := range []struct {
		name       string
		configured time.Duration
		requested  *int32
		end        time.Time
		from, to   time.Duration
	}{
		{"as configured", DefaultDuration, nil, year, -5 * time.Minute, DefaultDuration},
		{"shorter", DefaultDuration, seconds(3600), year, -3 * time.Minute, time.Hour},
		{"too short", DefaultDuration, seconds(1), year, -30 * time.Second, 10 * time.Minute},
		{"longer", time.Hour, seconds(31536000), year, -3 * time.Minute, time.Hour},
		{"of a test", time.Minute, seconds(600), year, -3 * time.Second, time.Minute},
		{"the CA ends before", DefaultDuration, nil, start.Add(time.Hour), -5 * time.Minute, time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			csr := renewalCSR(t, func(s *certificatesv1.CertificateSigningRequest) { s.Spec.ExpirationSeconds = c.requested })
			got := issued(t, signerOf(t, start.Add(-time.Hour), c.end), csr, start, lifetime(c.configured, csr))
			if from, to := got.NotBefore.Sub(start), got.NotAfter.Sub(start); from != c.from || to != c.to {
				t.Errorf("valid from %s to %s, want %s to %s", from, to, c.from, c.to)
			}
		})
	}
	young := signerOf(t, start.Add(-time.Minute), year)
	if got := issued(t, young, renewalCSR(t), start, DefaultDuration); got.NotBefore.Before(young.cert.NotBefore) {
		t.Errorf("begins at %s, before its CA", got.NotBefore)
	}
	for _, now := range []time.Time{start.Add(-time.Hour), year} {
		r, err := validate(renewalCSR(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := young.issue(r, rand.Reader, now, time.Hour); err == nil {
			t.Errorf("at %s a CA signed that is valid from %s to %s", now, young.cert.NotBefore, young.cert.NotAfter)
		}
	}
}

// TestToSign_RejectsUnrequestedUsages: an operator may approve any CSR. A CSR that is not from an agent of the
// cluster in its label gets no certificate, but a reason.
func TestToSign_RejectsUnrequestedUsages(t *testing.T) {
	key := newKey(t)
	with := func(change func(*x509.CertificateRequest)) func(*certificatesv1.CertificateSigningRequest) {
		template := &x509.CertificateRequest{Subject: subject("east", "agent")}
		change(template)
		request := pemOf(t, template, key)
		return func(c *certificatesv1.CertificateSigningRequest) { c.Spec.Request = request }
	}
	named := func(cn string, organizations ...string) func(*certificatesv1.CertificateSigningRequest) {
		return with(func(r *x509.CertificateRequest) { r.Subject = pkix.Name{CommonName: cn, Organization: organizations} })
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // that it is refused is what is tested
	if err != nil {
		t.Fatal(err)
	}
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := func(c *certificatesv1.CertificateSigningRequest) {
		block, _ := pem.Decode(pemOf(t, &x509.CertificateRequest{Subject: subject("east", "agent")}, key))
		block.Bytes[len(block.Bytes)-1] ^= 1
		c.Spec.Request = pem.EncodeToMemory(block)
	}
	of := func(k crypto.Signer) func(*certificatesv1.CertificateSigningRequest) {
		return func(c *certificatesv1.CertificateSigningRequest) {
			c.Spec.Request = pemOf(t, &x509.CertificateRequest{Subject: subject("east", "agent")}, k)
		}
	}
	own, all := "system:open-cluster-management:east", "system:open-cluster-management:managed-clusters"
	agent := userOf("east", "agent")
	for name, c := range map[string]struct {
		change func(*certificatesv1.CertificateSigningRequest)
		reason string
	}{
		"no label": {func(c *certificatesv1.CertificateSigningRequest) { c.Labels = nil }, "ClusterDiffers"},
		"the label of another": {func(c *certificatesv1.CertificateSigningRequest) {
			c.Labels["open-cluster-management.io/cluster-name"] = "west"
		}, "ClusterDiffers"},
		"not for a client": {func(c *certificatesv1.CertificateSigningRequest) {
			c.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}
		}, "UsageRejected"},
		"no PEM":              {func(c *certificatesv1.CertificateSigningRequest) { c.Spec.Request = []byte("x") }, "RequestInvalid"},
		"something behind it": {func(c *certificatesv1.CertificateSigningRequest) { c.Spec.Request = append(c.Spec.Request, "x"...) }, "RequestInvalid"},
		"too large": {func(c *certificatesv1.CertificateSigningRequest) {
			c.Spec.Request = append(c.Spec.Request, bytes.Repeat([]byte{'\n'}, 16<<10)...)
		}, "RequestInvalid"},
		"a forged signature":        {forged, "RequestInvalid"},
		"a short RSA key":           {of(short), "RequestInvalid"},
		"a weak curve":              {of(weak), "RequestInvalid"},
		"an operator of the broker": {named("hawser:operator:eve"), "SubjectRejected"},
		"no agent":                  {named(own, own), "SubjectRejected"},
		"an empty agent":            {named(own+":", own), "SubjectRejected"},
		"a longer name":             {named(agent+":x", own), "SubjectRejected"},
		"no cluster":                {named(userOf("", "agent"), "system:open-cluster-management:"), "SubjectRejected"},
		"a name no cluster has":     {named(userOf("East!", "agent"), "system:open-cluster-management:East!"), "SubjectRejected"},
		"no common name":            {named("", own), "SubjectRejected"},
		"no organization":           {named(agent), "SubjectRejected"},
		"only that of all clusters": {named(agent, all), "SubjectRejected"},
		"that of another cluster":   {named(agent, "system:open-cluster-management:west", all), "SubjectRejected"},
		"a group more":              {named(agent, own, all, "system:masters"), "SubjectRejected"},
		"a group twice":             {named(agent, own, own), "SubjectRejected"},
		"a cluster that is all":     {named(userOf("managed-clusters", "agent"), all), "SubjectRejected"},
		"another attribute":         {with(func(r *x509.CertificateRequest) { r.Subject.OrganizationalUnit = []string{"x"} }), "SubjectRejected"},
		"two common names": {with(func(r *x509.CertificateRequest) {
			r.Subject.ExtraNames = []pkix.AttributeTypeAndValue{
				{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "hawser:operator:eve"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: agent}, {Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: own},
			}
		}), "SubjectRejected"},
	} {
		t.Run(name, func(t *testing.T) {
			csr := renewalCSR(t, c.change, condition(certificatesv1.CertificateApproved, "by a person"))
			_, err := toSign(csr)
			var u *invalidCSRError
			if !errors.As(err, &u) || u.reason != c.reason || u.message == "" {
				t.Errorf("got %v, want the reason %s", err, c.reason)
			}
			// The CSR is not approved automatically either.
			csr.Status.Conditions, csr.Annotations[ocm.RequesterAnnotation] = nil, bootstrapUser
			s := clusterState{name: "east", cluster: clusterNamed("east"), requests: csrs{csr}, now: start}
			if e := decide(rules{users: []string{bootstrapUser}}, s); len(e.decisions) > 0 || e.change != nil && e.change.claim != "" {
				t.Errorf("decided %s", reported(e))
			}
		})
	}
}

func TestToSign_OnlyApprovedRequests(t *testing.T) {
	approved := condition(certificatesv1.CertificateApproved, "x")
	for name, csr := range map[string]*certificatesv1.CertificateSigningRequest{
		"pending":           renewalCSR(t),
		"denied":            renewalCSR(t, condition(certificatesv1.CertificateDenied, "x")),
		"approved, denied":  renewalCSR(t, approved, condition(certificatesv1.CertificateDenied, "x")),
		"failed":            renewalCSR(t, approved, condition(certificatesv1.CertificateFailed, "x")),
		"signed":            renewalCSR(t, approved, func(c *certificatesv1.CertificateSigningRequest) { c.Status.Certificate = []byte("x") }),
		"of another signer": renewalCSR(t, approved, func(c *certificatesv1.CertificateSigningRequest) { c.Spec.SignerName = "example.com/x" }),
	} {
		if r, err := toSign(csr); r != nil || err != nil {
			t.Errorf("%s: got %v, %v", name, r, err)
		}
	}
	if r, err := toSign(renewalCSR(t, approved)); err != nil || r == nil || r.Cluster != "east" || r.Agent != "agent" {
		t.Errorf("approved: got %+v, %v", r, err)
	}
	// A certificate of hawser pki has no organization of all clusters.
	key := newKey(t)
	alone := renewalCSR(t, approved, func(c *certificatesv1.CertificateSigningRequest) {
		c.Spec.Request = pemOf(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: userOf("east", "agent"), Organization: []string{"system:open-cluster-management:east"}}}, key)
	})
	if r, err := toSign(alone); r == nil || err != nil {
		t.Errorf("without the organization of all clusters: %v", err)
	}
}

func TestAuthority_Files(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func(certs, keys []byte) {
		t.Helper()
		if err := errors.Join(os.WriteFile(cert, certs, 0o600), os.WriteFile(key, keys, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	s := Signer{CertFile: cert, KeyFile: key, Duration: DefaultDuration}
	reports := func(what string) {
		t.Helper()
		err := s.look(start)
		if what == "" && err != nil || what != "" && (err == nil || !strings.Contains(err.Error(), what)) {
			t.Errorf("the error is %v, want %q", err, what)
		}
	}
	reports("cannot be read")
	year := 365 * 24 * time.Hour
	write(caOf(t, start, start.Add(10*year)))
	reports("")
	write(caOf(t, start.Add(-9*year), start.Add(year)))
	reports("put the next one")
	write(caOf(t, start.Add(-time.Hour), start.Add(DefaultDuration-time.Hour)))
	reports("before the certificates that it signs would")
	write(caOf(t, start.Add(-year), start))
	reports("expired at")
	certs, _ := caOf(t, start, start.Add(year))
	_, keys := caOf(t, start, start.Add(year))
	write(certs, keys)
	reports("private key does not match")

	// The first certificate may not sign others, and the second one is from another CA.
	root := signerOf(t, start, start.Add(10*year))
	leafKey := newKey(t)
	keys = pkcs8(t, leafKey)
	leaf := issuedBy(t, root, leafKey, false)
	write(leaf, keys)
	reports("may not sign others")
	between := issuedBy(t, root, leafKey, true)
	write(append(slices.Clone(between), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.cert.Raw})...), keys)
	reports("")
	a, err := s.read()
	if err != nil || !bytes.Equal(a.chain, between) {
		t.Errorf("beside a certificate of an intermediate CA %q is shown, want it alone: %v", a.chain, err)
	}
}

// TestIssue_ClockAhead: a machine resumes, and for two seconds its clock is a year ahead. Certificates signed
// in that time are valid at once, by the clock of the hub, and for the configured time.
func TestIssue_ClockAhead(t *testing.T) {
	csr := renewalCSR(t, func(c *certificatesv1.CertificateSigningRequest) {
		c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start),
		}}
	})
	requested, err := toSign(csr)
	if err != nil || requested == nil {
		t.Fatalf("not to be signed: %v", err)
	}
	for name, c := range map[string]struct {
		ca, now time.Time // begin of the CA's validity, and the time of the local clock
		want    time.Time // begin of the configured lifetime
	}{
		"a year ahead":           {start.Add(-time.Hour), start.Add(365 * 24 * time.Hour), start},
		"a little later":         {start.Add(-time.Hour), start.Add(time.Minute), start.Add(time.Minute)},
		"behind":                 {start.Add(-time.Hour), start.Add(-time.Minute), start.Add(-time.Minute)},
		"approved before the CA": {start.Add(time.Hour), start.Add(2 * time.Hour), start.Add(time.Hour)},
		"signed after two hours": {start.Add(-time.Hour), start.Add(2 * time.Hour), start},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := signerOf(t, c.ca, start.Add(10*365*24*time.Hour)).issue(*requested, rand.Reader, c.now, DefaultDuration)
			if err != nil {
				t.Fatal(err)
			}
			block, _ := pem.Decode(text)
			got, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if from := c.want.Add(-5 * time.Minute); got.NotBefore.After(c.want) || got.NotBefore.Before(from) || !got.NotAfter.Equal(c.want.Add(DefaultDuration)) {
				t.Errorf("valid from %v to %v, want from %v to %v", got.NotBefore, got.NotAfter, from, c.want.Add(DefaultDuration))
			}
		})
	}
}

// TestSignable: an approved CSR is signed while the hub accepts the cluster, and never after a denial.
func TestSignable(t *testing.T) {
	going := func(c *clusterv1.ManagedCluster) { c.DeletionTimestamp = &metav1.Time{Time: start} }
	deniedAt := func(ago time.Duration) func(*clusterv1.ManagedCluster) {
		return func(c *clusterv1.ManagedCluster) {
			isDenied(c)
			c.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(-ago))
		}
	}
	for _, c := range []struct {
		name    string
		cluster *clusterv1.ManagedCluster
		may     bool
		never   bool
	}{
		{"accepted", clusterNamed("east", accepts), true, false},
		{"accepted again", clusterNamed("east", accepts, deniedAt(0)), true, false},
		{"not accepted yet", clusterNamed("east"), false, false},
		{"not there yet", nil, false, false},
		{"denied since", clusterNamed("east", deniedAt(-time.Second)), false, true},
		{"denied in the same second", clusterNamed("east", deniedAt(0)), false, true},
		{"denied before, and about to be accepted", clusterNamed("east", deniedAt(time.Second)), false, false},
		{"denied a moment ago, without a time", clusterNamed("east", isAccepted), false, false},
		{"being deleted", clusterNamed("east", accepts, going), false, true},
	} {
		may, err := (&request{approved: start}).signable(c.cluster)
		var u *invalidCSRError
		if may != c.may || errors.As(err, &u) != c.never {
			t.Errorf("%s: %t, %v", c.name, may, err)
		}
	}
}

// TestController_SignsNothingAfterADenial: the request is approved, and the cluster is denied. Then the signer,
// whose watch lags, handles the request.
func TestController_SignsNothingAfterADenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t, Config{Mode: On, Signer: signer(t)}, clusterNamed("east", accepts))
		w.edit("east", func(c *clusterv1.ManagedCluster) { c.Spec.HubAcceptsClient = false })
		shown := w.cluster("east").DeepCopy()
		approved := csrOf(t, "east-1", "east", "agent", bootstrapUser, newKey(t), condition(certificatesv1.CertificateApproved, "KubectlApprove"))
		approved.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Hour))
		w.request(approved)
		if c := w.csr("east-1"); len(c.Status.Certificate) > 0 || conditionOf(c, certificatesv1.CertificateFailed) != reasonDenied {
			t.Errorf("of a cluster that is not accepted (%v) a CSR has %+v", shown.Spec, c.Status)
		}
		w.edit("east", accepts)
		w.request(csrOf(t, "east-2", "east", "agent", bootstrapUser, newKey(t), condition(certificatesv1.CertificateApproved, "KubectlApprove")))
		if c := w.csr("east-2"); len(c.Status.Certificate) == 0 {
			t.Errorf("of a cluster that is accepted again a CSR has %+v", c.Status)
		}
	})
}
