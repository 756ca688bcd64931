package clustercontroller

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/sessionfence"
)

const (
	// latePeriods is for how many periods an agent is silent that falls silent together with those
	// whose time is over: all that one cause has cut off renewed last within one period of each other,
	// and a renewal is written a period late at most.
	latePeriods = 3
	// maxDisconnectedShare is how many of 100 connected clusters may fall silent together, and minDisconnected how
	// many in any case, as for the nodes of a Kubernetes zone.
	maxDisconnectedShare, minDisconnected = 55, 2
	// lookEvery bounds how often all clusters are counted.
	lookEvery = 200 * time.Millisecond
)

// ConnectionState is the session with the broker over which the renewals of agents come.
type ConnectionState struct {
	Connected bool
	// Since is when the present session began.
	Since time.Time
}

// outlook is what silence says of an agent at one moment.
type outlook struct {
	// outage is what Available says where silence says nothing of an agent, nil where it does.
	outage *metav1.Condition
	// calm is since when it does: agents have five periods from then on.
	calm time.Time
}

// outage finds out whether what lies between agents and hub is down, rather than the agents.
type outage struct {
	lasts        bool
	calm, looked time.Time // when the last one ended, and when clusters were counted
	// late of so many connected clusters were silent then.
	late, connected int
}

// judge says what silence says now.
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

// isConnected reports whether a cluster is a member that is not known to be silent by itself.
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
		Message: "Hub-source has no session with the broker, so no renewal of the Lease can come: check the broker. No taint is added",
	}
	manyDisconnected = metav1.Condition{
		Type: clusterv1.ManagedClusterConditionAvailable, Status: metav1.ConditionUnknown, Reason: "ManyAgentsSilent",
		Message: "More than 55 % of the connected clusters fell silent together: check the broker and the way to it. No taint is added",
	}
)

// outlook is that of all clusters. The caller holds the lock.
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
			if o.connected++; now.Sub(sessionfence.Latest(r.alive(), sessionfence.Latest(o.calm, link.Since))) >= latePeriods*period(c) {
				o.late++
			}
		}
	}
	return o.judge(now, link)
}
