package clustercontroller

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	addonv1alpha1 "open-cluster-management.io/api/addon/v1alpha1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
)

// TestOutage_Decide: silence is ignored without the broker, and if many agents are silent together. For five
// periods after an outage it is measured from the end of the outage.
func TestOutage_Decide(t *testing.T) {
	began := start.Add(-time.Hour)
	up, down := ConnectionState{Connected: true, Since: began}, ConnectionState{Since: began}
	for _, c := range []struct {
		name            string
		link            ConnectionState
		late, connected int
		want            string
	}{
		{"at rest", up, 0, 10, ""},
		{"the only agent", up, 1, 1, ""},
		{"both agents", up, 2, 2, ""},
		{"two of three", up, 2, 3, ""},
		{"all three", up, 3, 3, "ManyAgentsSilent"},
		{"55 of 100", up, 55, 100, ""},
		{"56 of 100", up, 56, 100, "ManyAgentsSilent"},
		{"without the broker", down, 0, 10, "BrokerUnreachable"},
		{"without the broker, all", down, 10, 10, "BrokerUnreachable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := outage{late: c.late, connected: c.connected}
			l := o.judge(start, c.link)
			if got := reasonOf(l.outage); got != c.want || !l.calm.Equal(began) {
				t.Errorf("judged %q, calm since %s, want %q since %s", got, l.calm, c.want, began)
			}
			o.late = 0
			l = o.judge(start.Add(time.Minute), up)
			calm := began
			if c.want != "" {
				calm = start.Add(time.Minute)
			}
			if l.outage != nil || !l.calm.Equal(calm) {
				t.Errorf("afterwards judged %q, calm since %s, want %s", reasonOf(l.outage), l.calm, calm)
			}
		})
	}
}

func reasonOf(c *metav1.Condition) string {
	if c == nil {
		return ""
	}
	return c.Reason
}

// outageFleet is a hub with the available clusters c0, c1 and so on. Their Leases were just renewed. link is
// the connection state of hub-source.
func outageFleet(t *testing.T, n int) (w *world, link *atomic.Pointer[ConnectionState]) {
	link = &atomic.Pointer[ConnectionState]{}
	link.Store(&ConnectionState{Connected: true, Since: time.Now()})
	w = begin(t, Config{Mode: On, Broker: func() ConnectionState { return *link.Load() }})
	for i := range n {
		name := fmt.Sprint("c", i)
		if _, err := w.clusters.ClusterV1().ManagedClusters().Create(t.Context(), clusterNamed(name, accepts), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		w.edit(name, sets(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue))
	}
	w.renewAll(n)
	return w, link
}

// renewAll renews the first n Leases. No time passes.
func (w *world) renewAll(n int) {
	w.Helper()
	for i := range n {
		leases := w.kube.CoordinationV1().Leases(fmt.Sprint("c", i))
		l, err := leases.Get(w.Context(), ocm.LeaseName, metav1.GetOptions{})
		if err != nil {
			w.Fatal(err)
		}
		l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		if _, err := leases.Update(w.Context(), l, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
	w.pass(0)
}

// is compares the condition Available and the taint of the clusters from..to with want.
func (w *world) is(from, to int, want string) {
	w.Helper()
	for i := from; i < to; i++ {
		c := w.cluster(fmt.Sprint("c", i))
		available := meta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionAvailable)
		got := available.Reason
		for _, t := range c.Spec.Taints {
			got += " " + t.Key
		}
		if got != want {
			w.Errorf("cluster %s is %q, want %q", c.Name, got, want)
		}
	}
}

const markedDisconnected = "ManagedClusterLeaseUpdateStopped " + clusterv1.ManagedClusterTaintUnreachable

// TestController_BrokerIsDown: a broker outage of any length taints no cluster. After it each agent has five
// periods; an agent that is silent for longer is disconnected.
func TestController_BrokerIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, link := outageFleet(t, 3)
		w.add(&addonv1alpha1.ManagedClusterAddOn{ObjectMeta: metav1.ObjectMeta{Namespace: "c0", Name: "search"}})
		link.Store(&ConnectionState{Since: time.Now()})
		w.pass(4 * time.Minute)
		w.is(0, 3, "Test")
		w.pass(20 * time.Minute)
		w.is(0, 3, "BrokerUnreachable")
		if a, err := w.addons.AddonV1alpha1().ManagedClusterAddOns("c0").Get(t.Context(), "search", metav1.GetOptions{}); err != nil || meta.FindStatusCondition(a.Status.Conditions, "Available").Reason != "BrokerUnreachable" {
			t.Errorf("the add-on of a cluster without a broker: %v, %v", a, err)
		}
		link.Store(&ConnectionState{Connected: true, Since: time.Now()})
		w.pass(4 * time.Minute)
		w.is(0, 3, "BrokerUnreachable")
		w.renewAll(2)
		w.edit("c0", sets(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue))
		w.edit("c1", sets(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue))
		w.pass(2 * time.Minute)
		w.is(0, 2, "Test")
		w.is(2, 3, markedDisconnected)
	})
}

// TestController_ManyAgentsAreDisconnected: if more than 55 % are silent, the agents are not the cause. An
// agent that stays silent when most are back is disconnected five periods later.
func TestController_ManyAgentsAreDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := outageFleet(t, 10)
		for range 10 { // four agents still renew their Leases
			w.pass(time.Minute)
			w.renewAll(4)
		}
		w.is(0, 4, "Test")
		w.is(4, 10, "ManyAgentsSilent")
		for i := 4; i < 8; i++ {
			w.edit(fmt.Sprint("c", i), sets(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue))
		}
		w.renewAll(8)
		for range 4 {
			w.pass(time.Minute)
			w.renewAll(8)
		}
		w.is(8, 10, "ManyAgentsSilent")
		for range 3 {
			w.pass(time.Minute)
			w.renewAll(8)
		}
		w.is(0, 8, "Test")
		w.is(8, 10, markedDisconnected)
		for range 7 { // three of these eight agents stay silent, which is less than 55 %
			w.pass(time.Minute)
			w.renewAll(5)
		}
		w.is(0, 5, "Test")
		w.is(5, 8, markedDisconnected)
	})
}
