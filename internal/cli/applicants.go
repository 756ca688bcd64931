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

// How requests of agents look on a hub of Open Cluster Management.
const (
	addOnLabel = "open-cluster-management.io/addon-name"
	// requesterAnnotation is the user who asked, where the request came over a broker.
	requesterAnnotation = "open-cluster-management.io/csr-user"
	// courier creates the requests that came over a broker, for whom the annotation names.
	courier = "system:serviceaccount:open-cluster-management-hub:grpc-server-sa"

	grpcSigner = "open-cluster-management.io/grpc"
)

// bootstrapUser and bootstrapGroup are those with whose tokens clusters join.
const (
	bootstrapUser  = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"
	bootstrapGroup = "system:bootstrappers:managedcluster"
)

// application is a request for a first certificate of a cluster that waits for a decision.
type application struct {
	name string
	// agent is the common name that it asks for.
	agent string
	// key is the SHA-256 of the public key that it asks for, in hexadecimal digits.
	key string
	// requester is the user who asked, trusted that clusters join with it.
	requester   string
	trusted     bool
	requestedAt time.Time
}

// pending tells whether nobody has decided about a request.
func pending(r *certificatesv1.CertificateSigningRequest) bool {
	return len(r.Status.Certificate) == 0 && !hasCondition(r, certificatesv1.CertificateApproved) && !hasCondition(r, certificatesv1.CertificateDenied)
}

func hasCondition(r *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
}

// applicationOf reads a request of the cluster for its first certificate. A renewal is none, nor
// is the request of an add-on: the hub's controllers approve these, of clusters that it accepts.
// The error says why a request may not be approved, whoever says so.
func applicationOf(cluster string, r *certificatesv1.CertificateSigningRequest) (a application, first bool, err error) {
	if r.Labels[clusterv1.ClusterNameLabelKey] != cluster || r.Labels[addOnLabel] != "" {
		return a, false, nil
	}
	a = application{name: r.Name, requester: r.Spec.Username, requestedAt: r.CreationTimestamp.Time}
	a.trusted = a.requester == bootstrapUser || strings.HasPrefix(a.requester, "system:bootstrap:") || slices.Contains(r.Spec.Groups, bootstrapGroup)
	if a.requester == courier {
		a.requester = r.Annotations[requesterAnnotation]
		// Over a broker the user alone comes along, not its groups.
		a.trusted = a.requester == bootstrapUser || strings.HasPrefix(a.requester, "system:bootstrap:")
	}
	if r.Spec.SignerName != grpcSigner && r.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return a, false, fmt.Errorf("it asks for a certificate of the signer %s, which clusters do not join with", r.Spec.SignerName)
	}
	if a.agent, a.key, err = agentOf(cluster, r.Spec.Request); err != nil {
		return a, false, err
	}
	return a, a.agent != a.requester, nil
}

// agentOf returns the common name and the key that a request is for, if it is for an agent of the cluster and
// for nothing more.
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
			return "", "", fmt.Errorf("it asks for the group %q, too", o)
		}
	}
	if !own {
		return "", "", fmt.Errorf("it does not ask for the group %q", group)
	}
	return r.Subject.CommonName, fmt.Sprintf("%x", sha256.Sum256(r.RawSubjectPublicKeyInfo)), nil
}

// history is what the hub knows of a cluster that was accepted before.
type history struct {
	// member: an agent of it has, or had, a certificate, or will have one.
	member bool
	// keys are those for which it was approved, as far as the hub still has them.
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

// lines show requests to a person who has to choose, each with the command that approves it.
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
		return fmt.Sprintf("  %s of %s, asked for by %s at %s\n    key sha256:%s\n    %s", oneLine(w.name), oneLine(w.agent), oneLine(w.requester), stamp(w.requestedAt), key,
			s.command("accept "+cluster, "--csr", w.name, "--context", a.context, "--kubeconfig", a.kubeconfig))
	}), "\n")
}

// compare says how a person tells one from the other.
const compare = "the agent's log and kubectl -n hawser describe pod on the cluster say the key of its request"

// choice is which applications are to be approved.
type choice struct {
	// member: the cluster had an agent. Nothing is approved then that is not named.
	member bool
	// named are the names of requests; empty means those of the one agent that waits.
	named []string
	// all takes several agents, and several users who asked.
	all bool
	// askers are users that clusters join with, beside those of Open Cluster Management.
	askers []string
}

// errSeveral: several agents wait, and nobody said which is the right one.
var errSeveral = errors.New("several agents ask for a certificate of it")

// quarantinedError: somebody asked whom nobody named.
type quarantinedError struct{ application }

func (e quarantinedError) Error() string {
	return fmt.Sprintf("certificate request %s was made by %q, which clusters do not join with", e.name, e.requester)
}

// pick returns the applications to approve of those that wait.
func (c choice) pick(waiting []application) ([]application, error) {
	picked := waiting
	if c.member && len(c.named) == 0 {
		return nil, nil
	}
	if len(c.named) > 0 {
		picked = slices.DeleteFunc(slices.Clone(waiting), func(a application) bool { return !slices.Contains(c.named, a.name) })
	}
	for _, a := range picked {
		// Who asks chooses the name of the agent: another key may be that of another one.
		other := a.agent != picked[0].agent || a.requester != picked[0].requester || a.key != picked[0].key
		if other && !c.all && len(c.named) == 0 {
			return nil, errSeveral
		}
	}
	for _, a := range picked { // who names a request has looked at it
		if !a.trusted && len(c.named) == 0 && !slices.Contains(c.askers, a.requester) {
			return nil, quarantinedError{a}
		}
	}
	return picked, nil
}
