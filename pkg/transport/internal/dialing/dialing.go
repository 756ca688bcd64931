// Package dialing is the shared connection code of the transports: proxies, TLS, and the texts of their errors.
package dialing

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/hawser-io/hawser/pkg/transport"
)

// Roots returns the hashes of the CAs that verified a peer's certificate, for [transport.Accepted].
func Roots(verified [][]*x509.Certificate) (roots []string) {
	for _, chain := range verified {
		sum := sha256.Sum256(chain[len(chain)-1].Raw)
		if root := hex.EncodeToString(sum[:]); !slices.Contains(roots, root) {
			roots = append(roots, root)
		}
	}
	return roots
}

// TimedOut returns the error of a Dial that exceeded its timeout or whose ctx ended.
func TimedOut(ctx context.Context, broker string, timeout time.Duration) *transport.Error {
	message := "no connection to " + broker
	if ctx.Err() != nil {
		return transport.GaveUp(ctx, message)
	}
	return &transport.Error{
		Code: transport.CodeDeadline, Message: message + " within " + timeout.String(),
		Hint: "check the address, and that firewalls and proxies on the way let it through",
	}
}

// issuer names the issuer of the rejected certificate.
func issuer(e *tls.CertificateVerificationError) string {
	if len(e.UnverifiedCertificates) == 0 {
		return ""
	}
	return e.UnverifiedCertificates[0].Issuer.String()
}

// Explain completes the error e of a Dial whose cause is about a proxy or TLS. It names the side that rejects
// the other, and the remedy. It reports whether the cause is one of these.
func Explain(e *transport.Error, cause error) bool {
	var (
		proxy     *ProxyError
		untrusted *tls.CertificateVerificationError
		netError  *net.OpError
	)
	switch {
	case errors.As(cause, &proxy):
		e.Hint = proxy.Hint() // the certificate is not the broker's
	case errors.As(cause, &untrusted):
		e.Code, e.Next = transport.CodeUnauthenticated, transport.NextRefreshCredentials
		e.Hint = fmt.Sprintf("the broker's certificate, signed by %q, is not accepted here: check the CA file, and that the certificate names this host. If the operators of the broker do not know that CA, something on the way inspects TLS: ask the network team to exempt this address", issuer(untrusted))
	case errors.As(cause, &netError) && netError.Op == "remote error":
		e.Code, e.Next = transport.CodeUnauthenticated, transport.NextRefreshCredentials
		e.Hint = "the broker rejected the TLS handshake: check the client certificate, its expiry and the CA that signed it"
	case errors.As(cause, new(tls.RecordHeaderError)):
		e.Hint = "the server does not speak TLS: check the port"
	default:
		return false
	}
	return true
}
