package registration

import (
	"cmp"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

// Facts is what a managed cluster says of itself.
type Facts struct {
	// Healthy: it answers.
	Healthy bool
	// Version is "" where it could not be read.
	Version string
	// Capacity is that of all nodes, Allocatable that of those on which pods may start; nil where
	// the nodes could not be read.
	Capacity, Allocatable clusterv1.ResourceList
	// Claims are nil where not all of them could be read.
	Claims []clusterv1.ManagedClusterClaim
}

// over is f, and of what f does not say what was known.
func (f Facts) over(known Facts) Facts {
	f.Version = cmp.Or(f.Version, known.Version)
	if f.Capacity == nil {
		f.Capacity, f.Allocatable = known.Capacity, known.Allocatable
	}
	if f.Claims == nil {
		f.Claims = known.Claims
	}
	return f
}

const (
	// LeaseName is the name of the Lease by which a cluster shows that it lives.
	LeaseName = "managed-cluster-lease"
	// defaultPeriod is how often, where the hub does not say.
	defaultPeriod = time.Minute
	// reportEvery is how often a status is reported in which only quantities have changed,
	// and after which one is reported again that the hub does not show.
	reportEvery = time.Minute
	// disconnectedAfter is how long a cluster may be silent before it counts as not available.
	disconnectedAfter = 20 * time.Second
)

// The reasons of the conditions that the agent sets.
const (
	reasonJoined      = "ManagedClusterJoined"
	reasonAvailable   = "ManagedClusterAvailable"
	reasonUnavailable = "ManagedClusterKubeAPIServerUnavailable"
)

// reported is what became of the last report.
type reported struct {
	retry
	status *clusterv1.ManagedClusterStatus // nil: the hub has shown another object since
	at     time.Time
}

// noteAnswer says that the hub shows another ManagedCluster.
func (r *reported) noteAnswer() { r.status = nil }

func (r *reported) answered(now time.Time, random float64, err error) {
	if err != nil {
		r.failed(now, random, firstRetry, reportEvery, err)
		r.status = nil
		return
	}
	r.retry = retry{}
}

// report tells the hub how the cluster is, if it does not know.
func (c *Core) report() *Publish {
	if !c.isAccepted() || !c.known || !c.connected(Clusters) || c.flight[ReportStatus] || c.cluster.DeletionTimestamp != nil {
		return nil
	}
	if apimeta.IsStatusConditionFalse(c.cluster.Status.Conditions, clusterv1.ManagedClusterConditionClockSynced) {
		return nil // the hub does not trust the times in it, and sets Available itself
	}
	if !c.due(c.reported.until) {
		return nil
	}
	o := c.cluster.DeepCopy()
	o.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "ManagedCluster"}
	o.ManagedFields = nil
	c.describe(&o.Status)
	if equality.Semantic.DeepEqual(o.Status, c.cluster.Status) {
		return nil
	}
	again := c.reported.at.Add(reportEvery)
	if s := c.reported.status; s != nil && equality.Semantic.DeepEqual(*s, o.Status) && !c.due(again) {
		return nil // the hub took it, and will show it
	}
	urgent := !equality.Semantic.DeepEqual(o.Status.Conditions, c.cluster.Status.Conditions) || o.Status.Version != c.cluster.Status.Version
	if !urgent && !c.due(again) {
		return nil
	}
	c.reported.status, c.reported.at = o.Status.DeepCopy(), c.now
	return &Publish{What: ReportStatus, Object: o}
}

// describe writes what the cluster says over what the hub has.
func (c *Core) describe(s *clusterv1.ManagedClusterStatus) {
	at := metav1.NewTime(c.now.Truncate(time.Second))
	apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: clusterv1.ManagedClusterConditionJoined, Status: metav1.ConditionTrue, Reason: reasonJoined,
		Message: "The cluster has joined the hub", LastTransitionTime: at,
	})
	switch {
	case c.facts.Healthy:
		apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: clusterv1.ManagedClusterConditionAvailable, Status: metav1.ConditionTrue, Reason: reasonAvailable,
			Message: "The cluster answers", LastTransitionTime: at,
		})
	case c.due(c.noAnswerSince.Add(disconnectedAfter)):
		apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: clusterv1.ManagedClusterConditionAvailable, Status: metav1.ConditionFalse, Reason: reasonUnavailable,
			Message: "The API server of the cluster does not answer its agent", LastTransitionTime: at,
		})
		return
	default:
		return
	}
	// Of what was never read the hub keeps what it has.
	s.Version.Kubernetes = cmp.Or(c.facts.Version, s.Version.Kubernetes)
	capacity := maps.Clone(s.Capacity) // others may have added to it
	if capacity == nil {
		capacity = clusterv1.ResourceList{}
	}
	maps.Copy(capacity, c.facts.Capacity)
	if len(capacity) > 0 {
		s.Capacity = capacity
	}
	if c.facts.Allocatable != nil {
		s.Allocatable = c.facts.Allocatable
	}
	if c.facts.Claims != nil {
		s.ClusterClaims = c.facts.Claims
	}
}

// renewal shows that the cluster lives.
func (c *Core) renewal() *Publish {
	if !c.isAccepted() || c.lease == nil || !c.connected(Leases) || c.cluster.DeletionTimestamp != nil {
		return nil
	}
	if c.flight[RenewLease] || !c.due(c.leaseDue) {
		return nil
	}
	c.leaseDue = c.now.Add(c.period() + time.Duration(c.c.Random()*float64(c.period())/4))
	c.due(c.leaseDue)
	o := c.lease.DeepCopy()
	o.TypeMeta = metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"}
	o.ManagedFields = nil
	o.Spec.RenewTime = &metav1.MicroTime{Time: c.now}
	return &Publish{What: RenewLease, Object: o}
}

func (c *Core) period() time.Duration {
	if s := c.cluster.Spec.LeaseDurationSeconds; s > 0 {
		return time.Duration(s) * time.Second
	}
	return defaultPeriod
}
