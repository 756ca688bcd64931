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

	"github.com/hawser-io/hawser/internal/sessionfence"
)

const (
	// LeaseName is the name of the Lease of a cluster, in the cluster's namespace.
	LeaseName = "managed-cluster-lease"
	// defaultPeriod is how often an agent renews it if the cluster does not say.
	defaultPeriod = 60 * time.Second
	// missedPeriods is for how many periods an agent may be silent.
	missedPeriods = 5
	// resourceFinalizer is a second finalizer that the controllers of Open Cluster Management
	// put on a cluster. Whoever leaves them behind wants it to go too.
	resourceFinalizer = "cluster.open-cluster-management.io/resource-cleanup"
)

// clusterState is what the hub shows of one cluster at one moment.
type clusterState struct {
	name string
	// cluster is nil where there is none, and so is lease.
	cluster *clusterv1.ManagedCluster
	renewal *renewal
	// requests are the CSRs whose label names the cluster.
	requests []*certificatesv1.CertificateSigningRequest
	// namespace is read only where the cluster may be accepted by itself; nil: there is none.
	namespace *corev1.Namespace
	// remaining is read only of a cluster that is being deleted.
	remaining remaining
	outlook   outlook
	now       time.Time
}

// renewal is what this process saw of the Lease of a cluster.
type renewal struct {
	// written is the time in the Lease, seen when this process saw that it had changed.
	written, seen time.Time
	// watched: it changed while this process watched.
	watched bool
	// lastSeen is when the agent was heard otherwise: it said whether its cluster is available.
	lastSeen time.Time
}

// alive is when the agent was heard last.
func (r *renewal) alive() time.Time { return sessionfence.Latest(r.seen, r.lastSeen) }

// effects are what follows from a situation, in the order in which it is done.
type effects struct {
	namespace bool    // make the namespace
	change    *change // of metadata and spec
	lease     bool    // make the Lease
	// addons is what Available says on the add-ons, nil: as it is.
	addons *metav1.Condition
	remove []object // of the cluster
	// conditions of the status to set.
	conditions []metav1.Condition
	decisions  []csrDecision
	// release takes the Lease away, then the finalizers off.
	release bool
	// after is when to look next without a change; 0: never.
	after time.Duration
}

// change is a change of metadata and spec of a ManagedCluster.
type change struct {
	// finalizers and taints are what shall be there; nil: as they are.
	finalizers []string
	taints     []clusterv1.Taint
	// claim is the key for which the cluster is accepted by itself, or [NoKey]; "": as it is. member: an
	// agent of it has a certificate.
	claim          string
	accept, member bool
}

// decide says what follows. It changes nothing that it is given.
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
		// Before the condition says that the cluster is accepted, what it needs is there. Later
		// its Lease says that all of that was made.
		e.namespace = e.lease
		set(accepted)
	} else if c.Annotations[KeyAnnotation] == NoKey || meta.IsStatusConditionTrue(conditions, clusterv1.ManagedClusterConditionHubAccepted) {
		set(denied)
	}
	if s.renewal != nil && meta.FindStatusCondition(conditions, clusterv1.ManagedClusterConditionHubAccepted) != nil {
		// Once the condition is there, nobody looks at the add-ons any more: they are first.
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

// check returns what Available is to say of the agent, nil for what it has, and when to look again.
func (s clusterState) check(has *metav1.Condition) (reported *metav1.Condition, after time.Duration) {
	if left := sessionfence.Latest(s.renewal.alive(), s.outlook.calm).Add(missedPeriods * period(s.cluster)).Sub(s.now); left > 0 {
		return nil, left
	}
	reported = &disconnectedCondition
	if s.outlook.outage != nil {
		reported, after = s.outlook.outage, period(s.cluster) // until it is over
	}
	if has != nil && has.Status == metav1.ConditionUnknown && (after > 0 || !isOutage(has)) {
		reported = nil
	}
	return reported, after
}

// period is how often the agent of a cluster renews its Lease.
func period(c *clusterv1.ManagedCluster) time.Duration {
	if s := c.Spec.LeaseDurationSeconds; s > 0 {
		return time.Duration(s) * time.Second
	}
	return defaultPeriod
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
	// inTime is so whatever the clock of the cluster says, for hub-source writes the renewals with its
	// own. An agent of which the hub says otherwise, as the controllers of Open Cluster Management may
	// have done before they went, reports nothing any more.
	inTime = metav1.Condition{
		Type: clusterv1.ManagedClusterConditionClockSynced, Status: metav1.ConditionTrue,
		Reason: "ManagedClusterClockSynced", Message: "Renewals of the Lease have the time of hub-source",
	}
)

// changeOf returns the change of metadata and spec that conditions ask for, nil for none.
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

// taintFor is the key of the taint that Available asks for, "" for none.
func taintFor(available *metav1.Condition) string {
	switch {
	case available == nil || available.Status == metav1.ConditionUnknown:
		return clusterv1.ManagedClusterTaintUnreachable
	case available.Status == metav1.ConditionFalse:
		return clusterv1.ManagedClusterTaintUnavailable
	}
	return ""
}

// ordered returns CSRs as they were made.
func ordered(requests []*certificatesv1.CertificateSigningRequest) []*certificatesv1.CertificateSigningRequest {
	return slices.SortedFunc(slices.Values(requests), func(a, b *certificatesv1.CertificateSigningRequest) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}
