// Package dialing is what the transports do alike when they connect: through proxies, with
// TLS, and with the same words when it fails.
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

// Roots returns what a peer's certificate was verified by, as [transport.Accepted] has it.
func Roots(verified [][]*x509.Certificate) (roots []string) {
	for _, chain := range verified {
		sum := sha256.Sum256(chain[len(chain)-1].Raw)
		if root := hex.EncodeToString(sum[:]); !slices.Contains(roots, root) {
			roots = append(roots, root)
		}
	}
	return roots
}

// TimedOut is the error of a Dial that was not through within its timeout, or when ctx ended.
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

// issuer names who signed the certificate that was refused.
func issuer(e *tls.CertificateVerificationError) string {
	if len(e.UnverifiedCertificates) == 0 {
		return ""
	}
	return e.UnverifiedCertificates[0].Issuer.String()
}

// Explain completes the error e of a Dial whose cause is about a proxy or TLS: which side does
// not accept the other, and what to look at. It reports whether the cause is one of these.
func Explain(e *transport.Error, cause error) bool {
	var (
		proxy     *ProxyError
		untrusted *tls.CertificateVerificationError
		netError  *net.OpError
	)
	switch {
	case errors.As(cause, &proxy):
		e.Hint = proxy.Hint() // nothing of this is the broker's
	case errors.As(cause, &untrusted):
		e.Code, e.Next = transport.CodeUnauthenticated, transport.NextRefreshCredentials
		e.Hint = fmt.Sprintf("the broker's certificate, signed by %q, is not accepted here: check the CA file, and that the certificate names this host. If nobody who runs the broker knows that CA, something on the way inspects TLS: ask the network team to exempt this address", issuer(untrusted))
	case errors.As(cause, &netError) && netError.Op == "remote error":
		e.Code, e.Next = transport.CodeUnauthenticated, transport.NextRefreshCredentials
		e.Hint = "the broker refused the TLS handshake: check the client certificate, its expiry and the CA that signed it"
	case errors.As(cause, new(tls.RecordHeaderError)):
		e.Hint = "the server does not speak TLS: check the port"
	default:
		return false
	}
	return true
}
