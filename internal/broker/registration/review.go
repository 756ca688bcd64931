package registration

import (
	"context"
	"sync"

	"github.com/hawser-io/hawser/internal/identity"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// reviewer is the identity of the broker for its own token reviews. The request queue treats it as one more
// client.
var reviewer = identity.Identity{Role: "broker", Name: "tokens"}

// Review asks the hub whether a bearer token is valid for one of the audiences. No audience means the hub's
// own. The request waits in the queue, as requests of agents do. An error is a *transport.Error and means that
// the hub gave no answer.
func (r *Service) Review(ctx context.Context, token string, audiences []string) (*hawserv1.TokenReviewResult, error) {
	a := &agentRequest{from: reviewer, size: requestBytes + len(token), request: &hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Review{
		Review: &hawserv1.TokenReview{Token: token, Audiences: audiences},
	}}}
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

// keys holds the last reported keys that verify tokens, and the functions that are called on a change.
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

// OnKeys registers f for the keys that verify tokens. f is called at once if they are known, and then for each
// report of the source, one call at a time. f must not call OnKeys, and must not change the keys.
func (r *Service) OnKeys(f func(*hawserv1.RegistrationKeys)) {
	r.keys.mu.Lock()
	defer r.keys.mu.Unlock()
	r.keys.listeners = append(r.keys.listeners, f)
	if r.keys.last != nil {
		f(r.keys.last)
	}
}
