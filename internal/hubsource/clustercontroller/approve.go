package clustercontroller

import (
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
)

const (
	// KeyAnnotation of a ManagedCluster is the key for which it was accepted by itself, or for
	// which the certificate of an accepted one was approved by itself. There is only one, ever.
	KeyAnnotation = "hawser.dev/approved-key"
	// NoKey is its value where a cluster was denied, by whatever means: no key is approved by itself then,
	// also where the cluster had never been accepted.
	NoKey = "denied"
	// MemberAnnotation of a ManagedCluster says that an agent got a certificate of its name. Metadata is
	// what a restore without status leaves.
	MemberAnnotation = "hawser.dev/member"

	reasonRenewal    = "HawserRenewal"
	reasonFirst      = "HawserAutoApproved"
	reasonNotAMember = "HawserClusterNotAccepted"
	reasonDenied     = "HawserClusterDenied"
)

// rules is what of the configuration decides.
type rules struct {
	// users are those whose clusters are accepted by themselves.
	users []string
}

// csrDecision is what becomes of a CSR.
type csrDecision struct {
	csr             *certificatesv1.CertificateSigningRequest
	action          csrAction
	reason, message string
}

// csrAction is one of a CSR.
type csrAction string

const (
	approve csrAction = "approved"
	deny    csrAction = "denied"
	// drop deletes a CSR that was denied, so that the agent makes another one.
	drop csrAction = "dropped"
)

// decideRequests adds what becomes of the CSRs of a cluster. Nothing becomes of those that a
// person decides about.
func (r rules) decideRequests(s clusterState, e *effects) {
	var firsts []first
	for _, csr := range ordered(s.requests) {
		if _, addon := csr.Labels[addonLabel]; addon || csr.Spec.SignerName != SignerName || csr.Spec.Username != CreatorName {
			continue // whoever made it may write any annotation
		}
		requested, err := validate(csr)
		if err != nil {
			continue // should a person approve it, it is refused with the reason
		}
		if csr.Annotations[UserAnnotation] == requested.user() {
			e.decisions = append(e.decisions, decideRenewal(s, csr)...)
		} else {
			firsts = append(firsts, first{csr, requested})
		}
	}
	if s.cluster == nil || s.cluster.DeletionTimestamp != nil {
		return
	}
	s.remember(firsts, e)
	for _, f := range firsts {
		r.decideFirst(s, f, e)
	}
}

// first is a request of an agent that shows no certificate.
type first struct {
	csr     *certificatesv1.CertificateSigningRequest
	request request
}

// remember puts into the metadata of a cluster that it has an agent, and that it was denied.
func (s clusterState) remember(firsts []first, e *effects) {
	c, member := s.cluster, WasMember(s.cluster)
	claimed := c.Annotations[KeyAnnotation]
	deny := !c.Spec.HubAcceptsClient && (claimed != "" || s.wasAccepted())
	for _, f := range firsts {
		member = member || c.Spec.HubAcceptsClient && has(f.csr, certificatesv1.CertificateApproved)
		deny = deny || claimed == "" && has(f.csr, certificatesv1.CertificateDenied) && conditionOf(f.csr, certificatesv1.CertificateDenied) != reasonNotAMember
	}
	if deny && claimed != NoKey {
		e.changes().claim = NoKey
	}
	if member && c.Annotations[MemberAnnotation] == "" {
		e.changes().member = true
	}
}

// changes is the change of the cluster, begun if there is none yet.
func (e *effects) changes() *change {
	if e.change == nil {
		e.change = &change{}
	}
	return e.change
}

// WasMember reports whether an agent of a cluster has, or had, a certificate. The finalizer comes before the
// condition, so it is alone only where the status was lost.
func WasMember(c *clusterv1.ManagedCluster) bool {
	return c.Annotations[MemberAnnotation] != "" || meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionJoined) ||
		slices.Contains(c.Finalizers, clusterv1.ManagedClusterFinalizer) && meta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionHubAccepted) == nil
}

