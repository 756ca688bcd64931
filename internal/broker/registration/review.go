package registration

import (
	"context"
	"sync"

	"github.com/hawser-io/hawser/internal/identity"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// reviewer is the broker itself, as far as it asks the hub about tokens: it shares the source with
// the agents as one more party.
var reviewer = identity.Identity{Role: "broker", Name: "tokens"}

// Review asks the hub whether it knows a bearer token, for one of the audiences; none is the hub's
// own. It waits as a publish of an agent does. The error is a *transport.Error: the hub did not
// say.
func (r *Service) Review(ctx context.Context, token string, audiences []string) (*hawserv1.TokenReviewResult, error) {
	message := &hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Review{
		Review: &hawserv1.TokenReview{Token: token, Audiences: audiences},
	}}
	a := &agentRequest{from: reviewer, size: requestBytes + len(token), request: message}
	answer, err := r.await(ctx, a)
	if err == nil && answer.GetReview() == nil {
		err = apiError(answerless)
	}
	r.metrics.requested("tokenreviews", err)
	if err != nil {
		return nil, err
	}
	return answer.GetReview(), nil
}

// keys are what tokens are verified by, as the source said last.
type keys struct {
	mu        sync.Mutex
	last      *hawserv1.RegistrationKeys
	listeners []func(*hawserv1.RegistrationKeys)
}

func (k *keys) set(next *hawserv1.RegistrationKeys) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = next
	for _, f := range k.listeners {
		f(next)
	}
}

// OnKeys has f called with the keys by which tokens are verified: at once if they are known, and
// whenever the source says new ones, one after the other. f must not call OnKeys. The keys are
// nobody's to change.
func (r *Service) OnKeys(f func(*hawserv1.RegistrationKeys)) {
	r.keys.mu.Lock()
	defer r.keys.mu.Unlock()
	r.keys.listeners = append(r.keys.listeners, f)
	if r.keys.last != nil {
		f(r.keys.last)
	}
}
