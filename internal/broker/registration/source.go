package registration

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// sourceStream is a subscription of the source that serves registration. Only the newest one is current.
type sourceStream struct {
	running
	sender
	// nextRenewals is when renewals are due. reported are the replicas that the source knows. Only the serving goroutine uses
	// both.
	nextRenewals time.Time
	reported     []string
}

// ended returns the reason to end the stream, nil while it runs.
func (s *sourceStream) ended() *transport.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// openSource begins a subscription of the source. It sends requests over the stream, one at a time.
func (r *Service) openSource(ctx context.Context, p transport.Peer, raw transport.RawSubscription, out transport.Stream) (request.Stream, error) {
	client, err := authz.Subscriber(p, raw, codec.EventType{DataType: codec.Registrations, Subresource: codec.Status}, r.cfg.Insecure)
	if err != nil {
		return nil, err
	}
	if raw.Source != r.cfg.Registration {
		return nil, transport.Refused(transport.CodeDenied, "source", "registration is served by another source",
			"name this source as registration.source in the configuration of the broker")
	}
	if ids := r.cfg.Replicas.Live(); len(ids) > 0 && slices.Contains(strings.Split(raw.Hello.SubscribedAt, ","), ids[0]) {
		return nil, &transport.Error{
			Code: transport.CodeUnavailable, Next: transport.NextUseAnotherServer,
			Message: "the source is subscribed at this broker already", Hint: "connect again: another replica needs the subscription",
		}
	}
	s := &sourceStream{running: newRunning(r.cfg.NewID(), client), sender: r.sender(p, raw.Hello, out)}
	if err := r.enter(s); err != nil {
		return nil, err
	}
	r.cfg.Log.Info("the source that serves registration has connected", "source", raw.Source, "address", p.Addr, "subscription", s.id)
	if err := out.Accept(r.cfg.Accepted(s.id, transport.Protocol)); err != nil {
		r.leave(s)
		return nil, request.StreamBroken(ctx, err)
	}
	s.nextRenewals = r.cfg.Now()
	return s, nil
}

// enter makes a subscription the current one, and ends the previous one.
func (r *Service) enter(s *sourceStream) error {
	r.serving.Lock()
	defer r.serving.Unlock()
	if err := r.agents.closing(); err != nil {
		return err
	}
	if before := r.source.Swap(s); before != nil {
		before.stop(request.Unavailable("", "another session of "+s.client.String()+" serves registration",
			"run one process for each source id, or let them elect a leader"))
	}
	r.cache.begin(s.id)
	r.requests.begin()
	r.renewals.repeat()
	return nil
}

// leave ends a subscription that has entered. It does nothing if a newer one is current.
func (r *Service) leave(s *sourceStream) {
	r.serving.Lock()
	defer r.serving.Unlock()
	if !r.source.CompareAndSwap(s, nil) {
		return
	}
	r.cache.end(s.id)
	r.requests.end()
	r.cfg.Log.Info("the source that serves registration has disconnected", "subscription", s.id)
}

// Turn sends the requests, renewals and heartbeats that are due.
func (s *sourceStream) Turn(ctx context.Context) (next time.Time, err error) {
	r := s.service
	for {
		if why := s.ended(); why != nil {
			return next, why
		}
		if err := s.beat(ctx); err != nil {
			return next, err
		}
		req := s.next(r.cfg.Now())
		switch {
		case req != nil:
			if err := s.request(ctx, req); err != nil {
				return next, err
			}
		case r.renewals.size() > 0 && s.nextRenewals.Before(s.nextBeat):
			return s.nextRenewals, nil
		default:
			return s.nextBeat, nil
		}
	}
}

// Leave implements [request.Stream].
func (s *sourceStream) Leave() { s.service.leave(s) }

// next returns the next message for the source, nil if there is none.
func (s *sourceStream) next(now time.Time) *hawserv1.RegistrationRequest {
	r := s.service
	// The source of a single broker needs no ids.
	if ids := r.cfg.Replicas.Live(); !slices.Equal(ids, s.reported) && len(ids)+len(s.reported) > 1 {
		s.reported = ids
		return &hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Replicas{Replicas: &hawserv1.Replicas{Ids: ids}}}
	}
	if !now.Before(s.nextRenewals) {
		if req := r.renewals.take(now); req != nil {
			if r.renewals.size() == 0 {
				s.nextRenewals = now.Add(renewalPause)
			}
			return req
		}
	}
	if a := r.requests.next(); a != nil {
		return a.request
	}
	return nil
}

