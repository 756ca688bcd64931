package cli

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
	"github.com/hawser-io/hawser/internal/identity"
)

// Properties of agents' requests on a hub of Open Cluster Management.
const (
	addOnLabel = "open-cluster-management.io/addon-name"
	// requesterAnnotation names the requester if the request came through a broker.
	requesterAnnotation = "open-cluster-management.io/csr-user"
	// courier creates the requests that came through a broker; the annotation names the requester.
	courier = "system:serviceaccount:open-cluster-management-hub:grpc-server-sa"

	grpcSigner = "open-cluster-management.io/grpc"
)

// bootstrapUser and bootstrapGroup are the identity of the tokens with which clusters join.
const (
	bootstrapUser  = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"
	bootstrapGroup = "system:bootstrappers:managedcluster"
)

// application is an undecided request for a first certificate of a cluster.
type application struct {
	name string
	// agent is the requested common name.
	agent string
	// key is the SHA-256 of the public key of the request, in hexadecimal.
	key string
	// requester is the requesting user. trusted: clusters join with that user.
	requester   string
	trusted     bool
	requestedAt time.Time
}

// pending reports whether a request is undecided.
func pending(r *certificatesv1.CertificateSigningRequest) bool {
	return len(r.Status.Certificate) == 0 && !hasCondition(r, certificatesv1.CertificateApproved) && !hasCondition(r, certificatesv1.CertificateDenied)
}

func hasCondition(r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}

// applicationOf reads a request of the cluster for its first certificate. first is false for a renewal and for
// the request of an add-on: the hub's controllers approve these for accepted clusters. The error names the
// reason why no one may approve the request.
func applicationOf(cluster string, r *certificatesv1.CertificateSigningRequest) (a application, first bool, err error) {
	if r.Labels[clusterv1.ClusterNameLabelKey] != cluster || r.Labels[addOnLabel] != "" {
		return a, false, nil
	}
	a = application{name: r.Name, requester: r.Spec.Username, requestedAt: r.CreationTimestamp.Time}
	a.trusted = a.requester == bootstrapUser || strings.HasPrefix(a.requester, "system:bootstrap:") || slices.Contains(r.Spec.Groups, bootstrapGroup)
	if a.requester == courier {
		a.requester = r.Annotations[requesterAnnotation]
		// A broker passes on only the user, not the groups.
		a.trusted = a.requester == bootstrapUser || strings.HasPrefix(a.requester, "system:bootstrap:")
	}
	if r.Spec.SignerName != grpcSigner && r.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return a, false, fmt.Errorf("it requests a certificate of the signer %s, which is not for clusters", r.Spec.SignerName)
	}
	if a.agent, a.key, err = agentOf(cluster, r.Spec.Request); err != nil {
		return a, false, err
	}
	return a, a.agent != a.requester, nil
}

// agentOf returns common name and key of a request. It returns an error if the request is not exactly for an
// agent of the cluster.
func agentOf(cluster string, text []byte) (name, key string, err error) {
	r, err := identity.ReadRequest(text)
	if err == nil {
		err = identity.CheckCommonName(r.Subject)
	}
	if err != nil {
		return "", "", err
	}
	group := "system:open-cluster-management:" + cluster
	agent, ok := strings.CutPrefix(r.Subject.CommonName, group+":")
	if !ok || identity.CheckAgent(agent) != nil {
		return "", "", fmt.Errorf("its common name %q is not that of an agent of the cluster", r.Subject.CommonName)
	}
	own := false
	for _, o := range r.Subject.Organization {
		switch o {
		case group:
			own = true
		case "system:open-cluster-management:managed-clusters":
		default:
			return "", "", fmt.Errorf("it also requests the group %q", o)
		}
	}
	if !own {
		return "", "", fmt.Errorf("it does not request the group %q", group)
	}
	return r.Subject.CommonName, fmt.Sprintf("%x", sha256.Sum256(r.RawSubjectPublicKeyInfo)), nil
}

// history is the hub's knowledge about an earlier acceptance of a cluster.
type history struct {
	// member: an agent of the cluster has or had a certificate, or will get one.
	member bool
	// keys are the keys of approved requests that the hub still has.
	keys []string
}

func historyOf(c *clusterv1.ManagedCluster, requests []certificatesv1.CertificateSigningRequest) (h history) {
	if key := c.Annotations[clustercontroller.KeyAnnotation]; key != "" && key != clustercontroller.NoKey {
		h.keys = append(h.keys, key)
	}
	for i := range requests {
		r := &requests[i]
		if !hasCondition(r, certificatesv1.CertificateApproved) || hasCondition(r, certificatesv1.CertificateFailed) {
			continue
		}
		if a, _, err := applicationOf(c.Name, r); err == nil && a.key != "" {
			h.keys = append(h.keys, a.key)
		}
	}
	h.member = clustercontroller.WasMember(c) || len(h.keys) > 0
	return h
}

// lines returns the requests for a person to choose from, each with the command that approves it.
func (a *acceptance) lines(env Env, cluster string, h history, waiting []application) string {
	s := steps{env: env}
	return strings.Join(names(waiting, func(w application) string {
		key := w.key
		switch {
		case slices.Contains(h.keys, w.key):
			key += " (approved before)"
		case h.member:
			key += " (not known to the hub)"
		}
		return fmt.Sprintf("  %s of %s, requested by %s at %s\n    key sha256:%s\n    %s", oneLine(w.name), oneLine(w.agent), oneLine(w.requester), stamp(w.requestedAt), key,
			s.command("accept "+cluster, "--csr", w.name, "--context", a.context, "--kubeconfig", a.kubeconfig))
	}), "\n")
}

// compare is the text that explains how to distinguish requests.
const compare = "the agent's log and kubectl -n hawser describe pod on the cluster show the key of its request"

// choice selects the applications to approve.
type choice struct {
	// member: the cluster had an agent. Then only named requests are approved.
	member bool
	// named are the names of requests; empty means the requests of the one pending agent.
	named []string
	// all: approve requests of several agents and several requesters.
	all bool
	// requesters are users that clusters join with, in addition to those of Open Cluster Management.
	requesters []string
}

// errSeveral: several agents have a pending request, and none is named.
var errSeveral = errors.New("several agents request a certificate of it")

// quarantinedError: the requester is not one that clusters join with, and the request is not named.
type quarantinedError struct{ application }

func (e quarantinedError) Error() string {
	return fmt.Sprintf("certificate request %s was made by %q, which clusters do not join with", e.name, e.requester)
}

// pick returns the pending applications to approve.
func (c choice) pick(waiting []application) ([]application, error) {
	picked := waiting
	if c.member && len(c.named) == 0 {
		return nil, nil
	}
	if len(c.named) > 0 {
		picked = slices.DeleteFunc(slices.Clone(waiting), func(a application) bool { return !slices.Contains(c.named, a.name) })
	}
	for _, a := range picked {
		// The requester chooses the name of the agent, so another key may belong to another agent.
		other := a.agent != picked[0].agent || a.requester != picked[0].requester || a.key != picked[0].key
		if other && !c.all && len(c.named) == 0 {
			return nil, errSeveral
		}
	}
	for _, a := range picked { // a person who names a request has checked it
		if !a.trusted && len(c.named) == 0 && !slices.Contains(c.requesters, a.requester) {
			return nil, quarantinedError{a}
		}
	}
	return picked, nil
}
