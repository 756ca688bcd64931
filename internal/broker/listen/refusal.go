package listen

import (
	"errors"
	"fmt"
	"time"

	"github.com/hawser-io/hawser/internal/broker/denials"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// refusal is an answer to a call that is not let in.
type refusal struct {
	told *transport.Error
	// reason is a value of a metric's label.
	reason string
}

// Error implements error.
func (r *refusal) Error() string { return r.told.Error() }

// Unwrap returns what the caller is told.
func (r *refusal) Unwrap() error { return r.told }

// ReasonOf is why a call is refused, as metrics and the audit stream name it.
func ReasonOf(err error) string {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.reason
	}
	return transport.CodeOf(err).String()
}

// unidentified is the answer to who showed no certificate.
func unidentified() *refusal {
	return &refusal{reason: "no_certificate", told: &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
		Message: "the call needs an identity",
		Hint:    "connect with a client certificate that the broker's CA signed and its configuration maps to a role; health for probes is at /readyz of the admin port",
	}}
}

// unmapped is the answer to a certificate nobody knows.
func unmapped(err error) *refusal {
	return &refusal{reason: "unmapped", told: &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
		Message: err.Error(),
		Hint:    "add an identity rule for this subject to the broker's configuration, or use another certificate",
	}}
}

// keptOut is the answer to who an operator keeps out. What to do is said by the
// code too: a party gets new credentials, and comes back until it is let in.
func keptOut(id identity.Identity, d denials.Denial) *refusal {
	e := &transport.Error{
		Code: transport.CodeUnauthenticated, Next: transport.NextRefreshCredentials,
		Message: fmt.Sprintf("%s is denied by an operator of the broker since %s", id, d.At.UTC().Format(time.RFC3339)),
		Hint:    "an operator lets it in again with: hawser allow " + d.Subject.String(),
	}
	if d.Subject.Serial != "" {
		e.Message = fmt.Sprintf("certificate %s of %s is denied by an operator of the broker since %s", d.Subject.Serial, id, d.At.UTC().Format(time.RFC3339))
		e.Hint = "get another certificate, or have an operator let this one in again with: hawser allow " + d.Subject.String()
	}
	return &refusal{reason: denied, told: e}
}

// comeBack is what who asks too much is told to wait.
const comeBack = time.Second

// overloaded is the answer to who asks too much.
func overloaded(reason, message, hint string) *refusal {
	return &refusal{reason: reason, told: &transport.Error{
		Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: comeBack, Message: message, Hint: hint,
	}}
}

// tooMany is the answer to who has all it may have.
func tooMany(id identity.Identity, what string, most int) *refusal {
	return overloaded("number", fmt.Sprintf("%s has %d %s, which is all it may have at a time", id, most, what),
		"end some, or give programs that share a certificate one each")
}

// tooManyLists is the answer where others list.
func tooManyLists(most int) *refusal {
	return overloaded("lists", fmt.Sprintf("%d lists are being made, which is all that are at a time", most), "try again")
}

// tooMuch is the answer to who has sent more bytes than it may.
func tooMuch(id identity.Identity) *refusal {
	return overloaded("rate", fmt.Sprintf("%s sends more bytes than it may", id), "try again later, and send less: a status that changes often need not be sent each time")
}

// tooOften is the answer to who asks too fast.
func tooOften(id identity.Identity, what string) *refusal {
	return overloaded("rate", fmt.Sprintf("%s begins %s faster than it may", id, what), "try again later, and less often")
}