// request sends a request. Renewals that are lost with the stream are repeated on the next one.
func (s *sourceStream) request(ctx context.Context, req *hawserv1.RegistrationRequest) error {
	cfg := s.service.cfg
	event, err := request.Encode(codec.NewRegistrationRequest(codec.SyncParams{
		ID: cfg.NewID(), Time: cfg.Now(), Source: request.BrokerSource, Owner: cfg.Registration,
	}, req))
	if err != nil {
		return err
	}
	return s.send(ctx, event)
}

// wakeSource wakes the stream of the source, if there is one.
func (r *Service) wakeSource() {
	if s := r.source.Load(); s != nil {
		s.wake.Ring()
	}
}

// fromSource handles an event of the source. It must name the current subscription.
func (r *Service) fromSource(ctx context.Context, e *request.Event) (receipt transport.Receipt, err error) {
	s := r.source.Load()
	if s == nil || e.Subscription != s.id || e.From != s.client {
		return receipt, sourceOver()
	}
	receipt.Outcome = codec.OutcomeAccepted
	switch e.Env.RawType {
	case codec.TypeRegistrationObjects:
		var reported *hawserv1.RegistrationObjects
		if reported, err = request.Decode(e, codec.ParseRegistrationObjects); err == nil {
			err = r.takeObjects(ctx, s.id, reported)
		}
	case codec.TypeRegistrationAnswer:
		var answer *hawserv1.RegistrationAnswer
		if answer, err = request.Decode(e, codec.ParseRegistrationAnswer); err == nil && !r.requests.answer(answer) {
			receipt.Outcome = codec.OutcomeIgnored // the request was removed, or already has an answer
		}
	case codec.TypeRegistrationKeys:
		var reports *hawserv1.RegistrationKeys
		if reports, err = request.Decode(e, codec.ParseRegistrationKeys); err == nil {
			r.keys.set(reports)
		}
	default:
		err = request.Invalid("type", "events of type "+e.Env.RawType+" are not accepted", "")
	}
	if err != nil {
		return transport.Receipt{}, err
	}
	return receipt, nil
}

// sourceOver is the error for an event that does not name the current subscription.
func sourceOver() *transport.Error {
	return &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Attribute: codec.HeaderSubscriptionID,
		Message: "the event names no running subscription that serves registration", Hint: "send it again on the next subscription",
	}
}

// takeEarliest applies the earliest issue time of valid certificates, by cluster. When it returns, no
// connection has an older certificate. A time in the future comes from a wrong clock; it is ignored, because it
// would lock the cluster out until then.
func (r *Service) takeEarliest(ctx context.Context, reported *hawserv1.RegistrationObjects) error {
	to := map[string]time.Time{}
	for cluster, at := range reported.GetEarliestIssues() {
		if to[cluster] = at.AsTime(); !earliest.IsPlausible(at.AsTime(), r.cfg.Now()) {
			delete(to, cluster)
			r.cfg.Log.Warn("an earliest issue time lies in the future and is ignored: check the clocks of the hub and the broker", "cluster", cluster, "time", at.AsTime())
		}
	}
	if len(to) == 0 {
		return nil
	}
	if err := r.raise(ctx, to); err != nil {
		return request.Store(err)
	}
	return nil
}

// takeObjects updates the cache and wakes the affected subscriptions. It returns an error if session is not the
// current one.
func (r *Service) takeObjects(ctx context.Context, session string, reported *hawserv1.RegistrationObjects) error {
	if err := r.takeEarliest(ctx, reported); err != nil {
		return err
	}
	c, ok := r.cache.apply(session, reported)
	if !ok {
		return sourceOver()
	}
	for p := range c.scopes {
		r.agents.wake(p)
	}
	for _, cluster := range c.accepted {
		r.agents.wakeCluster(cluster)
	}
	for _, cluster := range c.withdrawn {
		r.withdraw(cluster)
	}
	if c.completed {
		r.agents.wakeAll()
	}
	if len(c.accepted)+len(c.withdrawn) > 0 {
		r.unsaved.Ring()
	}
	return nil
}

// withdraw ends what a cluster has that is no longer accepted.
func (r *Service) withdraw(cluster string) {
	r.renewals.forget(cluster)
	r.agents.wakeCluster(cluster)
	if !r.cache.isAccepted(cluster) { // the hub may have accepted it again
		r.endWorks(cluster, r.notAccepted(cluster))
	}
}
