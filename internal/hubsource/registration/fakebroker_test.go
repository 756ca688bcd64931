package registration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// fakeBroker is a broker as registration sees it: it caches objects and sends requests.
type fakeBroker struct {
	t testing.TB

	mu            sync.Mutex
	subscriptions int
	out           chan *hawserv1.RegistrationRequest // of the present subscription
	objects       map[string]*hawserv1.RegistrationObject
	listed        bool
	versions      map[string][]string // resource versions of each object, in the order of arrival
	answers       map[string]chan *hawserv1.RegistrationAnswer
	keys          int
	issuer        string
	earliest      map[string]time.Time
	refuses       string // name of an object that the broker does not accept
	// live are the ids of the live replicas, that of this one first; none for a single broker.
	live []string
}

func newFakeBroker(t testing.TB) *fakeBroker {
	return &fakeBroker{t: t, versions: map[string][]string{}, answers: map[string]chan *hawserv1.RegistrationAnswer{}}
}

// report sets the live replicas, and reports them to the source.
func (b *fakeBroker) report(live ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.live = live
	if b.out != nil {
		b.out <- replicasOf(live)
	}
}

func replicasOf(live []string) *hawserv1.RegistrationRequest {
	return &hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Replicas{Replicas: &hawserv1.Replicas{Ids: live}}}
}

// Publish implements transport.Server.
func (b *fakeBroker) Publish(_ context.Context, _ transport.Peer, event []byte, on string) (transport.Receipt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, err := codec.Unmarshal(event)
	if err != nil || on != fmt.Sprint(b.subscriptions) {
		return transport.Receipt{}, &transport.Error{Code: transport.CodeInvalid, Message: fmt.Sprint("subscription ", on, ", ", err)}
	}
	switch e.Type() {
	case codec.TypeRegistrationObjects:
		return transport.Receipt{}, b.cache(e)
	case codec.TypeRegistrationAnswer:
		m, err := codec.ParseRegistrationAnswer(e)
		if err != nil {
			return transport.Receipt{}, err
		}
		if c := b.answers[m.GetId()]; c != nil {
			c <- m
		}
	case codec.TypeRegistrationKeys:
		m, err := codec.ParseRegistrationKeys(e)
		if err != nil {
			return transport.Receipt{}, err
		}
		b.keys++
		b.issuer = m.GetIssuer()
	default:
		b.t.Errorf("published %s", e.Type())
	}
	return transport.Receipt{}, nil
}

func (b *fakeBroker) cache(e codec.Event) error {
	m, err := codec.ParseRegistrationObjects(e)
	if err != nil {
		return &transport.Error{Code: transport.CodeInvalid, Next: transport.NextStop, Message: err.Error()}
	}
	for cluster, at := range m.GetEarliestIssues() {
		b.earliest[cluster] = at.AsTime()
	}
	for _, o := range m.GetObjects() {
		if b.refuses != "" && o.GetName() == b.refuses {
			return &transport.Error{Code: transport.CodeInvalid, Next: transport.NextStop, Message: "not this one"}
		}
	}
	for _, o := range m.GetObjects() {
		d, _ := codec.ParseDataType(o.GetDataType())
		k := d.Version + " " + d.Resource + " " + o.GetCluster() + "/" + o.GetName()
		b.versions[k] = append(b.versions[k], o.GetResourceVersion())
		if b.objects[k] = o; len(o.GetJson()) == 0 {
			delete(b.objects, k)
			b.versions[k] = append(b.versions[k], "gone "+o.GetUid())
		}
	}
	b.listed = b.listed || m.GetSnapshotComplete()
	return nil
}

// Subscribe implements transport.Server.
func (b *fakeBroker) Subscribe(ctx context.Context, _ transport.Peer, s transport.RawSubscription, out transport.Stream) error {
	if s.Source != "hub1" || s.DataType != codec.Registrations.String() {
		return &transport.Error{Code: transport.CodeInvalid, Message: "not served"}
	}
	b.mu.Lock()
	if len(b.live) > 0 && slices.Contains(strings.Split(s.Hello.SubscribedAt, ","), b.live[0]) {
		b.mu.Unlock()
		return &transport.Error{Code: transport.CodeUnavailable, Next: transport.NextUseAnotherServer, Message: "subscribed already"}
	}
	b.subscriptions++
	requests := make(chan *hawserv1.RegistrationRequest, 1000)
	if len(b.live) > 0 {
		requests <- replicasOf(b.live)
	}
	b.out, b.listed, b.objects, b.earliest = requests, false, map[string]*hawserv1.RegistrationObject{}, map[string]time.Time{}
	id := fmt.Sprint(b.subscriptions)
	b.mu.Unlock()
	if err := out.Accept(transport.Accepted{SubscriptionID: id, Protocol: transport.Protocol, Resync: codec.ResyncCursor}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return transport.GaveUp(ctx, "over")
		case r := <-requests:
			e, err := codec.NewRegistrationRequest(codec.SyncParams{ID: "r", Time: time.Now(), Source: "broker", Owner: "hub1"}, r)
			if err == nil {
				var raw []byte
				if raw, err = codec.Marshal(e); err == nil {
					err = out.Send(raw)
				}
			}
			if err != nil {
				return err
			}
		}
	}
}

// names returns the names of the objects at the broker.
func (b *fakeBroker) names() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.objects))
}

func (b *fakeBroker) object(k string) *hawserv1.RegistrationObject {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.objects[k]
}

func (b *fakeBroker) send(r *hawserv1.RegistrationRequest) <-chan *hawserv1.RegistrationAnswer {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := make(chan *hawserv1.RegistrationAnswer, 2)
	if r.Id == "" && r.GetRenewals() == nil {
		r.Id = fmt.Sprint("request-", len(b.answers))
		b.answers[r.Id] = c
	}
	b.out <- r
	return c
}

// now returns the present state of the broker.
func (b *fakeBroker) now() (listed bool, subscriptions, keys int, issuer string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listed, b.subscriptions, b.keys, b.issuer
}

// came returns the versions of an object in the order of arrival.
func (b *fakeBroker) came(k string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.versions[k])
}
