package clustercontroller

import (
	"cmp"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/sessionfence"
)

const (
	// lateWrite is how many periods after a renewal the Lease may be written.
	lateWrite = 2
	// resourceFinalizer is a second finalizer that the controllers of Open Cluster Management set on a cluster.
	// After these controllers are removed, it has to be removed too.
	resourceFinalizer = "cluster.open-cluster-management.io/resource-cleanup"
)

// clusterState is what the hub shows of one cluster at one moment.
type clusterState struct {
	name string
	// cluster is nil without a ManagedCluster, renewal is nil without a Lease.
	cluster *clusterv1.ManagedCluster
	renewal *renewal
	// requests are the CSRs whose label names the cluster.
	requests []*certificatesv1.CertificateSigningRequest
	// namespace is read only if the cluster may be accepted automatically. nil: it does not exist.
	namespace *corev1.Namespace
	// remaining is read only for a cluster under deletion.
	remaining remaining
	outlook   outlook
	now       time.Time
}

// renewal is what this process has observed of the Lease of a cluster.
type renewal struct {
	// written is the time in the Lease. seen is when this process saw the last change of the Lease.
	written, seen time.Time
	// watched: the Lease changed while this process watched.
	watched bool
	// lastSeen is when the agent last reported whether its cluster is available.
	lastSeen time.Time
}

// alive returns the time of the last sign of the agent. Registration writes a renewal up to lateWrite periods
// late, with its time. An older renewal, or one ahead, has the time of a wrong clock: then the time of the change
// counts.
func (r *renewal) alive(period time.Duration) time.Time {
	sign := r.seen
	if age := r.seen.Sub(r.written); r.watched && 0 < age && age <= lateWrite*period {
		sign = r.written
	}
	return sessionfence.Latest(sign, r.lastSeen)
}

// effects are the actions that follow from a state, in the order of execution.
type effects struct {
	namespace bool    // create the namespace
	change    *change // of metadata and spec
	lease     bool    // create the Lease
	// addons is the condition Available to set on the add-ons, nil for no change.
	addons *metav1.Condition
	remove []object // of the cluster
	// conditions of the status to set.
	conditions []metav1.Condition
	decisions  []csrDecision
	// release deletes the Lease, then removes the finalizers.
	release bool
	// after is when to reconcile again without a change; 0: never.
	after time.Duration
}

// change is a change of metadata and spec of a ManagedCluster.
type change struct {
	// finalizers and taints are the complete new lists; nil: no change.
	finalizers []string
	taints     []clusterv1.Taint
	// claim is the key for which the cluster is accepted automatically, or [NoKey]; "": no change. member: an agent
	// of the cluster has a certificate.
	claim          string
	accept, member bool
}

// decide returns the effects for a state. It does not change its arguments.
func decide(r rules, s clusterState) effects {
	var e effects
	switch {
	case s.cluster == nil:
	case s.cluster.DeletionTimestamp != nil:
		e = decideEnd(s)
	default:
		e = decideMember(s)
	}
	r.decideRequests(s, &e)
	return e
}

func decideMember(s clusterState) (e effects) {
	c := s.cluster
	conditions := slices.Clone(c.Status.Conditions)
	set := func(want metav1.Condition) {
		have := meta.FindStatusCondition(conditions, want.Type)
		if have == nil || have.Status != want.Status || have.Reason != want.Reason {
			meta.SetStatusCondition(&conditions, want)
			e.conditions = append(e.conditions, want)
		}
	}
	if c.Spec.HubAcceptsClient {
		e.lease = s.renewal == nil
		// The namespace and the Lease exist before the condition reports acceptance. An existing Lease shows that all
		// of that was created.
		e.namespace = e.lease
		set(accepted)
	} else if c.Annotations[KeyAnnotation] == NoKey || meta.IsStatusConditionTrue(conditions, clusterv1.ManagedClusterConditionHubAccepted) {
		set(denied)
	}
	if s.renewal != nil && meta.FindStatusCondition(conditions, clusterv1.ManagedClusterConditionHubAccepted) != nil {
		// The add-ons come first: once the condition is set, they are not checked again.
		if e.addons, e.after = s.check(meta.FindStatusCondition(conditions, clusterv1.ManagedClusterConditionAvailable)); e.addons != nil {
			set(*e.addons)
		}
		if s.renewal.watched {
			set(inTime)
		}
	}
	e.change = changeOf(c, conditions, s.now)
	return e
}

