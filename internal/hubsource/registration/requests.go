package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/fair"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// workers is the number of requests that are carried out concurrently.
	workers = 32
	// doneWithin is how long a request may take, including its wait for a worker. The client waits ten seconds for
	// the answer. sentWithin is how long the broker may take to accept the answer.
	doneWithin = 8 * time.Second
	sentWithin = 2 * time.Second
)

// serialKey is the key of requests that run one after the other: those of a cluster. A client with a bootstrap
// token may name any cluster. So all requests with such tokens share a few queues, as token reviews do.
type serialKey struct {
	class   class
	cluster string
	n       uint32
}

type class uint8

const (
	ofCluster class = iota
	ofBootstrap
	ofReview
	refusals
)

// queuesEach is the number of shared queues for bootstrap requests, and for token reviews.
const queuesEach = 8

// longest is the limit of one queue of each class.
var longest = map[class]int{ofCluster: 64, ofBootstrap: 512, ofReview: 512, refusals: 1024}

// queuedRequest is a request that waits for a worker.
type queuedRequest struct {
	*hawserv1.RegistrationRequest
	on    subscription // of the request
	since time.Time
	// refused: too many requests wait, and the answer is a refusal.
	refused bool
}

// queue holds the waiting requests. Queues are scheduled by the time that the hub took for them.
type queue struct {
	queue fair.Queue[serialKey, string, queuedRequest]
	count uint32
}

// keyOf returns the queue of a request.
func (q *queue) keyOf(r *hawserv1.RegistrationRequest) serialKey {
	switch a := r.GetAgentRequest(); {
	case a == nil:
		q.count++
		return serialKey{class: ofReview, n: q.count % queuesEach}
	case a.GetBootstrap():
		h := fnv.New32a()
		_, _ = h.Write([]byte(a.GetCluster())) // never fails
		return serialKey{class: ofBootstrap, n: h.Sum32() % queuesEach}
	default:
		return serialKey{class: ofCluster, cluster: a.GetCluster()}
	}
}

// push adds a request. It returns false if it drops the request, because even too many refusals wait.
func (q *queue) push(w queuedRequest) bool {
	l := q.keyOf(w.RegistrationRequest)
	if q.queue.LenOf(l) >= longest[l.class] {
		l, w.refused = serialKey{class: refusals}, true
		if q.queue.LenOf(l) >= longest[l.class] {
			return false
		}
	}
	q.queue.Push(l, w.GetId(), false, 1, w)
	return true
}

// pop removes the next request. No other request of its queue is returned before done.
func (q *queue) pop() (serialKey, queuedRequest, bool) {
	l, w, ok := q.queue.Pop()
	if ok {
		q.queue.Park(l)
	}
	return l, w, ok
}

func (q *queue) done(l serialKey, took time.Duration) {
	q.queue.Charge(l, int(took.Microseconds()))
	q.queue.Resume(l)
}

// take queues a request that came over a link for a worker.
func (s *Server) take(ctx context.Context, r *hawserv1.RegistrationRequest, l *link) {
	s.mu.Lock()
	taken := s.requests.push(queuedRequest{RegistrationRequest: r, on: subscription{l, l.on}, since: time.Now()})
	s.mu.Unlock()
	if !taken {
		s.metrics.requests.WithLabelValues(typeOf(r), "dropped").Inc()
		s.cfg.Log.DebugContext(ctx, "request dropped: too many are queued", "cluster", r.GetAgentRequest().GetCluster())
		return
	}
	s.requestsReady.Ring()
}

// work carries out requests until ctx ends.
func (s *Server) work(ctx context.Context) error {
	var running errgroup.Group
	running.SetLimit(workers)
	for ctx.Err() == nil {
		s.mu.Lock()
		l, w, ok := s.requests.pop()
		s.mu.Unlock()
		if !ok {
			taskgroup.Wait(ctx, s.requestsReady)
			continue
		}
		running.Go(func() error {
			began := time.Now()
			s.answer(ctx, w)
			s.mu.Lock()
			s.requests.done(l, time.Since(began))
			s.mu.Unlock()
			s.requestsReady.Ring() // another request of the same key may be carried out
			return nil
		})
	}
	return running.Wait()
}

