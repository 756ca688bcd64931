package broker_test

import (
	"context"
	"errors"
	"fmt"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// joining returns the configuration of a broker for which source "hub" serves registration.
func joining() broker.Config { return broker.Config{Registration: "hub"} }

// hub is the source that serves registration.
type hub struct {
	*tap
	from transport.Peer
}

// hub subscribes the source.
func (w *world) hub() *hub {
	w.Helper()
	p := w.source("hub")
	return &hub{from: p, tap: w.open(p, func(raw *transport.RawSubscription, _ *tap) {
		raw.DataType, raw.Hello.Protocol = codec.Registrations.String(), transport.Protocol
	})}
}

// requests waits until all goroutines are idle, and returns the requests that arrived since the last call.
func (h *hub) requests() (all []*hawserv1.RegistrationRequest) {
	h.w.Helper()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.syncs {
		r, err := codec.ParseRegistrationRequest(e)
		if err != nil {
			h.w.Fatal(err)
		}
		all = append(all, r)
	}
	h.syncs = nil
	return all
}

// one returns the only request that arrived since the last call.
func (h *hub) one() *hawserv1.RegistrationRequest {
	h.w.Helper()
	all := h.requests()
	if len(all) != 1 {
		h.w.Fatalf("%d requests, want one", len(all))
	}
	return all[0]
}

var syncParams = codec.SyncParams{ID: "e", Time: time.Unix(1_700_000_000, 0), Source: "hub", Owner: "hub"}

func (h *hub) publish(e codec.Event, err error) (string, error) {
	h.w.Helper()
	if err != nil {
		h.w.Fatal(err)
	}
	b, err := codec.Marshal(e)
	if err != nil {
		h.w.Fatal(err)
	}
	r, err := h.w.Publish(context.Background(), h.from, b, h.accepted.SubscriptionID)
	return r.Outcome, err
}

// must fails the test if a publish of the hub was not accepted.
func (h *hub) must(outcome string, err error) {
	h.w.Helper()
	if err != nil || outcome != codec.OutcomeAccepted {
		h.w.Fatalf("%q %v", outcome, err)
	}
}

// snapshot reports objects of the hub.
func (h *hub) snapshot(listed bool, objects ...*hawserv1.RegistrationObject) {
	h.w.Helper()
	h.must(h.publish(codec.NewRegistrationObjects(syncParams, &hawserv1.RegistrationObjects{Objects: objects, SnapshotComplete: listed})))
}

// answers answers a request.
func (h *hub) answers(a *hawserv1.RegistrationAnswer) (string, error) {
	h.w.Helper()
	return h.publish(codec.NewRegistrationAnswer(syncParams, a))
}

// clusterOf returns a ManagedCluster.
func clusterOf(name string, version int, accepted bool) *hawserv1.RegistrationObject {
	o := objectOf(codec.ManagedClusters, name, name, version)
	o.ManagedClusterStatus = &hawserv1.ManagedClusterStatus{Accepted: accepted, Joined: accepted, Available: "Unknown"}
	return o
}

// objectOf returns an object whose uid is uid-<name>. Version 0 means that it was deleted.
func objectOf(d codec.DataType, cluster, name string, version int) *hawserv1.RegistrationObject {
	o := &hawserv1.RegistrationObject{DataType: d.String(), Cluster: cluster, Name: name}
	if version > 0 {
		o.Uid, o.ResourceVersion = "uid-"+name, fmt.Sprint(version)
		o.Json = fmt.Appendf(nil, `{"metadata":{"name":%q,"resourceVersion":"%d"}}`, name, version)
	}
	return o
}

// csrOf returns a CertificateSigningRequest of a user.
func csrOf(cluster, name, requester string, version int) *hawserv1.RegistrationObject {
	o := objectOf(codec.SigningRequests, cluster, name, version)
	o.Requester = requester
	return o
}

// bootstrap is a peer with a bootstrap token.
func (w *world) bootstrap(user string) transport.Peer {
	p := w.peer("bootstrap", user)
	p.User = user
	return p
}

// watch subscribes to the hub's objects of one data type for a cluster.
func (w *world) watch(p transport.Peer, d codec.DataType, cluster string) *tap {
	w.Helper()
	return w.open(p, func(raw *transport.RawSubscription, _ *tap) {
		raw.DataType, raw.Source, raw.Cluster = d.String(), "", cluster
	})
}

// wish returns the event of an agent's request.
func wish(d codec.DataType, s codec.Subresource, a codec.Action, cluster, id, data string) []byte {
	return build(cluster, cluster, codec.EventType{DataType: d, Subresource: s, Action: a}, map[string]any{codec.ExtResourceID: id}, nil, data)
}

func joinOf(cluster string) []byte {
	return wish(codec.ManagedClusters, codec.Spec, codec.CreateRequest, cluster, "none", fmt.Sprintf(`{"metadata":{"name":%q}}`, cluster))
}

func leaseOf(cluster, uid string) []byte {
	return wish(codec.Leases, codec.Spec, codec.UpdateRequest, cluster, uid,
		fmt.Sprintf(`{"metadata":{"name":"managed-cluster-lease","namespace":%q}}`, cluster))
}

// pendingRequest is a publish that waits for its answer.
type pendingRequest struct {
	w      *world
	cancel context.CancelFunc
	done   chan error
}

// requests publishes without waiting for the answer.
func (w *world) requests(p transport.Peer, event []byte) *pendingRequest {
	ctx, cancel := context.WithCancel(context.Background())
	w.Cleanup(cancel)
	c := &pendingRequest{w: w, cancel: cancel, done: make(chan error, 1)}
	go func() { // ends with its answer, after ten seconds, or with the test
		_, err := w.Publish(ctx, p, event, "")
		c.done <- err
	}()
	synctest.Wait()
	return c
}

// waits fails the test if the call has ended.
func (c *pendingRequest) waits() {
	c.w.Helper()
	synctest.Wait()
	select {
	case err := <-c.done:
		c.w.Fatalf("the call has ended: %v", err)
	default:
	}
}

// ended returns the error of the call. The test fails if the call still runs.
func (c *pendingRequest) ended() error {
	c.w.Helper()
	synctest.Wait()
	select {
	case err := <-c.done:
		return err
	default:
		c.w.Fatal("the call has not ended")
		return nil
	}
}

// failed returns the error of the hub in the form of a Kubernetes API error.
func (c *pendingRequest) failed(code transport.Code) codec.APIError {
	c.w.Helper()
	return c.w.apiError(c.ended(), code)
}

func (w *world) apiError(err error, code transport.Code) codec.APIError {
	w.Helper()
	e := w.refused(err, code)
	status, ok := codec.ParseAPIError(e.Message)
	if !ok {
		w.Fatalf("not in the form of Open Cluster Management: %s", e.Message)
	}
	return status
}

// bookmarking counts writes of bookmarks. The first ones fail, as many as the test has set.
type bookmarking struct {
	store.Store
	writes *int
	fail   int
}

func (s *bookmarking) Commit(ctx context.Context, ops []store.Op) ([]store.Outcome, error) {
	if len(ops) > 0 && ops[0].Kind == store.SetBookmark {
		if s.fail > 0 {
			s.fail--
			return nil, errors.New("disk is tired")
		}
		*s.writes++
	}
	return s.Store.Commit(ctx, ops)
}
