package registration

import (
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// csrAs is a CSR on the hub for cluster c1, made by a user in the name of another.
func csrAs(t *testing.T, username, requester, addOn string) *object {
	labels := obj{clusterLabel: "c1"}
	if addOn != "" {
		labels[addOnLabel] = addOn
	}
	return kept(t, codec.SigningRequests, obj{
		"metadata": obj{"name": "csr", "labels": labels, "annotations": obj{requesterAnnotation: requester}},
		"spec":     obj{"username": username},
	})
}

// Nobody's undecided CSRs take another's room: not those that somebody makes in the name of a cluster
// with a bootstrap token, nor those of add-ons that nobody decides about.
func TestCount_NobodyTakesAnothersRoom(t *testing.T) {
	const agent, boot = identityPrefix + "c1:agent", "system:serviceaccount:ocm:boot"
	for name, c := range map[string]struct {
		username, requester string
		addOns              []string // of each CSR
		want                room     // for a CSR of the agent, or of its add-on a
		wantBoot            int
	}{
		"by a bootstrap token":            {Registrar, boot, make([]string, 20), room{others: 20}, 20},
		"of the cluster itself":           {Registrar, agent, make([]string, 20), room{asker: 20}, 0},
		"of an agent without a name":      {Registrar, identityPrefix + "c1", make([]string, 20), room{asker: 20}, 0},
		"of an agent of another cluster":  {Registrar, identityPrefix + "c10:agent", make([]string, 20), room{others: 20}, 20},
		"of its add-ons":                  {Registrar, agent, []string{"a", "a", "b", "c"}, room{addOn: 2, addOns: 4}, 0},
		"of add-ons, by others":           {Registrar, boot, []string{"a", "a"}, room{others: 2}, 2},
		"past the broker":                 {agent, "", []string{"", "a"}, room{asker: 1, addOn: 1, addOns: 1}, 0},
		"past the broker, in its name":    {boot, agent, []string{"", "a"}, room{others: 2}, 2},
		"past the broker, by nobody's":    {"", agent, []string{""}, room{others: 1}, 1},
		"through the broker, by nobody's": {Registrar, "", []string{""}, room{others: 1}, 1},
	} {
		var s Server
		roomOf := func(user string) room {
			a := ask{cluster: "c1", user: user}
			a.sent.Metadata.Labels = map[string]string{addOnLabel: "a"}
			return s.undecided.roomOf(a)
		}
		for _, addOn := range c.addOns {
			s.count(codec.SigningRequests, csrAs(t, c.username, c.requester, addOn), 1)
		}
		if got := roomOf(agent); got != c.want || s.undecided.all != len(c.addOns) {
			t.Errorf("%s: %+v of %d, want %+v of %d", name, got, s.undecided.all, c.want, len(c.addOns))
		}
		if n := roomOf(boot).asker; n != c.wantBoot {
			t.Errorf("%s: %d are others', want %d", name, n, c.wantBoot)
		}
		for _, addOn := range c.addOns {
			s.count(codec.SigningRequests, csrAs(t, c.username, c.requester, addOn), -1)
		}
		if u := s.undecided; len(u.by)+len(u.addOns)+u.others+u.all != 0 {
			t.Errorf("%s: left: %+v", name, u)
		}
	}
}

// How many undecided CSRs there may be.
func TestRoom_Takes(t *testing.T) {
	const most = 50
	agent, boot := ask{cluster: "c1", user: identityPrefix + "c1:agent"}, ask{cluster: "c1", user: "boot", bootstrap: true}
	agent.sent.Metadata.Labels = map[string]string{addOnLabel: "a"}
	for name, c := range map[string]struct {
		ask   ask
		addOn bool
		room  room
		want  bool
	}{
		"a renewal":                                       {agent, false, room{asker: maxUndecided - 1}, true},
		"renewals nobody decides about":                   {agent, false, room{asker: maxUndecided}, false},
		"a renewal, beside all add-ons that can be":       {agent, false, room{addOn: maxUndecided, addOns: maxUndecidedAddOns, others: most}, true},
		"an add-on's, beside all others'":                 {agent, true, room{asker: maxUndecided, addOn: maxUndecided - 1, addOns: maxUndecidedAddOns - 1, others: most}, true},
		"too many of an add-on":                           {agent, true, room{addOn: maxUndecided, addOns: maxUndecided}, false},
		"too many add-ons, whose names a cluster invents": {agent, true, room{addOns: maxUndecidedAddOns}, false},
		"a first request":                                 {boot, false, room{asker: maxUndecided - 1, others: most - 1}, true},
		"too many in the name of one cluster":             {boot, false, room{asker: maxUndecided, others: maxUndecided}, false},
		"too many in the names of many":                   {boot, false, room{others: most}, false},
	} {
		err := c.room.takes(c.ask, c.addOn, most)
		if (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := fmt.Sprint(room{addOn: maxUndecided}.takes(agent, true, most)); got != "20 certificate requests of add-on a of cluster c1 are undecided: somebody approves, denies or deletes some first" {
		t.Error(got)
	}
}