// check returns the condition Available for the state of the agent, nil for no change. after is when to check
// again.
func (s clusterState) check(has *metav1.Condition) (reported *metav1.Condition, after time.Duration) {
	if left := sessionfence.Latest(s.renewal.alive(period(s.cluster)), s.outlook.calm).Add(ocm.MissedPeriods * period(s.cluster)).Sub(s.now); left > 0 {
		return nil, left
	}
	reported = &disconnectedCondition
	if s.outlook.outage != nil {
		reported, after = s.outlook.outage, period(s.cluster) // until the outage ends
	}
	if has != nil && has.Status == metav1.ConditionUnknown && (after > 0 || !isOutage(has)) {
		reported = nil
	}
	return reported, after
}

// period returns how often the agent of a cluster renews its Lease.
func period(c *clusterv1.ManagedCluster) time.Duration {
	return ocm.PeriodOf(int64(c.Spec.LeaseDurationSeconds))
}

var (
	accepted = metav1.Condition{
		Type: clusterv1.ManagedClusterConditionHubAccepted, Status: metav1.ConditionTrue,
		Reason: "HubClusterAdminAccepted", Message: "The hub accepts this cluster: spec.hubAcceptsClient is true",
	}
	denied = metav1.Condition{
		Type: clusterv1.ManagedClusterConditionHubAccepted, Status: metav1.ConditionFalse,
		Reason: "HubClusterAdminDenied", Message: "The hub has withdrawn its acceptance: spec.hubAcceptsClient is false",
	}
	disconnectedCondition = metav1.Condition{
		Type: clusterv1.ManagedClusterConditionAvailable, Status: metav1.ConditionUnknown,
		Reason: "ManagedClusterLeaseUpdateStopped", Message: "The agent of the cluster has not renewed its Lease for five periods",
	}
	// inTime is true whatever the clock of the cluster is, because hub-source writes the renewals with its own
	// clock. The controllers of Open Cluster Management may have set it to False before they were removed. An agent
	// that sees False reports nothing any more.
	inTime = metav1.Condition{
		Type: clusterv1.ManagedClusterConditionClockSynced, Status: metav1.ConditionTrue,
		Reason: "ManagedClusterClockSynced", Message: "Renewals of the Lease use the clock of hub-source",
	}
)

// changeOf returns the change of metadata and spec that follows from the conditions, nil for none.
func changeOf(c *clusterv1.ManagedCluster, conditions []metav1.Condition, now time.Time) *change {
	var n change
	if c.Spec.HubAcceptsClient && !slices.Contains(c.Finalizers, clusterv1.ManagedClusterFinalizer) {
		n.finalizers = append(slices.Clone(c.Finalizers), clusterv1.ManagedClusterFinalizer)
	}
	available := meta.FindStatusCondition(conditions, clusterv1.ManagedClusterConditionAvailable)
	key := taintFor(available)
	ours := func(t clusterv1.Taint) bool {
		return t.Key == clusterv1.ManagedClusterTaintUnreachable || t.Key == clusterv1.ManagedClusterTaintUnavailable
	}
	right := func(t clusterv1.Taint) bool { return t.Key == key && t.Effect == clusterv1.TaintEffectNoSelect }
	wrong := slices.ContainsFunc(c.Spec.Taints, func(t clusterv1.Taint) bool { return ours(t) && !right(t) })
	if missing := key != "" && !slices.ContainsFunc(c.Spec.Taints, right); !isOutage(available) && (wrong || missing) {
		n.taints = slices.DeleteFunc(slices.Clone(c.Spec.Taints), func(t clusterv1.Taint) bool { return ours(t) && !right(t) })
		if missing {
			n.taints = append(n.taints, clusterv1.Taint{Key: key, Effect: clusterv1.TaintEffectNoSelect, TimeAdded: metav1.NewTime(now)})
		}
		if n.taints == nil {
			n.taints = []clusterv1.Taint{}
		}
	}
	if n.finalizers == nil && n.taints == nil {
		return nil
	}
	return &n
}

// taintFor returns the key of the taint that belongs to Available, "" for none.
func taintFor(available *metav1.Condition) string {
	switch {
	case available == nil || available.Status == metav1.ConditionUnknown:
		return clusterv1.ManagedClusterTaintUnreachable
	case available.Status == metav1.ConditionFalse:
		return clusterv1.ManagedClusterTaintUnavailable
	}
	return ""
}

// ordered returns CSRs in the order of creation.
func ordered(requests []*certificatesv1.CertificateSigningRequest) []*certificatesv1.CertificateSigningRequest {
	return slices.SortedFunc(slices.Values(requests), func(a, b *certificatesv1.CertificateSigningRequest) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}
