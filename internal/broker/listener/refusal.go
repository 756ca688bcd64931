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

// refusal is the error of a rejected call or connection.
type refusal struct {
	sent *transport.Error
	// reason is the value of a metric label.
	reason string
}

// Error implements error.
func (r *refusal) Error() string { return r.sent.Error() }

// Unwrap returns the error that the caller gets.
func (r *refusal) Unwrap() error { return r.sent }

// ReasonOf returns the reason of a rejected call, as metrics and the audit stream name it.
func ReasonOf(err error) string {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.reason
	}
	return transport.CodeOf(err).String()
}

// Reasons that the code compares.
const (
	noCertificate = "no_certificate"
	badToken      = "token"
)

// unidentified rejects a peer without a certificate.
func unidentified() *refusal {
	return unauthenticated(noCertificate, "the call needs an identity",
		"connect with a client certificate that the broker's CA signed and its configuration maps to a role. Health probes use /readyz of the admin port")
}

// unauthenticated rejects a client that needs other credentials.
func unauthenticated(reason, message, hint string) *refusal {
	return &refusal{reason: reason, sent: transport.Unauthenticated(message, hint)}
}

// unmapped rejects a certificate that no identity rule matches.
func unmapped(err error) *refusal {
	return unauthenticated("unmapped", err.Error(),
		"add an identity rule for this subject to the broker's configuration, or use another certificate")
}

// agentsOnly rejects a certificate of another role that only a CA for agents has signed.
func agentsOnly(id identity.Identity) *refusal {
	return unauthenticated("agents_only",
		fmt.Sprintf("the certificate of %s is signed by a CA that signs for agents only", id),
		"connect with a certificate of an authority in the broker's tls.clientCAFile: the one that signs for clusters signs for no other role")
}

// garbled is the refusal of a call with bad headers; the gRPC library sends the answer.
var garbled = &refusal{reason: "headers", sent: &transport.Error{
	Code: transport.CodeInvalid, Next: transport.NextStop, Message: "the headers are not those of a call", Hint: "speak gRPC: POST, with content type application/grpc",
}}

// tokenless rejects a call with neither a certificate nor a token.
func tokenless() *refusal {
	r := unidentified()
	r.sent.Hint = "connect with a client certificate that the broker's CA signed and its configuration maps to a role, or give a bearer token with each call"
	return r
}

// takesNone rejects a token at a broker that is not configured for tokens.
func takesNone() *refusal {
	return unauthenticated(badToken, "this broker accepts no tokens", "connect with a client certificate, or have an operator set tokens in the broker's configuration")
}

// severalTokens rejects a second token while the first one is under review.
func severalTokens() *refusal {
	return unauthenticated(badToken, "another token of the same connection is under review", "use another connection for another token")
}

// tooManyTokens rejects tokens of an address that has sent many bad ones.
func tooManyTokens(from netip.Prefix) *refusal {
	return overloaded("rate", fmt.Sprintf("too many rejected tokens come from %s", from), "try again later with a valid token")
}

// keptOut rejects a client that an operator has denied. The code is Unauthenticated, so that the client gets
// new credentials and retries until an operator allows it.
func keptOut(id identity.Identity, d denylist.Denial) *refusal {
	client, hint := id.String(), "an operator allows it again with: hawser allow "
	if d.Subject.Serial != "" {
		client = fmt.Sprintf("certificate %s of %s", d.Subject.Serial, id)
		hint = "get another certificate, or have an operator allow this one again with: hawser allow "
	}
	message := fmt.Sprintf("%s is denied by an operator of the broker since %s", client, d.At.UTC().Format(time.RFC3339))
	return unauthenticated(denied, message, hint+d.Subject.String())
}

// issuedTooEarly rejects an agent whose certificate is older than the earliest valid issue time of its cluster.
func issuedTooEarly(id identity.Identity, issued, from time.Time) *refusal {
	r := unauthenticated(tooEarly,
		fmt.Sprintf("the certificate of %s was issued at %s. The hub rejects certificates of this cluster from before %s, after hawser detach, deny cluster or rotate cluster",
			id, issued.UTC().Format(time.RFC3339), from.UTC().Format(time.RFC3339)),
		"have the cluster join again with a new token: hawser token create prints how")
	r.sent.Attribute = transport.AttributeCertificate
	return r
}

// comeBack is the retry delay of an overloaded client.
const comeBack = time.Second

// overloaded rejects a client that uses too much.
func overloaded(reason, message, hint string) *refusal {
	return &refusal{reason: reason, sent: &transport.Error{
		Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: comeBack, Message: message, Hint: hint,
	}}
}

// nameOf returns the name of an identity in an error for the client that has it.
func nameOf(id identity.Identity) string {
	if id.Role == noRole {
		return "a client whose token is under review"
	}
	return id.String()
}

// tooMany rejects a client that already has the maximum number of calls of one kind, or of connections.
func tooMany(id identity.Identity, what string, most int) *refusal {
	return overloaded("number", fmt.Sprintf("%s has %d %s, which is the maximum", nameOf(id), most, what),
		"end some of them, or give each program a certificate of its own")
}

// tooManyLists rejects a list because other clients use all list slots.
func tooManyLists(most int) *refusal {
	return overloaded("lists", fmt.Sprintf("%d lists are running, which is the maximum", most), "try again")
}

// tooOften rejects a client that is too fast.
func tooOften(id identity.Identity, what string) *refusal {
	return overloaded("rate", fmt.Sprintf("%s begins %s too often", nameOf(id), what), "try again later, and less often")
}
