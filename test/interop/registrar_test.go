package interop

import (
	"context"
	"encoding/json"
	stderrors "errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// registrar is a hub with its registration source: objects in memory, and a session at each broker that serves as
// hub-source does. Without other instructions it decides as a kube-apiserver does.
type registrar struct {
	t        testing.TB
	issuer   *testkit.Issuer
	requests *journal[request]
	alive    *journal[*hawserv1.LeaseRenewals]

	mu       sync.Mutex
	sessions []*registrarSession
	objects  map[objectKey]*unstructured.Unstructured
	version  int
	tokens   map[string]string                 // user by token
	refuse   map[codec.DataType]*metav1.Status // answer to the next request, by data type
}

// registrarSession is the session of a registrar at one broker.
type registrarSession struct {
	*registrar
	*session.Session
}

// objectKey identifies an object of the hub.
type objectKey struct {
	dataType      codec.DataType
	cluster, name string
}

// request is a request of an agent to the hub.
type request struct {
	*hawserv1.AgentRequest
	event codec.Event
}

func (a request) String() string {
	return fmt.Sprintf("%s of %s %v", a.event.Type(), a.GetUser(), a.GetGroups())
}

// newRegistrar returns an empty hub. It serves once it is connected.
func newRegistrar(t testing.TB) *registrar {
	return &registrar{
		t: t, issuer: testkit.NewIssuer(t, "https://hub.example"), tokens: map[string]string{}, objects: map[objectKey]*unstructured.Unstructured{}, refuse: map[codec.DataType]*metav1.Status{},
		requests: newJournal("asks", request.String),
		alive:    newJournal("renewals", func(r *hawserv1.LeaseRenewals) string { return r.String() }),
	}
}

// serve connects the registrar to a broker as src1, until the test ends. It returns when the broker has all
// objects.
func (r *registrar) serve(b *ourBroker) {
	r.t.Helper()
	defer b.wire.await(r.t, b.wire.position(), "the objects of the hub", func(p passed) bool {
		return !p.sent && p.event.Type() == codec.TypeRegistrationObjects && p.err == nil
	})
	cert, key := certify(r.t, pki.Source, src1)
	creds, err := identity.Files{CA: certs.CACert(), Cert: cert, Key: key}.Client("", func(err error) { r.t.Errorf("certificates: %v", err) })
	if err != nil {
		r.t.Fatal(err)
	}
	d, err := transportgrpc.NewDialer(transportgrpc.Options{Target: b.addr, Credentials: creds, Log: logOf(r.t)})
	if err != nil {
		r.t.Fatal(err)
	}
	s := &registrarSession{registrar: r}
	s.Session = session.New(session.Config{
		Dialer: d, Handler: s, Filter: transport.Filter{Source: src1, DataType: codec.Registrations}, Log: logOf(r.t),
	})
	r.mu.Lock()
	r.sessions = append(r.sessions, s)
	r.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil && ctx.Err() == nil {
			r.t.Errorf("registrar: %v", err)
		}
	})
	r.t.Cleanup(func() { stop(); wg.Wait() })
}

// Hello implements [session.Handler].
func (r *registrar) Hello() transport.Hello { return transport.Hello{Protocol: transport.Protocol} }

// Subscribed implements [session.Handler]. It sends all objects of the hub.
func (r *registrar) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := &hawserv1.RegistrationObjects{SnapshotComplete: true}
	for k, o := range r.objects {
		all.Objects = append(all.Objects, r.message(k, o))
	}
	keys, err := codec.NewRegistrationKeys(envelope(), &hawserv1.RegistrationKeys{Issuer: r.issuer.Name, Jwks: r.issuer.Keys()})
	e, err2 := codec.NewRegistrationObjects(envelope(), all)
	return []codec.Event{keys, e}, stderrors.Join(err, err2)
}

// Disconnected implements [session.Handler].
func (r *registrar) Disconnected(error) {}

func envelope() codec.SyncParams {
	return codec.SyncParams{ID: uuid.NewString(), Time: time.Now(), Source: src1, Owner: src1}
}

// Handle implements [session.Handler].
func (s *registrarSession) Handle(ctx context.Context, e codec.Event) error {
	r := s.registrar
	if e.Type() != codec.TypeRegistrationRequest {
		return nil // a checkpoint: the registrar keeps no cursor
	}
	m, err := codec.ParseRegistrationRequest(e)
	if err != nil {
		return err
	}
	answer := &hawserv1.RegistrationAnswer{Id: m.GetId()}
	switch {
	case m.GetRenewals() != nil:
		r.alive.add(m.GetRenewals())
		return nil
	case m.GetReview() != nil:
		r.mu.Lock()
		user, known := r.tokens[m.GetReview().GetToken()]
		r.mu.Unlock()
		answer.Review = &hawserv1.TokenReviewResult{Authenticated: known, User: user, Audiences: m.GetReview().GetAudiences()}
	case m.GetAgentRequest() != nil:
		event, err := codec.Unmarshal(m.GetAgentRequest().GetEvent())
		if err != nil {
			return err
		}
		r.requests.add(request{m.GetAgentRequest(), event})
		if refused := r.answer(event, m.GetAgentRequest(), answer); refused != nil {
			if answer.Error, err = json.Marshal(refused); err != nil {
				return err
			}
		}
	}
	out, err := codec.NewRegistrationAnswer(envelope(), answer)
	if err != nil {
		return err
	}
	_, err = s.Publish(ctx, out)
	return err
}

