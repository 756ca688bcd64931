package clustercontroller

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/sessionfence"
)

const (
	// latePeriods is the number of periods without a renewal after which an agent counts for an outage. The last
	// renewals of agents before an outage spread over 1.25 periods. So all of them have this age when the first agent
	// has missed five periods. The renewal on the hub of an agent that renews is at most 2.5 periods old.
	latePeriods = 3
	// maxDisconnectedShare is how many of 100 connected clusters may fall silent together. minDisconnected is how
	// many may in any case, as for the nodes of a Kubernetes zone.
	maxDisconnectedShare, minDisconnected = 55, 2
	// lookEvery is the shortest pause between two counts of all clusters. An agent is silent for two periods between
	// latePeriods and its own check, so an older count has the same result.
	lookEvery = time.Second
)

// ConnectionState is the state of the broker session over which the renewals of agents come.
type ConnectionState struct {
	Connected bool
	// Since is when the present session began.
	Since time.Time
}

// outlook is how the silence of agents is interpreted at one moment.
type outlook struct {
	// outage is the condition Available during an outage, nil without one.
	outage *metav1.Condition
	// calm is the end of the last outage: agents have five periods from then on.
	calm time.Time
}

// outage detects that agents are silent because the connection between agents and hub is down.
type outage struct {
	lasts        bool
	calm, looked time.Time // end of the last outage, and time of the last count
	// late is how many of the connected clusters were silent at the last count.
	late, connected int
}

// judge returns the present outlook.
func (o *outage) judge(now time.Time, link ConnectionState) (l outlook) {
	switch {
	case !link.Connected:
		l.outage = &unreachable
	case o.late > minDisconnected && 100*o.late > maxDisconnectedShare*o.connected:
		l.outage = &manyDisconnected
	case o.lasts:
		o.calm = now
	}
	o.lasts, l.calm = l.outage != nil, sessionfence.Latest(o.calm, link.Since)
	return l
}

// isConnected reports whether a cluster is accepted, and its agent is not silent outside of an outage.
func isConnected(c *clusterv1.ManagedCluster) bool {
	has := meta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionAvailable)
	return c.Spec.HubAcceptsClient && (known(c) || isOutage(has))
}

// isOutage reports whether Available is unknown because of an outage.
func isOutage(c *metav1.Condition) bool {
	return c != nil && c.Status == metav1.ConditionUnknown && (c.Reason == unreachable.Reason || c.Reason == manyDisconnected.Reason)
}

var (
	unreachable = metav1.Condition{
		Type: clusterv1.ManagedClusterConditionAvailable, Status: metav1.ConditionUnknown, Reason: "BrokerUnreachable",
		Message: "Hub-source has no session with the broker, so it receives no renewal of the Lease: check the broker. No taint is added",
	}
	manyDisconnected = metav1.Condition{
		Type: clusterv1.ManagedClusterConditionAvailable, Status: metav1.ConditionUnknown, Reason: "ManyAgentsSilent",
		Message: "More than 55 % of the connected clusters stopped renewing their Leases together: check the broker and the network to it. No taint is added",
	}
)

// outlook counts the silent clusters and returns the outlook for all clusters. The caller holds the lock.
func (m *members) outlook(now time.Time) outlook {
	link, o := ConnectionState{Connected: true}, &m.outage
	if m.cfg.Broker != nil {
		link = m.cfg.Broker()
	}
	if now.Sub(o.looked) >= lookEvery {
		o.looked, o.late, o.connected = now, 0, 0
		for _, item := range m.clusters.GetStore().List() {
			c, _ := item.(*clusterv1.ManagedCluster)
			r, has := m.renewals[c.Name]
			if !has || !isConnected(c) {
				continue
			}
			if o.connected++; now.Sub(sessionfence.Latest(r.alive(period(c)), sessionfence.Latest(o.calm, link.Since))) >= latePeriods*period(c) {
				o.late++
			}
		}
	}
	return o.judge(now, link)
}