// wasAccepted reports whether the hub shows that the cluster was accepted before.
func (s clusterState) wasAccepted() bool {
	return WasMember(s.cluster) || slices.Contains(s.cluster.Finalizers, clusterv1.ManagedClusterFinalizer) ||
		meta.FindStatusCondition(s.cluster.Status.Conditions, clusterv1.ManagedClusterConditionHubAccepted) != nil
}

// inUse reports whether the name of a cluster belongs to an agent already, or to others. The namespace of a
// cluster stays when its ManagedCluster goes, and when that is made anew:
//
//	t1  the agent of a cluster has a certificate
//	t2  the ManagedCluster is lost, or made anew from a file, without marks
//	t3  a stranger with a token that lets clusters in asks for the name
func (s clusterState) inUse() bool {
	n := s.namespace
	if s.cluster.Spec.HubAcceptsClient {
		return WasMember(s.cluster) || n != nil && n.CreationTimestamp.Before(&s.cluster.CreationTimestamp)
	}
	return s.wasAccepted() || n != nil
}

// decideRenewal is about who shows a certificate of the very agent that the CSR is for.
func decideRenewal(s clusterState, csr *certificatesv1.CertificateSigningRequest) []csrDecision {
	member := s.cluster != nil && s.cluster.Spec.HubAcceptsClient && s.cluster.DeletionTimestamp == nil
	switch {
	case member && conditionOf(csr, certificatesv1.CertificateDenied) == reasonNotAMember:
		// An agent waits for its CSR until that is gone.
		return []csrDecision{{csr, drop, "", ""}}
	case decided(csr):
		return nil
	case member:
		return []csrDecision{{csr, approve, reasonRenewal, "The agent of an accepted cluster renews its certificate"}}
	}
	return []csrDecision{{csr, deny, reasonNotAMember, "The hub does not accept the cluster: see spec.hubAcceptsClient of its ManagedCluster"}}
}

// decideFirst is about who has no certificate yet. Before it approves a key it claims it, on
// the ManagedCluster:
//
//	t1  two who know the same cluster name ask, each with a key of its own
//	t2  the hub takes one claim, and refuses any other change of that state
//	t3  the state comes back, the key that is claimed is approved
//
// therefore only one of them has a certificate, also when its CSR has long been deleted.
func (r rules) decideFirst(s clusterState, f first, e *effects) {
	c := s.cluster
	if decided(f.csr) || !slices.Contains(r.users, f.csr.Annotations[UserAnnotation]) {
		return
	}
	if meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionJoined) {
		return // it has an agent: a second one needs a person
	}
	switch claimed := c.Annotations[KeyAnnotation]; {
	case claimed == f.request.key() && c.Spec.HubAcceptsClient:
		e.decisions = append(e.decisions, csrDecision{f.csr, approve, reasonFirst, "The configuration accepts clusters of this user: " + f.csr.Annotations[UserAnnotation]})
	case claimed != "" || s.inUse():
	case e.change == nil || e.change.claim == "" && !e.change.member:
		e.changes().claim, e.change.accept = f.request.key(), !c.Spec.HubAcceptsClient
	}
}

// taken reports whether a namespace is that of somebody else. Its name alone would give the
// agent of the cluster what it may have in its namespace, kube-system for one.
func taken(n *corev1.Namespace, cluster string) bool {
	return n != nil && n.Labels[clusterv1.ClusterNameLabelKey] != cluster
}

func decided(csr *certificatesv1.CertificateSigningRequest) bool {
	return len(csr.Status.Certificate) > 0 || has(csr, certificatesv1.CertificateApproved) || has(csr, certificatesv1.CertificateDenied) || has(csr, certificatesv1.CertificateFailed)
}

func has(csr *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t })
}

// conditionOf returns the reason of a condition, "" if it is not there.
func conditionOf(csr *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) string {
	for _, c := range csr.Status.Conditions {
		if c.Type == t {
			return c.Reason
		}
	}
	return ""
}
