package clustercontroller

import (
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
)

const (
	// KeyAnnotation of a ManagedCluster is the key that was approved automatically. The cluster was accepted for
	// it, or its certificate was approved for an accepted cluster. A cluster has only one such key, for ever.
	KeyAnnotation = "hawser.dev/approved-key"
	// NoKey is the value of KeyAnnotation after a cluster was denied by any means. Then no key is approved
	// automatically, even if the cluster was never accepted.
	NoKey = "denied"
	// MemberAnnotation of a ManagedCluster means that an agent got a certificate of its name. It is metadata
	// because a restore without status keeps metadata.
	MemberAnnotation = "hawser.dev/member"

	reasonRenewal    = "HawserRenewal"
	reasonFirst      = "HawserAutoApproved"
	reasonNotAMember = "HawserClusterNotAccepted"
	reasonDenied     = "HawserClusterDenied"
)

// rules are the configured rules of automatic approval.
type rules struct {
	// users are the users whose clusters are accepted automatically.
	users []string
}

// csrDecision is the decision about a CSR.
type csrDecision struct {
	csr             *certificatesv1.CertificateSigningRequest
	action          csrAction
	reason, message string
}

// csrAction is what happens to a CSR.
type csrAction string

const (
	approve csrAction = "approved"
	deny    csrAction = "denied"
	// drop deletes a denied CSR, so that the agent creates another one.
	drop csrAction = "dropped"
)

// decideRequests adds the decisions about the CSRs of a cluster. It leaves out CSRs that an operator decides
// about.
func (r rules) decideRequests(s clusterState, e *effects) {
	var firsts []first
	for _, csr := range ordered(s.requests) {
		if _, addon := csr.Labels[ocm.AddOnLabel]; addon || csr.Spec.SignerName != ocm.Signer || csr.Spec.Username != ocm.Registrar {
			continue // its creator may write any annotation
		}
		if s.cluster != nil && s.cluster.Annotations[MemberAnnotation] != "" && len(csr.Status.Certificate) > 0 {
			continue // nothing is left to decide or to remember, and parsing costs more than the rest of a decision
		}
		requested, err := validate(csr)
		if err != nil {
			continue // if an operator approves it, the signer rejects it with the reason
		}
		if csr.Annotations[ocm.RequesterAnnotation] == requested.CommonName() {
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

// first is a request of an agent without a certificate.
type first struct {
	csr     *certificatesv1.CertificateSigningRequest
	request request
}

// remember saves in the metadata of a cluster that it has an agent, and that it was denied.
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

// changes returns the change of the cluster, and creates it if needed.
func (e *effects) changes() *change {
	if e.change == nil {
		e.change = &change{}
	}
	return e.change
}

// WasMember reports whether an agent of a cluster has, or had, a certificate. The finalizer is written before
// the condition, so it is alone only if the status was lost.
func WasMember(c *clusterv1.ManagedCluster) bool {
	return c.Annotations[MemberAnnotation] != "" || meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionJoined) ||
		slices.Contains(c.Finalizers, clusterv1.ManagedClusterFinalizer) && meta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionHubAccepted) == nil
}

// wasAccepted reports whether the hub shows that the cluster was accepted before.
func (s clusterState) wasAccepted() bool {
	return WasMember(s.cluster) || slices.Contains(s.cluster.Finalizers, clusterv1.ManagedClusterFinalizer) ||
		meta.FindStatusCondition(s.cluster.Status.Conditions, clusterv1.ManagedClusterConditionHubAccepted) != nil
}

// inUse reports whether the name of a cluster already belongs to an agent, or to another use. The namespace of
// a cluster stays when its ManagedCluster is deleted and created again.
//
// Scenario:
//
//	t1: the agent of a cluster has a certificate.
//	t2: the ManagedCluster is lost, or created again from a file, without annotations.
//	t3: another client with a token that lets clusters join requests the name.
//
// Result: the existing namespace shows that the name is in use.
func (s clusterState) inUse() bool {
	n := s.namespace
	if s.cluster.Spec.HubAcceptsClient {
		return WasMember(s.cluster) || n != nil && n.CreationTimestamp.Before(&s.cluster.CreationTimestamp)
	}
	return s.wasAccepted() || n != nil
}

// decideRenewal decides about a request of an agent with a certificate of the same agent.
func decideRenewal(s clusterState, csr *certificatesv1.CertificateSigningRequest) []csrDecision {
	member := s.cluster != nil && s.cluster.Spec.HubAcceptsClient && s.cluster.DeletionTimestamp == nil
	switch {
	case member && conditionOf(csr, certificatesv1.CertificateDenied) == reasonNotAMember:
		// An agent waits for its CSR until the CSR is deleted.
		return []csrDecision{{csr, drop, "", ""}}
	case decided(csr):
		return nil
	case member:
		return []csrDecision{{csr, approve, reasonRenewal, "The agent of an accepted cluster renews its certificate"}}
	}
	return []csrDecision{{csr, deny, reasonNotAMember, "The hub does not accept the cluster: see spec.hubAcceptsClient of its ManagedCluster"}}
}

// decideFirst decides about a request of an agent without a certificate. Before it approves a key, it claims
// the key on the ManagedCluster.
//
// Scenario:
//
//	t1: two clients that know the same cluster name request certificates, each with its own key.
//	t2: the hub accepts one claim, and refuses any other change of that state.
//	t3: the informer shows that state, and the claimed key is approved.
//
// Result: only one of them gets a certificate, even if its CSR has long been deleted.
func (r rules) decideFirst(s clusterState, f first, e *effects) {
	c := s.cluster
	if decided(f.csr) || !slices.Contains(r.users, f.csr.Annotations[ocm.RequesterAnnotation]) {
		return
	}
	if meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionJoined) {
		return // the cluster has an agent, so an operator decides about another one
	}
	switch claimed := c.Annotations[KeyAnnotation]; {
	case claimed == f.request.key() && c.Spec.HubAcceptsClient:
		e.decisions = append(e.decisions, csrDecision{f.csr, approve, reasonFirst, "The configuration accepts clusters of this user: " + f.csr.Annotations[ocm.RequesterAnnotation]})
	case claimed != "" || s.inUse():
	case e.change == nil || e.change.claim == "" && !e.change.member:
		e.changes().claim, e.change.accept = f.request.key(), !c.Spec.HubAcceptsClient
	}
}

func decided(csr *certificatesv1.CertificateSigningRequest) bool {
	return len(csr.Status.Certificate) > 0 || has(csr, certificatesv1.CertificateApproved) || has(csr, certificatesv1.CertificateDenied) || has(csr, certificatesv1.CertificateFailed)
}

func has(csr *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == t })
}

// conditionOf returns the reason of a condition, "" without the condition.
func conditionOf(csr *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) string {
	for _, c := range csr.Status.Conditions {
		if c.Type == t {
			return c.Reason
		}
	}
	return ""
}
