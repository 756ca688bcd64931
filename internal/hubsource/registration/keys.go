package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	keysEvery   = 5 * time.Minute
	keysAgain   = 15 * time.Second
	keysTimeout = 10 * time.Second
)

// Paths of the hub's API for the verification of its tokens.
const (
	issuerPath = "/.well-known/openid-configuration"
	jwksPath   = "/openid/v1/jwks"
)

// sendKeys publishes over a link the keys that verify the tokens of the hub's accounts, and the authorities of its
// clusters' certificates. It does so on each new subscription and every few minutes, because keys and
// authorities rotate.
func (s *Server) sendKeys(ctx context.Context, l *link) error {
	for wait := keysEvery; taskgroup.WaitFor(ctx, l.newSession, wait); {
		wait = keysEvery
		if err := s.sendKeysOnce(ctx, l); err != nil && ctx.Err() == nil {
			wait = keysAgain
			s.cfg.Log.WarnContext(ctx, "the broker has no keys to verify tokens of the hub", "err", err, "retry_in", wait)
		}
	}
	return nil
}

func (s *Server) sendKeysOnce(ctx context.Context, l *link) error {
	s.mu.Lock()
	on := subscription{l, l.on}
	s.mu.Unlock()
	if on.id == "" {
		return nil // the next subscription gets the keys
	}
	keys, err := s.keys(ctx)
	if err != nil {
		return err
	}
	e, err := codec.NewRegistrationKeys(s.envelopeOf(), keys)
	if err != nil {
		return err
	}
	if err := s.publish(ctx, on, e); err != nil && s.still(on) {
		return fmt.Errorf("publish the keys: %w", err)
	}
	return nil
}

// keys reads the issuer and the keys from the hub.
func (s *Server) keys(ctx context.Context) (*hawserv1.RegistrationKeys, error) {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	text, err := s.cfg.Hub.Get(ctx, issuerPath)
	if err != nil {
		return nil, fmt.Errorf("ask the hub for the issuer of its tokens: %w", err)
	}
	var found struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(text, &found); err != nil || found.Issuer == "" {
		return nil, fmt.Errorf("the hub names at %s no issuer of its tokens: %w", issuerPath, err)
	}
	jwks, err := s.cfg.Hub.Get(ctx, jwksPath)
	if err != nil {
		return nil, fmt.Errorf("ask the hub for the keys of its tokens: %w", err)
	}
	audiences, err := s.apiAudiences(ctx, found.Issuer)
	if err != nil {
		return nil, fmt.Errorf("ask the hub for the audiences of its API: %w", err)
	}
	keys := &hawserv1.RegistrationKeys{Issuer: found.Issuer, Jwks: jwks, ApiAudiences: audiences}
	keys.ClientAuthorities, err = s.cfg.Hub.authorities(ctx)
	s.warnOfAuthorities(ctx, err)
	return keys, nil
}

// warnOfAuthorities logs once why the broker gets no authorities of clusters. The broker then keeps those it
// has, and tokens are not affected.
func (s *Server) warnOfAuthorities(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if text != s.unknownAuthorities && text != "" && !errors.Is(err, context.Canceled) {
		s.cfg.Log.WarnContext(ctx, "authorities that sign for clusters cannot be read from the hub; the broker keeps those it has", "err", err)
	}
	s.unknownAuthorities = text
}

// apiAudiences returns the audiences of tokens for the hub's API. The hub returns them in the review of
// hub-source's own token. Without such a token it is the issuer, which is the default of a kube-apiserver.
func (s *Server) apiAudiences(ctx context.Context, issuer string) ([]string, error) {
	own, err := s.cfg.Hub.Token()
	if err != nil {
		return nil, err
	}
	if own == "" {
		return []string{issuer}, nil
	}
	reported, err := s.cfg.Hub.Tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: own}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if !reported.Status.Authenticated || len(reported.Status.Audiences) == 0 {
		return []string{issuer}, nil
	}
	return reported.Status.Audiences, nil
}
