package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-io/hawser/internal/testkit/fakehub"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// joinOperations are the operations on clusters that join.
var joinOperations = []operation{
	{"wait", 60, onJoin(func(j *join, a, _ uint32) string {
		d := time.Duration(a%60_000) * time.Millisecond
		j.pass(d)
		j.oracle.look()
		return d.String()
	})},
	{"wait long", 14, onJoin(func(j *join, a, _ uint32) string {
		d := time.Duration(1+a%9) * time.Minute
		j.pass(d)
		j.oracle.look()
		return d.String()
	})},
	{"decide", 20, onJoin(func(j *join, _, _ uint32) string { j.decide(); return "all that waits" })},
	{"accept", 12, onJoin(func(j *join, a, _ uint32) string { return j.acceptance(a, true) })},
	{"withdraw", 12, onJoin(func(j *join, a, _ uint32) string { return j.acceptance(a, false) })},
	{"approve", 8, onJoiner(func(a *joinAgent, _ uint32) string {
		if a.imposter || a.j.approve(a) == 0 {
			return ""
		}
		return a.name
	})},
	{"deny a request", 5, onJoin(func(j *join, a, _ uint32) string {
		all := j.undecided()
		if len(all) == 0 {
			return ""
		}
		name := all[int(a)%len(all)]
		j.checkEnd(name, "Denied")
		return name
	})},
	{"remove a request", 3, onJoin(func(j *join, a, _ uint32) string {
		all := j.hub.api.All("certificatesigningrequests")
		if len(all) == 0 {
			return ""
		}
		name := fakehub.Name(all[int(a)%len(all)])
		j.hub.api.Delete("certificatesigningrequests", "", name)
		return name
	})},
	{"detach", 4, onJoin(func(j *join, a, _ uint32) string {
		c := joinNames[int(a)%len(joinNames)]
		if _, exists := j.hub.accepts(c); !exists {
			return ""
		}
		j.hub.api.Delete("managedclusters", "", c)
		return c
	})},

	{"imposter joins under its name", 6, onJoin(func(j *join, a, _ uint32) string {
		if len(j.agents) > len(joinNames)+1 {
			return ""
		}
		return j.enrol(joinNames[int(a)%len(joinNames)], true).name
	})},
	{"imposter leaves", 3, onJoin(func(j *join, _, _ uint32) string {
		for _, o := range j.agents {
			if o.imposter {
				j.leave(o)
				return o.name
			}
		}
		return ""
	})},
	{"replace cluster", 4, onJoin(replaceJoined)},
	{"restart agent", 8, onJoiner(func(a *joinAgent, b uint32) string {
		a.stop()
		a.j.pass(time.Duration(b%4) * time.Minute / 2)
		a.start()
		return a.name
	})},
	{"agent is away", 3, onJoiner(func(a *joinAgent, b uint32) string {
		a.stop()
		a.j.pass(certificateLifetime + time.Duration(b%60)*time.Second)
		a.start()
		return a.name
	})},
	{"lose secret", 2, onJoiner(func(a *joinAgent, _ uint32) string {
		a.stop()
		a.j.mu.Lock()
		a.secret = nil
		a.j.mu.Unlock()
		a.start()
		return a.name
	})},
	{"cluster answers or not", 5, onJoiner(func(a *joinAgent, _ uint32) string {
		a.j.mu.Lock()
		defer a.j.mu.Unlock()
		a.healthy = !a.healthy
		return fmt.Sprint(a.name, " ", a.healthy)
	})},
	{"revoke token", 3, onJoiner(func(a *joinAgent, _ uint32) string {
		a.j.mu.Lock()
		a.revoked = true
		a.j.mu.Unlock()
		a.j.net.cutOff(a.name)
		return a.name
	})},
	{"invite again", 4, onJoiner(func(a *joinAgent, _ uint32) string { a.invite(); return a.name })},

	{"restart hub source", 8, onJoin(func(j *join, _, b uint32) string {
		j.source.stop()
		d := time.Duration(b%4) * time.Duration(b%40) * time.Second
		j.pass(d)
		j.source.start()
		return "after " + d.String()
	})},
	{"hub source begins or ends", 4, onJoin(func(j *join, _, _ uint32) string {
		if j.source.program != nil {
			j.source.stop()
			return "ends"
		}
		j.source.start()
		return "begins"
	})},
	{"restart broker", 8, onJoin(func(j *join, _, b uint32) string {
		if j.broker.up() {
			j.broker.end(false)
		}
		d := time.Duration(b%4) * time.Duration(b%30) * time.Second
		j.pass(d)
		j.broker.start()
		return "after " + d.String()
	})},
	{"broker is away", 4, onJoin(func(j *join, _, b uint32) string {
		if j.broker.up() {
			j.broker.end(false)
		}
		j.pass(dispatched)
		unjudged, d := j.oracle.unjudged(), time.Duration(2+b%7)*time.Minute
		j.pass(d)
		// A cluster that was detached before may be gone.
		for name, still := range j.oracle.unjudged() {
			if unjudged[name] && !still {
				j.fail("I4", "cluster %s is unreachable, although hub-source could not receive its reports", name)
			}
		}
		j.broker.start()
		return "for " + d.String()
	})},
	{"lose broker's store", 2, onJoin(func(j *join, _, _ uint32) string {
		if j.broker.up() {
			j.broker.end(true)
		}
		j.broker.start()
		return "all"
	})},

	{"cut connections", 8, onJoin(func(j *join, a, _ uint32) string {
		user := j.clientName(a)
		j.net.cutOff(user)
		return user
	})},
	{"partition", 5, onJoin(func(j *join, a, _ uint32) string {
		client := j.clientName(a)
		j.mu.Lock()
		j.net.cut = map[string]bool{client: true}
		j.mu.Unlock()
		j.net.cutOff(client)
		return client
	})},
	{"rejoin", 6, onJoin(func(j *join, _, _ uint32) string {
		j.mu.Lock()
		defer j.mu.Unlock()
		if len(j.net.cut) == 0 {
			return ""
		}
		j.net.cut = nil
		return "all"
	})},
	{"slow network", 5, onJoin(func(j *join, a, _ uint32) string {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.net.slow = []time.Duration{netDelay, time.Second, 12 * time.Second}[a%3]
		return j.net.slow.String()
	})},
	{"lose answers", 8, onNet(func(n *joinNet) *int { return &n.losing })},
	{"duplicate", 8, onNet(func(n *joinNet) *int { return &n.doubling })},
	{"come late", 8, onNet(func(n *joinNet) *int { return &n.unroutable })},

	{"hub down or up", 6, onJoin(func(j *join, _, _ uint32) string {
		j.mu.Lock()
		j.hub.down = !j.hub.down
		down := j.hub.down
		j.mu.Unlock()
		if down {
			j.hub.api.EndWatches()
		}
		return fmt.Sprint("down ", down)
	})},
	{"slow hub", 5, onJoin(func(j *join, a, _ uint32) string {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.hub.slow = []time.Duration{hubDelay, 2 * time.Second, 15 * time.Second}[a%3]
		return j.hub.slow.String()
	})},
	{"lose hub's answers", 6, onJoin(func(j *join, a, _ uint32) string {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.hub.losing += 1 + int(a%4)
		return fmt.Sprint("the next ", j.hub.losing)
	})},
	{"copy hub", 6, onJoin(func(j *join, _, _ uint32) string { j.hub.old = j.hub.api.Backup(); return "all" })},
	{"restore hub", 4, onJoin(func(j *join, a, _ uint32) string {
		if j.hub.old == nil {
			return ""
		}
		var missing []string
		if a%2 == 0 {
			missing = []string{"certificatesigningrequests"}
		}
		j.hub.restore(missing)
		return fmt.Sprint("without ", missing)
	})},

	{"request a token", 12, onJoiner(requestToken)},
	{"try what it may not", 14, onJoiner(tryJoined)},
}

