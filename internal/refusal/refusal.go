// Package refusal parses errors of a kube-apiserver. It finds out whether admission rejected the request, and
// which webhook failed, or which webhook or policy denied it. Only the text of the error contains that.
package refusal

import (
	"fmt"
	"regexp"
)

// Refusal names what rejected a request. Exactly one of Webhook and Policy is set.
type Refusal struct {
	// Webhook is the name of a webhook in a ValidatingWebhookConfiguration or a MutatingWebhookConfiguration, not
	// the name of that object.
	Webhook string
	// Policy is the name of a ValidatingAdmissionPolicy or a MutatingAdmissionPolicy.
	Policy string
}

// String returns a text for people.
func (r Refusal) String() string {
	if r.Webhook != "" {
		return fmt.Sprintf("admission webhook %q", r.Webhook)
	}
	return fmt.Sprintf("admission policy %q", r.Policy)
}

var (
	webhook = regexp.MustCompile(`failed calling webhook "([^"]+)"|admission webhook "([^"]+)" denied the request`)
	policy  = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)'.* denied request|policy '([^']+)' with binding '[^']+' denied request|policy "([^"]+)" denied request`)
)

// Of returns what rejected the request of an error. ok is false if admission did not reject it. A webhook that
// does not support dry run is not a rejection.
func Of(err error) (r Refusal, ok bool) {
	if err == nil {
		return r, false
	}
	r = Refusal{Webhook: first(webhook, err.Error()), Policy: first(policy, err.Error())}
	if r.Webhook != "" {
		r.Policy = "" // a webhook may cite a policy of its own
	}
	return r, r != Refusal{}
}

// first returns the text of the first group that matches.
func first(re *regexp.Regexp, text string) string {
	for i, group := range re.FindStringSubmatch(text) {
		if i > 0 && group != "" {
			return group
		}
	}
	return ""
}
