package membership

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
	// NoKey is its value where a person has denied a cluster: no key is approved by itself then, also
	// where the cluster had never been accepted.
	NoKey = "denied"

	reasonRenewal    = "HawserRenewal"
	reasonFirst      = "HawserAutoApproved"
	reasonNotAMember = "HawserClusterNotAccepted"
)

// rules is what of the configuration decides.
type rules struct {
	// users are those whose clusters are accepted by themselves.
	users []string
}

// verdict is what becomes of a CSR.
type verdict struct {
	csr             *certificatesv1.CertificateSigningRequest
	decision        decision
	reason, message string
}

// decision is one of a CSR.
type decision string

const (
	approve decision = "approved"
	deny    decision = "denied"
	// drop deletes a CSR that was denied, so that the agent makes another one.
	drop decision = "dropped"
)

// decideRequests adds what becomes of the CSRs of a cluster. Nothing becomes of those that a
// person decides about.
func (r rules) decideRequests(s situation, e *effects) {
	for _, csr := range ordered(s.requests) {
		if _, addon := csr.Labels[addonLabel]; addon || csr.Spec.SignerName != SignerName || csr.Spec.Username != CreatorName {
			continue // whoever made it may write any annotation
		}
		asked, err := sound(csr)
		if err != nil {
			continue // should a person approve it, it is refused with the reason
		}
		if csr.Annotations[UserAnnotation] == asked.user() {
			e.verdicts = append(e.verdicts, decideRenewal(s, csr)...)
		} else {
			r.decideFirst(s, csr, asked, e)
		}
	}
}

// decideRenewal is about who shows a certificate of the very agent that the CSR is for.
func decideRenewal(s situation, csr *certificatesv1.CertificateSigningRequest) []verdict {
	member := s.cluster != nil && s.cluster.Spec.HubAcceptsClient && s.cluster.DeletionTimestamp == nil
	switch {
	case member && conditionOf(csr, certificatesv1.CertificateDenied) == reasonNotAMember:
		// An agent waits for its CSR until that is gone.
		return []verdict{{csr, drop, "", ""}}
	case decided(csr):
		return nil
	case member:
		return []verdict{{csr, approve, reasonRenewal, "The agent of an accepted cluster renews its certificate"}}
	}
	return []verdict{{csr, deny, reasonNotAMember, "The hub does not accept the cluster: see spec.hubAcceptsClient of its ManagedCluster"}}
}

// decideFirst is about who has no certificate yet. Before it approves a key it claims it, on
// the ManagedCluster:
//
//	t1  two who know the same cluster name ask, each with a key of its own
//	t2  the hub takes one claim, and refuses any other change of that state
//	t3  the state comes back, the key that is claimed is approved
//
// therefore only one of them has a certificate, also when its CSR has long been deleted.
func (r rules) decideFirst(s situation, csr *certificatesv1.CertificateSigningRequest, asked request, e *effects) {
	c := s.cluster
	if decided(csr) || c == nil || c.DeletionTimestamp != nil || !slices.Contains(r.users, csr.Annotations[UserAnnotation]) {
		return
	}
	if meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1.ManagedClusterConditionJoined) {
		return // it has an agent: a second one needs a person
	}
	switch claimed := c.Annotations[KeyAnnotation]; {
	case claimed == asked.key() && c.Spec.HubAcceptsClient:
		e.verdicts = append(e.verdicts, verdict{csr, approve, reasonFirst, "The configuration accepts clusters of this user: " + csr.Annotations[UserAnnotation]})
	case claimed != "":
	case !c.Spec.HubAcceptsClient && (meta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionHubAccepted) != nil || taken(s.namespace, s.name)):
		// A person has denied it, or it names a namespace that was not made for it.
	case e.change == nil:
		e.change = &change{claim: asked.key(), accept: !c.Spec.HubAcceptsClient}
	case e.change.claim == "":
		e.change.claim, e.change.accept = asked.key(), !c.Spec.HubAcceptsClient
	}
}

// taken reports whether a namespace is that of somebody else. Its name alone would give the
// agent of the cluster what it may have in its namespace, kube-system for one.
func taken(n *corev1.Namespace, cluster string) bool {
	return n != nil && n.Labels[clusterv1.ClusterNameLabelKey] != cluster
}

func decided(csr *certificatesv1.CertificateSigningRequest) bool {
	return len(csr.Status.Certificate) > 0 || slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
	})
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