// answer performs the request of an agent. It returns the error of the hub, nil for success.
func (r *registrar) answer(e codec.Event, a *hawserv1.AgentRequest, answer *hawserv1.RegistrationAnswer) *metav1.Status {
	t, err := codec.ParseEventType(e.Type())
	if err != nil {
		return refusalOf(errors.NewBadRequest(err.Error()))
	}
	r.mu.Lock()
	refused := r.refuse[t.DataType]
	delete(r.refuse, t.DataType)
	r.mu.Unlock()
	o := &unstructured.Unstructured{}
	switch err := json.Unmarshal(e.Data(), &o.Object); {
	case refused != nil:
		return refused
	case err != nil:
		return refusalOf(errors.NewBadRequest(err.Error()))
	case t.DataType == codec.KubeEvents:
		return nil
	case t.DataType == codec.TokenRequests:
		o.Object["status"] = map[string]any{"token": "token for " + o.GetName(), "expirationTimestamp": time.Now().UTC().Format(time.RFC3339)}
		answer.TokenRequest, err = json.Marshal(o.Object)
		if err != nil {
			return refusalOf(errors.NewInternalError(err))
		}
		return nil
	}
	return r.change(t, objectKey{t.DataType, a.GetCluster(), o.GetName()}, a.GetUser(), o)
}

// change creates an object, or updates the status of an object.
func (r *registrar) change(t codec.EventType, k objectKey, user string, o *unstructured.Unstructured) *metav1.Status {
	is := r.get(k)
	resource := schema.GroupResource{Group: t.DataType.Group, Resource: t.DataType.Resource}
	switch {
	case t.Action == codec.CreateRequest && is != nil:
		return refusalOf(errors.NewAlreadyExists(resource, k.name))
	case t.Action == codec.CreateRequest:
		o.SetAnnotations(map[string]string{"open-cluster-management.io/csr-user": user})
		r.put(k, o)
	case is == nil:
		return refusalOf(errors.NewNotFound(resource, k.name))
	case is.GetResourceVersion() != o.GetResourceVersion():
		return refusalOf(errors.NewConflict(resource, k.name, fmt.Errorf("it has version %s", is.GetResourceVersion())))
	default:
		is.Object["status"] = o.Object["status"]
		r.put(k, is)
	}
	return nil
}

func refusalOf(err errors.APIStatus) *metav1.Status { s := err.Status(); return &s }

// refuseNext makes the hub reject the next request of a type.
func (r *registrar) refuseNext(d codec.DataType, err errors.APIStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse[d] = refusalOf(err)
}

// The accounts of bootstrap tokens.
const (
	joiner      = "agent-registration-bootstrap"
	otherJoiner = "another-bootstrap"

	joinersAt = "open-cluster-management"
)

func userOf(account string) string { return "system:serviceaccount:" + joinersAt + ":" + account }

// token returns a new token of an account. The hub accepts it from then on.
func (r *registrar) token(account string) string {
	r.t.Helper()
	text := r.issuer.Token(joinersAt, account, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens[text] = userOf(account)
	return text
}

// sign approves a certificate request, and publishes its certificate.
func (r *registrar) sign(cluster, name string) {
	r.t.Helper()
	key := objectKey{codec.SigningRequests, cluster, name}
	signed := r.get(key)
	signed.Object["status"] = map[string]any{
		"certificate": []byte(certificateOf(name)), "conditions": []any{map[string]any{"type": "Approved", "status": "True"}},
	}
	r.put(key, fields(signed.Object))
}

func certificateOf(request string) string { return "the certificate for " + request }

// get returns a copy of an object, nil if there is none.
func (r *registrar) get(k objectKey) *unstructured.Unstructured {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.objects[k]; o != nil {
		return o.DeepCopy()
	}
	return nil
}

// put creates or changes an object. The object gets a new version, and a uid if it has none.
func (r *registrar) put(k objectKey, o *unstructured.Unstructured) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version++
	o.SetName(k.name)
	o.SetResourceVersion(strconv.Itoa(r.version))
	if o.GetUID() == "" {
		o.SetUID(types.UID(uuid.NewString()))
	}
	r.objects[k] = o
	r.notify(r.message(k, o))
}

// remove deletes an object.
func (r *registrar) remove(k objectKey) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := r.message(k, r.objects[k])
	gone.Json = nil
	delete(r.objects, k)
	r.notify(gone)
}

// notify publishes an object at each broker. The caller holds the lock, so that the order is kept. Without a connection
// it does nothing: the next connection begins with all objects.
func (r *registrar) notify(o *hawserv1.RegistrationObject) {
	e, err := codec.NewRegistrationObjects(envelope(), &hawserv1.RegistrationObjects{Objects: []*hawserv1.RegistrationObject{o}})
	if err != nil {
		r.t.Errorf("registrar: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, s := range r.sessions {
		if _, err := s.Publish(ctx, e); err != nil {
			r.t.Errorf("registrar: %v", err)
		}
	}
}

func (r *registrar) message(k objectKey, o *unstructured.Unstructured) *hawserv1.RegistrationObject {
	b, err := json.Marshal(o.Object)
	if err != nil {
		r.t.Errorf("registrar: %v", err)
	}
	m := &hawserv1.RegistrationObject{
		DataType: k.dataType.String(), Cluster: k.cluster, Name: k.name, Uid: string(o.GetUID()),
		ResourceVersion: o.GetResourceVersion(), Json: b,
	}
	switch k.dataType {
	case codec.SigningRequests:
		m.Requester = o.GetAnnotations()["open-cluster-management.io/csr-user"]
	case codec.ManagedClusters:
		accepted, _, err := unstructured.NestedBool(o.Object, "spec", "hubAcceptsClient")
		if err != nil {
			r.t.Errorf("registrar: %v", err)
		}
		m.ManagedClusterStatus = &hawserv1.ManagedClusterStatus{Accepted: accepted}
	}
	return m
}
