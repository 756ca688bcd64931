package registration

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// csrAs is a CSR on the hub for cluster c1, created by one user on behalf of another.
func csrAs(t *testing.T, username, requester, addOn string) *object {
	labels := obj{ocm.ClusterLabel: "c1"}
	if addOn != "" {
		labels[ocm.AddOnLabel] = addOn
	}
	return kept(t, codec.SigningRequests, obj{
		"metadata": obj{"name": "csr", "labels": labels, "annotations": obj{ocm.RequesterAnnotation: requester}},
		"spec":     obj{"username": username},
	})
}

func undecidedOf(n int) counts { return counts{undecided: n, csrs: n} }

// Undecided CSRs never use up the capacity of another requester. That includes CSRs made with a bootstrap token
// in the name of a cluster, and CSRs of add-ons without a decision.
func TestCount_KeepsCapacityPerRequester(t *testing.T) {
	const agent, boot = ocm.UserPrefix + "c1:agent", "system:serviceaccount:ocm:boot"
	for name, c := range map[string]struct {
		username, requester string
		addOns              []string    // the add-on of each CSR
		want                csrCapacity // the capacity for a CSR of the agent, or of its add-on a
		wantBoot            int
	}{
		"by a bootstrap token":                    {ocm.Registrar, boot, make([]string, 20), csrCapacity{all: undecidedOf(20)}, 20},
		"of the cluster itself":                   {ocm.Registrar, agent, make([]string, 20), csrCapacity{perRequester: undecidedOf(20)}, 0},
		"of an agent without a name":              {ocm.Registrar, ocm.UserPrefix + "c1", make([]string, 20), csrCapacity{perRequester: undecidedOf(20)}, 0},
		"of an agent of another cluster":          {ocm.Registrar, ocm.UserPrefix + "c10:agent", make([]string, 20), csrCapacity{all: undecidedOf(20)}, 20},
		"of its add-ons":                          {ocm.Registrar, agent, []string{"a", "a", "b", "c"}, csrCapacity{addOn: undecidedOf(2), addOns: undecidedOf(4)}, 0},
		"of add-ons, by others":                   {ocm.Registrar, boot, []string{"a", "a"}, csrCapacity{all: undecidedOf(2)}, 2},
		"past the broker":                         {agent, "", []string{"", "a"}, csrCapacity{perRequester: undecidedOf(1), addOn: undecidedOf(1), addOns: undecidedOf(1)}, 0},
		"past the broker, in its name":            {boot, agent, []string{"", "a"}, csrCapacity{all: undecidedOf(2)}, 2},
		"past the broker, without a requester":    {"", agent, []string{""}, csrCapacity{all: undecidedOf(1)}, 1},
		"through the broker, without a requester": {ocm.Registrar, "", []string{""}, csrCapacity{all: undecidedOf(1)}, 1},
	} {
		var s Server
		capacityOf := func(user string) csrCapacity {
			a := agentRequest{cluster: "c1", user: user}
			a.sent.Metadata.Labels = map[string]string{ocm.AddOnLabel: "a"}
			r := s.undecided.capacityOf(a)
			for _, c := range []*counts{&r.perRequester, &r.addOn, &r.addOns, &r.account, &r.all} {
				c.bytes = 0
			}
			return r
		}
		for _, addOn := range c.addOns {
			s.undecided.add(codec.SigningRequests, csrAs(t, c.username, c.requester, addOn), 1)
		}
		if got := capacityOf(agent); got != c.want || s.undecided.all != len(c.addOns) {
			t.Errorf("%s: %+v of %d, want %+v of %d", name, got, s.undecided.all, c.want, len(c.addOns))
		}
		if n := capacityOf(boot).perRequester.undecided; n != c.wantBoot {
			t.Errorf("%s: %d are others', want %d", name, n, c.wantBoot)
		}
		for _, addOn := range c.addOns {
			s.undecided.add(codec.SigningRequests, csrAs(t, c.username, c.requester, addOn), -1)
		}
		if u := s.undecided; len(u.by)+u.all != 0 {
			t.Errorf("%s: left: %+v", name, u)
		}
	}
}