// answer carries out one request and publishes the answer.
func (s *Server) answer(ctx context.Context, w queuedRequest) {
	if !s.still(w.on) {
		return // no client waits for the answer
	}
	answer, err := s.answerTo(ctx, w)
	s.metrics.answered(typeOf(w.RegistrationRequest), err, time.Since(w.since))
	if err != nil {
		if answer.Error, err = json.Marshal(statusOf(err)); err != nil {
			s.cfg.Log.ErrorContext(ctx, "rejection cannot be encoded", "err", err)
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, sentWithin)
	defer cancel()
	e, err := codec.NewRegistrationAnswer(s.envelopeOf(), answer)
	if err == nil {
		err = s.publish(ctx, w.on, e)
	}
	if err != nil && ctx.Err() == nil && s.still(w.on) {
		s.cfg.Log.WarnContext(ctx, "the broker does not accept an answer", "request", w.GetId(), "err", err)
	}
}

// answerTo carries out one request. The error is the refusal, or why it failed.
func (s *Server) answerTo(ctx context.Context, w queuedRequest) (*hawserv1.RegistrationAnswer, error) {
	ctx, cancel := context.WithDeadline(ctx, w.since.Add(doneWithin))
	defer cancel()
	answer := &hawserv1.RegistrationAnswer{Id: w.GetId()}
	switch {
	case w.refused:
		return answer, apierrors.NewTooManyRequests("too many requests wait already", 5)
	case ctx.Err() != nil:
		return answer, errTooLate
	case w.GetReview() != nil:
		return answer, s.review(ctx, w.GetReview(), answer)
	}
	return answer, s.carryOut(ctx, w.GetAgentRequest(), answer)
}

// carryOut carries out the request of an agent.
func (s *Server) carryOut(ctx context.Context, m *hawserv1.AgentRequest, answer *hawserv1.RegistrationAnswer) error {
	a, err := readRequest(m)
	if err != nil {
		return err
	}
	seen := s.stateOf(a)
	c, err := decide(a, seen)
	if mayRequest(a, seen) == nil {
		// A client without the right must not learn which objects exist.
		if refused := s.access.review(ctx, a); refused != nil {
			return s.reply(ctx, a, refused)
		}
	}
	if errors.Is(err, errNothing) {
		return nil
	}
	if err != nil {
		return s.reply(ctx, a, err)
	}
	if err := s.spend(a, c, time.Now()); err != nil {
		return s.reply(ctx, a, err)
	}
	if a.what.DataType != codec.TokenRequests {
		_, err := s.cfg.Hub.do(ctx, c)
		s.spent(a, err)
		return s.reply(ctx, a, err)
	}
	o, err := s.rights.do(ctx, c)
	if err == nil {
		// The client recognizes the answer by the uid that it set in the request.
		o.SetUID(a.sent.Metadata.UID)
		answer.TokenRequest, err = o.MarshalJSON()
	}
	return s.reply(ctx, a, err)
}

// stateOf returns the known state of the hub for a request.
func (s *Server) stateOf(a agentRequest) hubState {
	cluster := s.cluster(a.cluster)
	s.mu.Lock()
	defer s.mu.Unlock()
	return hubState{cluster: cluster, earliest: s.issues.from[a.cluster], signers: s.cfg.Signers}
}

// reply logs the result of a request, and returns err. It does not log objects, because one may contain a
// token.
func (s *Server) reply(ctx context.Context, a agentRequest, err error) error {
	attrs := []any{"type", a.what.String(), "cluster", a.cluster, "name", a.sent.Metadata.Name, "user", a.user, "bootstrap", a.bootstrap}
	level := slog.LevelDebug
	switch {
	case err != nil:
		if apierrors.IsForbidden(err) && s.mayWarn() {
			level = slog.LevelWarn
		}
		s.cfg.Log.Log(ctx, level, "request of an agent rejected", append(attrs, "err", err)...)
	default:
		if a.what.Action == codec.CreateRequest && a.what.DataType != codec.KubeEvents {
			level = slog.LevelInfo
		}
		s.cfg.Log.Log(ctx, level, "request of an agent carried out", attrs...)
	}
	return err
}

// warnings limits the warnings about refusals, so that a client with many requests does not fill the log.
var warnings = fair.Rate{PerSecond: 1, Burst: 20}

func (s *Server) mayWarn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.warned.Spend(warnings, time.Now(), 1)
}

// review reviews a token at the hub.
func (s *Server) review(ctx context.Context, r *hawserv1.TokenReview, answer *hawserv1.RegistrationAnswer) error {
	requested := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: r.GetToken(), Audiences: r.GetAudiences()}}
	got, err := s.cfg.Hub.Tokens.Create(ctx, requested, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("review of a token: %w", err)
	}
	answer.Review = &hawserv1.TokenReviewResult{}
	if u := got.Status; u.Authenticated {
		answer.Review = &hawserv1.TokenReviewResult{Authenticated: true, User: u.User.Username, Groups: u.User.Groups, Audiences: u.Audiences}
	}
	return nil
}

// typeOf returns the name of a request in metrics.
func typeOf(r *hawserv1.RegistrationRequest) string {
	if r.GetAgentRequest() == nil {
		return "tokenreviews"
	}
	e, err := codec.Unmarshal(r.GetAgentRequest().GetEvent())
	if err != nil {
		return "unknown"
	}
	t, err := codec.ParseEventType(e.Type())
	if _, ok := codec.Registration(t.DataType); err != nil || !ok {
		return "unknown"
	}
	return t.DataType.Resource
}
