// Package earliest is about the earliest issue time of a cluster: certificates of its agents from
// before that time do not count, neither for connecting nor for renewing. So a name that another
// cluster has inherited, and a key that was stolen, end with a new certificate.
//
// hawser detach, hawser reject cluster and hawser rotate cluster set it on the hub, and nothing else
// does. hub-source tells the broker, which keeps it too. Of two the later one counts.
//
// A certificate that Hawser signs says when it was issued, in an extension: its NotBefore lies some
// minutes before, to forgive clocks that are behind. See docs/adr/030-earliest-issue.md.
package earliest

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"strings"
	"time"
)

const (
	// Namespace is that of the ConfigMap in which the hub keeps the times: a key for each cluster, beside
	// everything that goes with a cluster. An [Entry] is the value.
	Namespace = "open-cluster-management-hub"
	// ConfigMap is its name.
	ConfigMap = "hawser-earliest-issue"
	// RotateAnnotation of a ManagedCluster is the time, in RFC 3339, that becomes the earliest issue
	// time once an agent with a certificate from after it has come.
	RotateAnnotation = "hawser.dev/rotate"
	// IssuedAnnotation of a CertificateSigningRequest is the issue time of the certificate that its agent
	// used for the request, in RFC 3339.
	IssuedAnnotation = "hawser.dev/request-certificate-issued"

	// backdate is by how much signers let a certificate begin before its issue.
	backdate = 5 * time.Minute
	// ahead is how far a time may lie in the future: clocks differ.
	ahead = 5 * time.Minute
)

// Entry is the earliest issue time of one cluster.
type Entry struct {
	At time.Time
	// Until, where it is set, is the uid of a ManagedCluster that is being detached. While it is there,
	// the entry does not count: its agent has to delete what works have.
	Until string
}

// Parse reads what String returns.
func Parse(text string) (e Entry, err error) {
	at, until, _ := strings.Cut(text, " ")
	e.Until = until
	if e.At, err = time.Parse(time.RFC3339, at); err != nil || e.At.Year() < 1970 || e.At.Year() > 9000 {
		return e, fmt.Errorf("%.60q is no earliest issue time: write it as 2026-01-02T15:04:05Z", text)
	}
	return e, nil
}

// String returns the entry as the hub keeps it.
func (e Entry) String() string {
	return strings.TrimSpace(e.At.UTC().Format(time.RFC3339) + " " + e.Until)
}

// Counts reports whether there is an entry, and it counts whatever clusters there are.
func (e Entry) Counts() bool { return !e.At.IsZero() && e.Until == "" }

// Sound reports whether a time may be one: a wrong clock would keep a cluster out for years.
func Sound(at, now time.Time) bool { return !at.After(now.Add(ahead)) }

// period is the extension Private Key Usage Period. Its beginning is the issue time.
var period = asn1.ObjectIdentifier{2, 5, 29, 16}

// usage is the value of the extension, as far as it is used.
type usage struct {
	NotBefore time.Time `asn1:"tag:0,generalized"`
}

// Extension returns the extension of a certificate that is issued at this time.
func Extension(at time.Time) pkix.Extension {
	der, err := asn1.Marshal(usage{at.UTC().Truncate(time.Second)})
	if err != nil {
		panic("bug: a time is not encoded: " + err.Error()) // it has a year of four digits
	}
	return pkix.Extension{Id: period, Value: der}
}

// IssuedAt returns when a certificate was issued, to the second. said: the certificate says so.
// Otherwise it is when the certificate begins.
func IssuedAt(c *x509.Certificate) (at time.Time, reported bool) {
	for _, e := range c.Extensions {
		var u usage
		if !e.Id.Equal(period) {
			continue
		}
		if _, err := asn1.Unmarshal(e.Value, &u); err == nil {
			return u.NotBefore, true
		}
	}
	return c.NotBefore, false
}

// Guess returns when a certificate was issued of which only the beginning is known, at the latest:
// the signers of Kubernetes and of Open Cluster Management let each begin five minutes before, that of
// Hawser before this extension a twentieth of its duration before, if that is less.
func Guess(c *x509.Certificate) time.Time {
	at, reported := IssuedAt(c)
	if !reported {
		at = at.Add(min(backdate, c.NotAfter.Sub(c.NotBefore)/21))
	}
	return at
}