// The limits of undecided CSRs.
func TestCSRCapacity_Takes(t *testing.T) {
	const most = 50
	agent, boot := agentRequest{cluster: "c1", user: ocm.UserPrefix + "c1:agent"}, agentRequest{cluster: "c1", user: "boot", bootstrap: true}
	agent.sent.Metadata.Labels = map[string]string{ocm.AddOnLabel: "a"}
	for name, c := range map[string]struct {
		request  agentRequest
		addOn    bool
		capacity csrCapacity
		want     bool
	}{
		"a renewal":          {agent, false, csrCapacity{perRequester: undecidedOf(maxUndecided - 1)}, true},
		"undecided renewals": {agent, false, csrCapacity{perRequester: undecidedOf(maxUndecided)}, false},
		"a renewal, beside all add-ons that can be":       {agent, false, csrCapacity{addOn: undecidedOf(maxUndecided), addOns: undecidedOf(maxUndecidedAddOns), all: undecidedOf(most)}, true},
		"an add-on's, beside all others'":                 {agent, true, csrCapacity{perRequester: undecidedOf(maxUndecided), addOn: undecidedOf(maxUndecided - 1), addOns: undecidedOf(maxUndecidedAddOns - 1), all: undecidedOf(most)}, true},
		"too many of an add-on":                           {agent, true, csrCapacity{addOn: undecidedOf(maxUndecided), addOns: undecidedOf(maxUndecided)}, false},
		"too many add-ons, whose names a cluster invents": {agent, true, csrCapacity{addOns: undecidedOf(maxUndecidedAddOns)}, false},
		"a first request":                                 {boot, false, csrCapacity{perRequester: undecidedOf(maxUndecided - 1), account: undecidedOf(most - 1), all: undecidedOf(inAll*most - 1)}, true},
		"too many in the name of one cluster":             {boot, false, csrCapacity{perRequester: undecidedOf(maxUndecided), all: undecidedOf(maxUndecided)}, false},
		"too many in the names of many":                   {boot, false, csrCapacity{account: undecidedOf(most)}, false},
		"too many of all accounts":                        {boot, false, csrCapacity{all: undecidedOf(inAll * most)}, false},
		"a renewal after many that were decided":          {agent, false, csrCapacity{perRequester: counts{csrs: decidedToo*maxUndecided - 1}}, true},
		"a renewal after all that there may be":           {agent, false, csrCapacity{perRequester: counts{csrs: decidedToo * maxUndecided}}, false},
		"an add-on's after all that there may be":         {agent, true, csrCapacity{addOn: counts{csrs: decidedToo * maxUndecided}}, false},
		"add-ons after all that there may be":             {agent, true, csrCapacity{addOns: counts{csrs: decidedToo * maxUndecidedAddOns}}, false},
		"a first request beside what is large":            {boot, false, csrCapacity{account: counts{bytes: most*bytesEach - 1000}}, true},
		"a first request that is too large":               {boot, false, csrCapacity{account: counts{bytes: most*bytesEach - 999}}, false},
		"a first request, and all accounts have too much": {boot, false, csrCapacity{all: counts{bytes: inAll*most*bytesEach - 999}}, false},
		"a renewal, and all accounts have too much":       {agent, false, csrCapacity{all: counts{bytes: inAll * most * bytesEach}}, true},
	} {
		err := c.capacity.takes(c.request, c.addOn, 1000, most)
		if (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := fmt.Sprint(csrCapacity{addOn: undecidedOf(maxUndecided)}.takes(agent, true, 0, most)); got != "20 certificate requests of add-on a of cluster c1 are undecided, at most 20 may: approve, deny or delete some on the hub first" {
		t.Error(got)
	}
}

// TestServer_SpendUsesTheFreeCapacity: there are limits of the account, of the cluster, and of all. An
// add-on's label on a request for the certificate of the cluster gives no extra capacity.
func TestServer_SpendUsesTheFreeCapacity(t *testing.T) {
	request := requestPEM(t, nil)
	join, csr := byBootstrap(parsed(t, createdCluster, cluster1, obj{"metadata": obj{"name": cluster1}})), csrOf(request, nil)
	labelled := csrOf(request, func(m, _ obj) { m["labels"] = obj{ocm.AddOnLabel: "a"} })
	crowded, addOns := requester{cluster: cluster1, own: true}, requester{cluster: cluster1, own: true, addOns: true}
	for name, c := range map[string]struct {
		ask  *hawserv1.AgentRequest
		on   hubState
		by   map[requester]counts
		want string
	}{
		"a first cluster":                         {join, hubState{}, map[requester]counts{{}: {clusters: 19}}, ""},
		"bootstrap fills the hub with clusters":   {join, hubState{}, map[requester]counts{{account: bootstrapUser}: {clusters: 10}}, "TooManyRequests"},
		"bootstrap fills the hub with CSRs":       {byBootstrap(parsed(t, createdCSR, cluster1, csr)), hubState{}, map[requester]counts{{account: bootstrapUser}: undecidedOf(10)}, "TooManyRequests"},
		"… in the names of accepted clusters":     {byBootstrap(parsed(t, createdCSR, cluster1, csr)), known(t), map[requester]counts{{}: undecidedOf(20)}, "TooManyRequests"},
		"a renewal beside all others' CSRs":       {parsed(t, createdCSR, cluster1, csr), known(t), map[requester]counts{{}: undecidedOf(20), addOns: undecidedOf(maxUndecidedAddOns)}, ""},
		"a cluster floods CSRs":                   {parsed(t, createdCSR, cluster1, csr), known(t), map[requester]counts{crowded: undecidedOf(maxUndecided)}, "TooManyRequests"},
		"… and names an add-on as if it were one": {parsed(t, createdCSR, cluster1, labelled), known(t), map[requester]counts{crowded: undecidedOf(maxUndecided)}, "TooManyRequests"},
	} {
		s := Server{cfg: Config{MaxPending: 10}, undecided: undecided{by: c.by, made: map[made]*object{}}}
		s.watches = []*watched{{kind: kind{dataType: codec.ManagedClusters}}}
		a, err := readRequest(c.ask)
		var does call
		if err == nil {
			does, err = decide(a, c.on)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := string(apierrors.ReasonForError(s.spend(a, does, time.Now()))); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
