// Package earliest defines the earliest issue time of a cluster. Certificates of its agents that were issued
// before it are rejected, for connections and for renewals. That ends the use of a stolen key, and of a
// certificate of a former cluster with the same name.
//
// Only hawser detach, hawser reject cluster and hawser rotate cluster set it on the hub. hub-source publishes
// it to the broker, which keeps it too. Of two times the later one is valid.
//
// A certificate that Hawser signs contains its issue time, in an extension. Its NotBefore is some minutes
// earlier, to tolerate clocks that are behind. See docs/adr/030-earliest-issue.md.
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
	// Namespace is the namespace of the ConfigMap with the times. It has one key for each cluster, outside of the
	// objects that are deleted with a cluster. The value is an [Entry].
	Namespace = "open-cluster-management-hub"
	// ConfigMap is the name of the ConfigMap with the times.
	ConfigMap = "hawser-earliest-issue"
	// RotateAnnotation of a ManagedCluster is a time in RFC 3339. It becomes the earliest issue time once an agent
	// has connected with a certificate from after it.
	RotateAnnotation = "hawser.dev/rotate"
	// IssuedAnnotation of a CertificateSigningRequest is the issue time, in RFC 3339, of the certificate with which
	// its agent made the request.
	IssuedAnnotation = "hawser.dev/request-certificate-issued"

	// backdate is how long before its issue a certificate begins, at most.
	backdate = 5 * time.Minute
	// ahead is how far a time may be in the future, because clocks differ.
	ahead = 5 * time.Minute
)

// Entry is the earliest issue time of one cluster.
type Entry struct {
	At time.Time
	// Until, if set, is the uid of a ManagedCluster under detachment. While that ManagedCluster exists, the entry
	// is not valid: the agent still has to delete the objects of its works.
	Until string
}

// Parse reads the text that String returns.
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

// Counts reports whether there is an entry that is valid whatever clusters exist.
func (e Entry) Counts() bool { return !e.At.IsZero() && e.Until == "" }

// IsPlausible reports whether a time is not too far in the future: a time from a wrong clock would lock a
// cluster out for years.
func IsPlausible(at, now time.Time) bool { return !at.After(now.Add(ahead)) }

// period is the extension Private Key Usage Period. Its begin is the issue time.
var period = asn1.ObjectIdentifier{2, 5, 29, 16}

// usage is the used part of the extension's value.
type usage struct {
	NotBefore time.Time `asn1:"tag:0,generalized"`
}

// Extension returns the extension of a certificate that is issued at this time.
func Extension(at time.Time) pkix.Extension {
	der, err := asn1.Marshal(usage{at.UTC().Truncate(time.Second)})
	if err != nil {
		panic("bug: a time is not encoded: " + err.Error()) // every encoded year has four digits
	}
	return pkix.Extension{Id: period, Value: der}
}

// IssuedAt returns when a certificate was issued, to the second. If the certificate contains its issue time,
// reported is true. Otherwise the result is its NotBefore.
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

// LatestIssuedAt returns the latest time at which a certificate may have been issued. Without the extension,
// only its begin is known. The signers of Kubernetes and of Open Cluster Management let a certificate begin five
// minutes before its issue. Hawser, before it used this extension, let it begin one twentieth of its lifetime
// before, if that was less.
func LatestIssuedAt(c *x509.Certificate) time.Time {
	at, reported := IssuedAt(c)
	if !reported {
		at = at.Add(min(backdate, c.NotAfter.Sub(c.NotBefore)/21))
	}
	return at
}