// joinThemes are operations that find bugs only together.
var joinThemes = [][]string{
	{"withdraw", "accept", "restart broker", "hub source begins or ends", "cut connections"},
	{"withdraw", "accept", "slow network", "slow hub", "try what it may not"},
	{"request a token", "duplicate", "lose answers", "come late", "cut connections", "accept"},
	{"restore hub", "copy hub", "agent is away", "restart hub source", "decide"},
	{"imposter joins under its name", "replace cluster", "decide", "detach", "invite again"},
	{"agent is away", "hub down or up", "lose hub's answers", "restart agent", "deny a request"},
}

func onJoin(do func(j *join, a, b uint32) string) func(w *world, a, b uint32) string {
	return func(w *world, a, b uint32) string { return do(w.join, a, b) }
}

func onJoiner(do func(a *joinAgent, b uint32) string) func(w *world, a, b uint32) string {
	return onJoin(func(j *join, a, b uint32) string {
		agent := j.agents[int(a)%len(j.agents)]
		if agent.program == nil {
			return ""
		}
		return do(agent, b)
	})
}

func onNet(count func(n *joinNet) *int) func(w *world, a, b uint32) string {
	return onJoin(func(j *join, a, _ uint32) string {
		j.mu.Lock()
		defer j.mu.Unlock()
		n := count(j.net)
		*n += 1 + int(a%4)
		return fmt.Sprint("the next ", *n)
	})
}

