package clustercontroller

import (
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/earliest"
)

// TestIssue_ReportsWhen: a certificate begins before its issue, and contains its issue time. That time is never
// before the earliest issue time of its cluster, even if the clock here is behind it.
func TestIssue_ReportsWhen(t *testing.T) {
	now := time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)
	a := signerOf(t, now.Add(-time.Hour), now.Add(1000*time.Hour))
	for name, c := range map[string]struct{ from, want time.Time }{
		"no earliest time": {time.Time{}, now},
		"one before":       {now.Add(-time.Minute), now},
		"one ahead":        {now.Add(2 * time.Second), now.Add(2 * time.Second)},
	} {
		leaf := issued(t, a, renewalCSR(t), now, 720*time.Hour, c.from)
		if at, reported := earliest.IssuedAt(leaf); !reported || !at.Equal(c.want) || !leaf.NotBefore.Equal(now.Add(-backdate)) {
			t.Errorf("%s: issued at %v, %v, valid from %v", name, at, reported, leaf.NotBefore)
		}
	}
}

// TestController_SignsNothingFromBefore: a request from before the earliest issue time is not signed, a later
// one is. The hub is queried at t3, because an informer may not know t2.
//
// Scenario:
//
//	t1: an agent makes a request, or has the certificate with which it makes one later.
//	t2: the earliest issue time is set.
//	t3: the request is approved.
func TestController_SignsNothingFromBefore(t *testing.T) {
	kept := func(e earliest.Entry) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: earliest.Namespace, Name: earliest.ConfigMap}, Data: map[string]string{"east": e.String()}}
	}
	for name, c := range map[string]struct {
		at, created, with time.Duration // relative to t2
		until             string
		signed            bool
	}{
		"requested before":                         {created: -time.Second, with: time.Second},
		"requested with a certificate from before": {created: time.Second, with: -time.Second},
		"requested after":                          {created: time.Second, signed: true},
		"another cluster was detached":             {created: -time.Second, with: -time.Second, until: "uid-of-another"},
		"this one is being detached":               {created: -time.Second, with: -time.Second, until: "uid-of-cluster", signed: true}, // decideRenewal would deny this CSR
		"the time lies far ahead":                  {at: time.Hour, created: time.Second, signed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				t2 := time.Now()
				w := begin(t, Config{Mode: On, Signer: signer(t)}, kept(earliest.Entry{At: t2.Add(c.at), Until: c.until}), clusterNamed("east", accepts))
				w.add(renewalCSR(t, func(csr *certificatesv1.CertificateSigningRequest) {
					csr.CreationTimestamp = metav1.NewTime(t2.Add(c.created))
					csr.Annotations[earliest.IssuedAnnotation] = t2.Add(c.with).UTC().Format(time.RFC3339)
				}))
				w.pass(time.Second)
				csr := w.csr("east-1")
				if got := len(csr.Status.Certificate) > 0; got != c.signed {
					t.Errorf("signed: %v, %+v", got, csr.Status.Conditions)
				}
			})
		})
	}
}
