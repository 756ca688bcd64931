package registration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// AnswerTimeout is the time that a request waits for the answer of the hub.
	AnswerTimeout = 10 * time.Second
	// envelope is the maximum number of bytes of an event besides its object.
	envelope = 4 << 10
	// requestBytes is the memory that a request needs in addition to its event.
	requestBytes = 1 << 10
)

// Publish handles an event of an agent or of the source. For an agent it returns when the hub has answered. The
// caller converts other errors with [Refusal].
func (r *Service) Publish(ctx context.Context, e *request.Event) (transport.Receipt, error) {
	switch {
	case codec.RegistrationEvent(e.Env.RawType):
		return r.fromSource(ctx, e)
	case e.Env.Type.Action == codec.ResyncRequest:
		return r.resync(e)
	}
	err := r.fromAgent(ctx, e)
	r.metrics.requested(e.Env.Type.DataType.Resource, err)
	if err != nil {
		return transport.Receipt{}, err
	}
	return transport.Receipt{Outcome: codec.OutcomeAccepted}, nil
}

// fromAgent checks a request of an agent and passes it to the hub. Lease renewals are answered here.
func (r *Service) fromAgent(ctx context.Context, e *request.Event) error {
	d, cluster := e.Env.Type.DataType, e.Env.Cluster
	row, _ := codec.Registration(d)
	joins := row.Joining && e.Env.Type.Action == codec.CreateRequest
	switch {
	case !joins && !r.cache.isAccepted(cluster):
		return forbidden("the hub has not accepted cluster " + cluster)
	case e.Size > codec.MaxRequested(e.Env.Type)+envelope:
		return transport.Refused(transport.CodeTooLarge, "data", fmt.Sprintf("event of %d bytes, at most %d of %s are accepted", e.Size, codec.MaxRequested(e.Env.Type)+envelope, d), "remove large fields, such as CA bundles or annotations")
	case len(e.Env.Data) == 0:
		return request.Invalid("data", "an event without data", "")
	case d == codec.Leases:
		return r.renew(e)
	}
	// The transport reuses the event after this returns, and the request may still be in flight then.
	event, err := e.Incoming.Normalized()
	if err != nil {
		return transport.Undecodable(err)
	}
	answer, err := r.await(ctx, &agentRequest{
		from: e.From, cluster: cluster, size: requestBytes + len(event),
		request: &hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_AgentRequest{AgentRequest: &hawserv1.AgentRequest{
			Event: event, Cluster: cluster, User: e.User, Groups: e.Groups, Bootstrap: e.From.Role == identity.Bootstrap,
			Issued: stamp(e.Issued),
		}}},
	})
	if err == nil && d == codec.TokenRequests {
		err = r.deliverToken(e, answer.GetTokenRequest())
	}
	return err
}

// answerless is the error for an answer without the requested object.
var answerless = codec.APIError{Code: 500, Reason: "InternalError", Message: "the answer of the source lacks the requested object"}

// await queues a request for the source and waits for the answer.
func (r *Service) await(ctx context.Context, a *agentRequest) (*hawserv1.RegistrationAnswer, error) {
	a.id, a.done = r.cfg.NewID(), make(chan outcome, 1)
	a.request.Id = a.id
	if err := r.requests.put(a); err != nil {
		return nil, err
	}
	defer r.requests.drop(a)
	timer := time.NewTimer(AnswerTimeout)
	defer timer.Stop()
	select {
	case o := <-a.done:
		switch {
		case o.err != nil:
			return nil, o.err
		case len(o.answer.GetError()) > 0:
			return nil, apiError(codec.ParseAPIStatus(o.answer.GetError()))
		}
		return o.answer, nil
	case <-timer.C:
		return nil, unavailable(fmt.Sprintf("the hub did not answer within %s; it is unknown whether the request was executed", AnswerTimeout))
	case <-ctx.Done():
		return nil, request.CallerGone(ctx)
	}
}

// deliverToken sends the token once, on the connection that requested it.
func (r *Service) deliverToken(e *request.Event, token []byte) error {
	if len(token) == 0 {
		return apiError(answerless)
	}
	event, err := request.Encode(codec.Builder{
		ID: r.cfg.NewID(), Source: r.cfg.Registration, Time: r.cfg.Now(), Cluster: e.Env.Cluster,
		Type:        codec.EventType{DataType: codec.TokenRequests, Subresource: codec.Spec, Action: codec.CreateRequest}.String(),
		Extensions:  map[string]any{codec.ExtResourceID: e.Env.ResourceID},
		ContentType: codec.ContentTypeJSON, Data: token,
	}.Event())
	if err != nil {
		return err
	}
	for _, s := range r.agents.sameConnection(streamScope{codec.TokenRequests, e.Env.Cluster}, e) {
		s.hand(event) // if the queue is full, the token is dropped, because the client does not read
	}
	return nil
}

// renew records a Lease renewal of an agent and answers on behalf of the hub.
func (r *Service) renew(e *request.Event) error {
	cluster := e.Env.Cluster
	var lease struct {
		Metadata struct{ Name, Namespace string }
	}
	if err := json.Unmarshal(e.Env.Data, &lease); err != nil {
		return request.Invalid("data", "the data is not the JSON of a Lease", "")
	}
	if lease.Metadata.Name != ocm.LeaseName || lease.Metadata.Namespace != cluster {
		return forbidden(fmt.Sprintf("an agent of cluster %s renews the Lease %s/%s and no other", cluster, cluster, ocm.LeaseName))
	}
	objects, _, complete := r.cache.show(streamScope{codec.Leases, cluster})
	i := slices.IndexFunc(objects, func(o *object) bool { return o.name == ocm.LeaseName })
	if complete && i < 0 || i >= 0 && e.Env.ResourceID != "" && e.Env.ResourceID != objects[i].uid {
		return apiError(codec.APIError{Code: 404, Reason: "NotFound", Message: "the hub does not have this Lease"})
	}
	if r.renewals.note(cluster, renewalTime{r.cfg.Now(), e.Issued}) {
		r.wakeSource()
	}
	return nil
}

// resync stores the list of an agent for its subscriptions, which compare it.
func (r *Service) resync(e *request.Event) (receipt transport.Receipt, err error) {
	p := streamScope{e.Env.Type.DataType, e.Env.Cluster}
	requesters := r.agents.requesters(p, e)
	if len(requesters) == 0 {
		if e.Subscription != "" {
			return receipt, request.NoSubscription(e.From)
		}
		receipt.Outcome = codec.OutcomeIgnored // the client has no subscription; the next one gets all objects
		return receipt, nil
	}
	versions, err := codec.DecodeVersions(e.Env.Data)
	if err != nil {
		return receipt, transport.Undecodable(err)
	}
	for _, s := range requesters {
		if !r.lists.Reserve(e.From, e.Payload) {
			return receipt, overloaded("too many lists wait to be compared")
		}
		s.request(&list{versions: versions, free: func() { r.lists.Free(e.From, e.Payload) }})
	}
	receipt.Outcome = codec.OutcomeAccepted
	return receipt, nil
}