func (j *join) clientName(a uint32) string {
	if n := int(a) % (len(j.agents) + 1); n < len(j.agents) {
		return j.agents[n].name
	}
	return "hub-source"
}

func (j *join) acceptance(a uint32, accepted bool) string {
	c := joinNames[int(a)%len(joinNames)]
	if was, exists := j.hub.accepts(c); !exists || was == accepted {
		return ""
	}
	j.accept(c, accepted)
	return c
}

// undecided returns the names of the requests that are neither approved nor denied.
func (j *join) undecided() (names []string) {
	for _, csr := range j.hub.api.All("certificatesigningrequests") {
		if len(fakehub.Conditions(csr)) == 0 {
			names = append(names, fakehub.Name(csr))
		}
	}
	return names
}

// restore restores the hub from a copy. Decisions of the operator are those of the copy.
func (h *joinHub) restore(missing []string) {
	h.api.Restore(h.old, missing...)
	for _, c := range joinNames {
		accepted, _ := h.accepts(c)
		h.j.oracle.want(c, accepted)
	}
}

// replaceJoined replaces a cluster by an empty one of its name, and ends the previous one.
func replaceJoined(j *join, a, _ uint32) string {
	i := slices.IndexFunc(j.agents, func(o *joinAgent) bool { return !o.imposter && o.cluster == joinNames[int(a)%len(joinNames)] })
	if i < 0 {
		return ""
	}
	old := j.agents[i]
	j.leave(old)
	return fmt.Sprint(old.name, " by ", j.enrol(old.cluster, false).name)
}

// connect dials as an agent with a certificate does.
func (a *joinAgent) connect(ctx context.Context) (transport.Conn, error) {
	return (&joinDialer{a.j.net, a.name, func() (transport.Peer, time.Time, error) { return a.j.net.byCertificate(a) }}).Dial(ctx)
}

// tokenTime is the time that an add-on waits for its token.
const tokenTime = 20 * time.Second

// requestToken is an add-on that requests a token, while other subscribers of the cluster listen.
func requestToken(a *joinAgent, b uint32) string {
	j := a.j
	if !a.imposter && (a.reg.Progress().WaitReason != nil || b%4 > 0) {
		j.decide()
		j.pass(time.Minute)
	}
	j.hub.api.Put("namespaces", fakehub.Object{"metadata": fakehub.Object{"name": a.cluster}})
	j.hub.api.Put("serviceaccounts", fakehub.Object{"metadata": fakehub.Object{
		"namespace": a.cluster, "name": "addon", "labels": fakehub.Object{"addon.open-cluster-management.io/token-infrastructure": "true"},
	}})
	ctx, stop := context.WithTimeout(context.Background(), tokenTime)
	listen := func() transport.Conn {
		c, err := a.connect(ctx)
		if err != nil {
			return nil
		}
		j.net.late.Go(func() { // ends with ctx
			_ = c.Subscribe(ctx, transport.Subscription{Filter: transport.Filter{Cluster: a.cluster, DataType: codec.TokenRequests}}, func(transport.Accepted) {},
				func(context.Context, codec.Event) error { return nil })
			_ = c.Close()
		})
		return c
	}
	first := listen()
	if first == nil {
		stop()
		return ""
	}
	if b%2 == 0 {
		listen()
	}
	j.net.late.Go(func() { // ends with ctx
		defer stop()
		<-time.After(time.Second)
		_, err := first.Publish(ctx, a.event(codec.TokenRequests, codec.Spec, codec.CreateRequest, a.cluster, fakehub.Object{
			"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
			"metadata": fakehub.Object{"name": "addon", "namespace": a.cluster, "uid": fmt.Sprint("ask-", b)}, "spec": fakehub.Object{"expirationSeconds": 3600},
		}), "")
		j.note("  %s requested a token: %v", a.name, err)
		if b%3 == 0 {
			listen() // a later subscriber
		}
		<-ctx.Done()
	})
	return a.name
}

