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

	"github.com/hawser-io/hawser/internal/ocm"
)

// Facts are the facts that a managed cluster reports.
type Facts struct {
	// Healthy: the cluster answers.
	Healthy bool
	// Version is "" if it could not be read.
	Version string
	// Capacity is the sum over all nodes, Allocatable the sum over schedulable nodes. Both are nil if the nodes
	// could not be read.
	Capacity, Allocatable clusterv1.ResourceList
	// Claims is nil if not all claims could be read.
	Claims []clusterv1.ManagedClusterClaim
}

// over returns f, with missing facts taken from known.
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
	// reportEvery is the minimum interval of status reports with changes of quantities only. A report that the hub
	// does not show is repeated after it.
	reportEvery = time.Minute
	// disconnectedAfter is the time without an answer after which a cluster counts as unavailable.
	disconnectedAfter = 20 * time.Second
)

// Reasons of the conditions that the agent sets.
const (
	reasonJoined      = "ManagedClusterJoined"
	reasonAvailable   = "ManagedClusterAvailable"
	reasonUnavailable = "ManagedClusterKubeAPIServerUnavailable"
)

// reported is the state of the last report.
type reported struct {
	retry
	status *clusterv1.ManagedClusterStatus // nil: the hub has shown another object since
	at     time.Time
}

// noteAnswer records that the hub shows a changed ManagedCluster.
func (r *reported) noteAnswer() { r.status = nil }

func (r *reported) answered(now time.Time, random float64, err error) {
	if err != nil {
		r.failed(now, random, firstRetry, reportEvery, err)
		r.status = nil
		return
	}
	r.retry = retry{}
}

// report returns a status report if the status on the hub is outdated; nil otherwise.
func (c *Core) report() *Publish {
	if !c.isAccepted() || !c.known || !c.connected(Clusters) || c.flight[ReportStatus] || c.cluster.DeletionTimestamp != nil {
		return nil
	}
	if apimeta.IsStatusConditionFalse(c.cluster.Status.Conditions, clusterv1.ManagedClusterConditionClockSynced) {
		return nil // the hub ignores its times and sets Available itself
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
		return nil // the hub accepted it and will show it
	}
	urgent := !equality.Semantic.DeepEqual(o.Status.Conditions, c.cluster.Status.Conditions) || o.Status.Version != c.cluster.Status.Version
	if !urgent && !c.due(again) {
		return nil
	}
	c.reported.status, c.reported.at = o.Status.DeepCopy(), c.now
	return &Publish{Request: ReportStatus, Object: o}
}

// describe writes the facts of the cluster into the status of the hub.
func (c *Core) describe(s *clusterv1.ManagedClusterStatus) {
	set := func(condition string, status metav1.ConditionStatus, reason, message string) {
		at := metav1.NewTime(c.now.Truncate(time.Second))
		apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: condition, Status: status, Reason: reason, Message: message, LastTransitionTime: at})
	}
	set(clusterv1.ManagedClusterConditionJoined, metav1.ConditionTrue, reasonJoined, "The cluster has joined the hub")
	switch {
	case c.facts.Healthy:
		set(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue, reasonAvailable, "The cluster answers")
	case c.due(c.noAnswerSince.Add(disconnectedAfter)):
		set(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionFalse, reasonUnavailable, "The API server of the cluster does not answer its agent")
		return
	default:
		return
	}
	// Facts that were never read keep the values on the hub.
	s.Version.Kubernetes = cmp.Or(c.facts.Version, s.Version.Kubernetes)
	capacity := maps.Clone(s.Capacity) // other programs may have added to it
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

// renewal returns the renewal of the Lease, if it is due.
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
	return &Publish{Request: RenewLease, Object: o}
}

func (c *Core) period() time.Duration {
	return ocm.PeriodOf(int64(c.cluster.Spec.LeaseDurationSeconds))
}
