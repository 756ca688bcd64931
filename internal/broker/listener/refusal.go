package listener

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// refusal is an answer to a call that is not let in.
type refusal struct {
	sent *transport.Error
	// reason is a value of a metric's label.
	reason string
}

// Error implements error.
func (r *refusal) Error() string { return r.sent.Error() }

// Unwrap returns what the caller is told.
func (r *refusal) Unwrap() error { return r.sent }

// ReasonOf is why a call is refused, as metrics and the audit stream name it.
func ReasonOf(err error) string {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.reason
	}
	return transport.CodeOf(err).String()
}

// reasons of refusals that are looked at.
const (
	noCertificate = "no_certificate"
	badToken      = "token"
)

// unidentified is the answer to who showed no certificate.
func unidentified() *refusal {
	return unauthenticated(noCertificate, "the call needs an identity",
		"connect with a client certificate that the broker's CA signed and its configuration maps to a role; health for probes is at /readyz of the admin port")
}

// unauthenticated is the answer to who has to come with other credentials.
func unauthenticated(reason, message, hint string) *refusal {
	return &refusal{reason: reason, sent: &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials, Message: message, Hint: hint,
	}}
}

// unmapped is the answer to a certificate nobody knows.
func unmapped(err error) *refusal {
	return unauthenticated("unmapped", err.Error(),
		"add an identity rule for this subject to the broker's configuration, or use another certificate")
}

// agentsOnly is the answer to a certificate for which an authority of agents alone vouches.
func agentsOnly(id identity.Identity) *refusal {
	return unauthenticated("agents_only",
		fmt.Sprintf("the certificate of %s is signed by an authority that vouches for agents alone", id),
		"connect with a certificate of an authority in the broker's tls.clientCAFile: the one that signs for clusters signs for no other role")
}

// garbled is why headers are refused that the library of gRPC answers by itself.
var garbled = &refusal{reason: "headers", sent: &transport.Error{
	Code: transport.CodeInvalid, Next: transport.NextStop, Message: "the headers are not those of a call", Hint: "speak gRPC: POST, with content type application/grpc",
}}

// tokenless is the answer to who showed neither a certificate nor, with this call, a token.
func tokenless() *refusal {
	r := unidentified()
	r.sent.Hint = "connect with a client certificate that the broker's CA signed and its configuration maps to a role, or give a bearer token with each call"
	return r
}

// takesNone is the answer to a token where nobody can judge it.
func takesNone() *refusal {
	return unauthenticated(badToken, "this broker takes no tokens", "connect with a client certificate, or have an operator set tokens in the broker's configuration")
}

// severalTokens is the answer to a second token while the first one is being judged.
func severalTokens() *refusal {
	return unauthenticated(badToken, "another token of the same connection is being judged", "use another connection for another token")
}

// tooManyTokens is the answer to an address from which many bad tokens came.
func tooManyTokens(from netip.Prefix) *refusal {
	return overloaded("rate", fmt.Sprintf("too many tokens that do not count come from %s", from), "try again later, with a good one")
}

// keptOut is the answer to who an operator keeps out. What to do is said by the
// code too: a party gets new credentials, and comes back until it is let in.
func keptOut(id identity.Identity, d denylist.Denial) *refusal {
	client, hint := id.String(), "an operator lets it in again with: hawser allow "
	if d.Subject.Serial != "" {
		client = fmt.Sprintf("certificate %s of %s", d.Subject.Serial, id)
		hint = "get another certificate, or have an operator let this one in again with: hawser allow "
	}
	message := fmt.Sprintf("%s is denied by an operator of the broker since %s", client, d.At.UTC().Format(time.RFC3339))
	return unauthenticated(denied, message, hint+d.Subject.String())
}

// issuedTooEarly is the answer to an agent whose certificate is from before the earliest issue time of its
// cluster.
func issuedTooEarly(id identity.Identity, issued, from time.Time) *refusal {
	return &refusal{reason: tooEarly, sent: &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials, Attribute: transport.AttributeCertificate,
		Message: fmt.Sprintf("the certificate of %s was issued at %s, and the hub has had those from before %s end, as hawser detach, deny cluster and rotate cluster do",
			id, issued.UTC().Format(time.RFC3339), from.UTC().Format(time.RFC3339)),
		Hint: "have the cluster join again with a new token: hawser token create prints how",
	}}
}

// comeBack is what who asks too much is told to wait.
const comeBack = time.Second

// overloaded is the answer to who asks too much.
func overloaded(reason, message, hint string) *refusal {
	return &refusal{reason: reason, sent: &transport.Error{
		Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: comeBack, Message: message, Hint: hint,
	}}
}

// nameOf names an identity to its holder.
func nameOf(id identity.Identity) string {
	if id.Role == noRole {
		return "who waits for what the hub says of its token"
	}
	return id.String()
}

// tooMany is the answer to who has all it may have.
func tooMany(id identity.Identity, what string, most int) *refusal {
	return overloaded("number", fmt.Sprintf("%s has %d %s, which is all it may have at a time", nameOf(id), most, what),
		"end some, or give programs that share a certificate one each")
}

// tooManyLists is the answer where others list.
func tooManyLists(most int) *refusal {
	return overloaded("lists", fmt.Sprintf("%d lists are being made, which is all that are at a time", most), "try again")
}

// tooOften is the answer to who asks too fast.
func tooOften(id identity.Identity, what string) *refusal {
	return overloaded("rate", fmt.Sprintf("%s begins %s faster than it may", nameOf(id), what), "try again later, and less often")
}