func (a *joinAgent) event(d codec.DataType, s codec.Subresource, act codec.Action, cluster string, o fakehub.Object) codec.Event {
	data, err := json.Marshal(o)
	must(err)
	m := o["metadata"].(fakehub.Object)
	extensions := map[string]any{}
	if uid, _ := m["uid"].(string); uid != "" {
		extensions[codec.ExtResourceID] = uid
	}
	e, err := codec.Builder{
		ID: a.j.w.newID(), Time: time.Now(), Source: cluster, Cluster: cluster, Type: codec.EventType{DataType: d, Subresource: s, Action: act}.String(),
		ContentType: codec.ContentTypeJSON, Data: data, Extensions: extensions,
	}.Event()
	must(err)
	return e
}

// tryJoined lets a cluster try forbidden requests. The oracle, or the answer, reveals a violation.
func tryJoined(a *joinAgent, b uint32) string {
	other := joinNames[(slices.Index(joinNames, a.cluster)+1)%len(joinNames)]
	o := a.j.hub.api.Get("managedclusters", "", a.cluster)
	tries := []struct {
		what  string
		may   bool // the broker accepts it, and it must have no effect
		event func() codec.Event
	}{
		{"accept itself", true, func() codec.Event { return a.raised(o) }},
		{"report that it is accepted", true, func() codec.Event { return a.conditioned(o) }},
		{"renew another's lease", false, func() codec.Event {
			return a.event(codec.Leases, codec.Spec, codec.UpdateRequest, a.cluster, fakehub.Object{
				"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": fakehub.Object{"name": "managed-cluster-lease", "namespace": other}, "spec": fakehub.Object{},
			})
		}},
		{"report another's status", false, func() codec.Event {
			return a.event(codec.ManagedClusters, codec.Status, codec.UpdateRequest, other, fakehub.Object{
				"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": fakehub.Object{"name": other}, "status": fakehub.Object{},
			})
		}},
		{"request another's token", false, func() codec.Event {
			return a.event(codec.TokenRequests, codec.Spec, codec.CreateRequest, a.cluster, fakehub.Object{
				"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": fakehub.Object{"name": "addon", "namespace": other, "uid": "mine"}, "spec": fakehub.Object{},
			})
		}},
	}
	try := tries[int(b)%len(tries)]
	if o == nil {
		return ""
	}
	ctx, stop := context.WithTimeout(context.Background(), tokenTime)
	defer stop()
	c, err := a.connect(ctx)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }() // nothing depends on it
	if _, err := c.Publish(ctx, try.event(), ""); err == nil && !try.may {
		a.j.fail("I8", "agent %s could %s", a.name, try.what)
	}
	return a.name + ": " + try.what
}

// raised is a status of a cluster that also tries to set its acceptance.
func (a *joinAgent) raised(o fakehub.Object) codec.Event {
	m, _ := o["metadata"].(fakehub.Object)
	status, _ := o["status"].(fakehub.Object)
	return a.event(codec.ManagedClusters, codec.Status, codec.UpdateRequest, a.cluster, fakehub.Object{
		"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": m,
		"spec": fakehub.Object{"hubAcceptsClient": true}, "status": status,
	})
}

// conditioned is a status with the condition that the hub has accepted the cluster.
func (a *joinAgent) conditioned(o fakehub.Object) codec.Event {
	m, _ := o["metadata"].(fakehub.Object)
	now := time.Now().UTC().Format(time.RFC3339)
	return a.event(codec.ManagedClusters, codec.Status, codec.UpdateRequest, a.cluster, fakehub.Object{
		"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": m,
		"status": fakehub.Object{"conditions": []any{fakehub.Object{
			"type": "HubAcceptedManagedCluster", "status": "True", "reason": "HubClusterAdminAccepted", "message": "", "lastTransitionTime": now,
		}}},
	})
}
