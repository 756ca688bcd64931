package sim

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/testkit/fakehub"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// joinOracle judges the events between the programs, and the objects on the hub. The world's lock guards it.
type joinOracle struct {
	j       *join
	numbers int

	// closed holds the clusters that hub-source has reported as not accepted, and when the broker acknowledged it.
	closed map[string]time.Time
	// requesting are the requests for tokens, by connection and uid. given are the delivered tokens and their
	// receivers.
	requesting map[string]bool
	given      map[string]string
	// wanted are the clusters that the operator has accepted. left is when the acceptance ended.
	wanted map[string]bool
	left   map[string]time.Time
	// approved are the requests for certificates that the operator has approved, by their text.
	approved map[string]bool
	seen     map[string]bool  // certificates that were checked
	latest   map[string]int64 // versions of works that the broker has acknowledged
}

func newJoinOracle(j *join) *joinOracle {
	return &joinOracle{
		j: j, closed: map[string]time.Time{}, requesting: map[string]bool{}, given: map[string]string{}, wanted: map[string]bool{}, left: map[string]time.Time{},
		approved: map[string]bool{}, seen: map[string]bool{}, latest: map[string]int64{},
	}
}

func (o *joinOracle) number() int {
	o.numbers++
	return o.numbers
}

func (o *joinOracle) published(id string, version int64) {
	o.j.mu.Lock()
	defer o.j.mu.Unlock()
	o.latest[id] = version
}

// want records that the operator accepts a cluster, or no longer accepts it.
func (o *joinOracle) want(cluster string, accepted bool) {
	o.j.mu.Lock()
	defer o.j.mu.Unlock()
	if o.wanted[cluster] && !accepted {
		o.left[cluster] = time.Now()
	}
	o.wanted[cluster] = accepted
}

// notePublished returns the acceptance by cluster that hub-source reports in an event.
func (o *joinOracle) notePublished(p transport.Peer, event []byte) map[string]bool {
	if p.Role != string(identity.Source) {
		return nil
	}
	e, err := codec.Unmarshal(event)
	if err != nil || e.Type() != codec.TypeRegistrationObjects {
		return nil
	}
	m, err := codec.ParseRegistrationObjects(e)
	if err != nil {
		o.j.fail("I8", "hub-source publishes an event that cannot be read: %v", err)
		return nil
	}
	reported := map[string]bool{}
	for _, object := range m.GetObjects() {
		if object.GetDataType() == codec.ManagedClusters.String() {
			reported[object.GetCluster()] = accepts(object)
		}
	}
	return reported
}

// accepts reads the acceptance from the object itself, because the status fields beside it may be wrong.
func accepts(object *hawserv1.RegistrationObject) bool {
	var c struct {
		Spec struct {
			HubAcceptsClient bool `json:"hubAcceptsClient"`
		} `json:"spec"`
	}
	return len(object.GetJson()) > 0 && json.Unmarshal(object.GetJson(), &c) == nil && c.Spec.HubAcceptsClient
}

// before removes clusters from closed that hub-source is about to report as accepted.
func (o *joinOracle) before(reported map[string]bool) {
	o.j.mu.Lock()
	defer o.j.mu.Unlock()
	for cluster, accepted := range reported {
		if accepted {
			delete(o.closed, cluster)
		}
	}
}

// after adds the clusters to closed that the broker has acknowledged as not accepted.
func (o *joinOracle) after(reported map[string]bool) {
	o.j.mu.Lock()
	defer o.j.mu.Unlock()
	for _, cluster := range slices.Sorted(maps.Keys(reported)) {
		if _, closed := o.closed[cluster]; !reported[cluster] && !closed {
			o.closed[cluster] = time.Now()
			o.j.w.note("%s   the broker stores that %s is not accepted", time.Now().Format("15:04:05.000"), cluster)
		}
	}
}

// requested judges an event that an agent publishes.
func (o *joinOracle) requested(p transport.Peer, event []byte) {
	env, err := codec.ParseEnvelope(event)
	if err != nil || p.Role == string(identity.Source) {
		return
	}
	o.j.note("  %s/%s requests %s of %s", p.Role, p.Name, show(&env), env.Type.DataType.Resource)
	if env.Type.DataType == codec.TokenRequests {
		var t tokenRequest
		if e, err := codec.Unmarshal(event); err == nil && json.Unmarshal(e.Data(), &t) == nil {
			o.j.mu.Lock()
			defer o.j.mu.Unlock()
			o.requesting[fmt.Sprint(p.Conn, " ", t.Metadata.UID)] = true
		}
	}
}

type tokenRequest struct {
	Metadata struct {
		UID       string `json:"uid"`
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Status struct {
		Token string `json:"token"`
	} `json:"status"`
}

// sent judges an event that the broker sends to a client.
func (o *joinOracle) sent(p transport.Peer, sub transport.RawSubscription, event []byte) {
	if p.Role == string(identity.Source) || codec.IsHeartbeat(event) {
		return
	}
	env, err := codec.ParseEnvelope(event)
	if err != nil {
		o.j.fail("I8", "%s was sent what cannot be read: %v", p.Name, err)
		return
	}
	e, err := codec.Unmarshal(event)
	if err != nil {
		o.j.fail("I8", "%s was sent what cannot be read: %v", p.Name, err)
		return
	}
	o.j.note("  %s/%s gets %s of %s", p.Role, p.Name, show(&env), env.Type.DataType.Resource)
	own := p.Name
	if p.Role == string(identity.Bootstrap) {
		own = sub.Cluster
	}
	if env.RawType == codec.TypeCheckpoint {
		return
	}
	if env.Cluster != own {
		o.j.fail("I8", "%s/%s was sent an event of cluster %q", p.Role, p.Name, env.Cluster)
		return
	}
	if p.Role == string(identity.Agent) {
		o.gate(own, &env)
	}
	if len(e.Data()) > 0 {
		o.shown(p, own, env.Type.DataType, e.Data())
	}
}

// gate judges whether a cluster may be sent an event.
func (o *joinOracle) gate(cluster string, env *codec.Envelope) {
	early := env.Type.DataType == codec.ManagedClusters || env.Type.DataType == codec.SigningRequests
	o.j.mu.Lock()
	since, closed := o.closed[cluster]
	o.j.mu.Unlock()
	if deleted := env.Deleting && env.Type.DataType != codec.ManifestBundles; closed && !early && !deleted && time.Now().After(since) {
		o.j.fail("I8", "cluster %s, which is not accepted, was sent %s of %s %v after the broker knew it", cluster, show(env), env.Type.DataType.Resource, time.Since(since))
	}
}

// shown judges an object that the broker sent to a client.
func (o *joinOracle) shown(p transport.Peer, own string, d codec.DataType, data []byte) {
	var object struct {
		Metadata struct {
			Name, Namespace     string
			Labels, Annotations map[string]string
		} `json:"metadata"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		o.j.fail("I8", "%s was sent an object that cannot be read: %v", p.Name, err)
		return
	}
	m := object.Metadata
	bootstrap := p.Role == string(identity.Bootstrap)
	switch d {
	case codec.ManagedClusters:
		if m.Name != own {
			o.j.fail("I8", "%s/%s was sent ManagedCluster %s", p.Role, p.Name, m.Name)
		}
	case codec.SigningRequests:
		if requester := m.Annotations[ocm.RequesterAnnotation]; m.Labels["open-cluster-management.io/cluster-name"] != own || bootstrap && requester != p.User {
			o.j.fail("I8", "%s/%s was sent the request %s of %s", p.Role, p.Name, m.Name, requester)
		}
	case codec.TokenRequests:
		o.token(p, data)
	default:
		if bootstrap || d != codec.ManifestBundles && m.Namespace != own {
			o.j.fail("I8", "%s/%s was sent %s %s/%s", p.Role, p.Name, d.Resource, m.Namespace, m.Name)
		}
	}
}

// token judges the delivery of a token.
func (o *joinOracle) token(p transport.Peer, data []byte) {
	var t tokenRequest
	if err := json.Unmarshal(data, &t); err != nil || t.Status.Token == "" {
		o.j.fail("I8", "%s was sent an invalid token: %v", p.Name, err)
		return
	}
	o.j.mu.Lock()
	requested, before := o.requesting[fmt.Sprint(p.Conn, " ", t.Metadata.UID)], o.given[t.Status.Token]
	o.given[t.Status.Token] = p.Name
	o.j.mu.Unlock()
	switch {
	case !requested:
		o.j.fail("I8", "%s was sent a token that it has not requested on this connection", p.Name)
	case before != "":
		o.j.fail("I8", "%s was sent a token that %s got before", p.Name, before)
	}
}

// look checks the objects on the hub.
func (o *joinOracle) look() {
	o.lookAtClusters()
	for _, csr := range o.j.hub.api.All("certificatesigningrequests") {
		o.lookAtCertificate(csr)
	}
}

func (o *joinOracle) lookAtClusters() {
	for _, c := range o.j.hub.api.All("managedclusters") {
		name := fakehub.Name(c)
		accepted, _ := o.j.hub.accepts(name)
		o.j.mu.Lock()
		wanted := o.wanted[name]
		o.j.mu.Unlock()
		if accepted && !wanted {
			o.j.fail("I8", "cluster %s is accepted, and no person did that", name)
		}
	}
}

// unjudged returns true for each cluster of the hub without the taint "unreachable" whose availability is known,
// and false for the others. An unknown availability counts as known if an outage is its cause.
func (o *joinOracle) unjudged() map[string]bool {
	all := map[string]bool{}
	for _, c := range o.j.hub.api.All("managedclusters") {
		b, err := json.Marshal(c)
		must(err)
		var m clusterv1.ManagedCluster
		must(json.Unmarshal(b, &m))
		has := meta.FindStatusCondition(m.Status.Conditions, clusterv1.ManagedClusterConditionAvailable)
		tainted := slices.ContainsFunc(m.Spec.Taints, func(t clusterv1.Taint) bool { return t.Key == clusterv1.ManagedClusterTaintUnreachable })
		all[m.Name] = has != nil && has.Reason != "ManagedClusterLeaseUpdateStopped" && !tainted
	}
	return all
}

// dispatched is the longest delay of an action that was decided before the operator decided otherwise.
const dispatched = time.Minute

func (o *joinOracle) lookAtCertificate(csr fakehub.Object) {
	status, _ := csr["status"].(fakehub.Object)
	text, _ := status["certificate"].(string)
	if text == "" || o.seen[text] {
		return
	}
	o.seen[text] = true
	name := fakehub.Name(csr)
	chain, err := base64.StdEncoding.DecodeString(text)
	block, _ := pem.Decode(chain)
	if err != nil || block == nil {
		o.j.fail("I8", "request %s has a certificate that cannot be read", name)
		return
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		o.j.fail("I8", "request %s has a certificate that cannot be read: %v", name, err)
		return
	}
	if leaf.IsCA || len(leaf.DNSNames)+len(leaf.URIs)+len(leaf.EmailAddresses) > 0 || len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		o.j.fail("I8", "request %s has a certificate that is more than one of a client", name)
	}
	id, err := identity.Mapping{}.FromCertificate(leaf)
	if err != nil || id.Role != identity.Agent {
		o.j.fail("I8", "request %s has a certificate without a valid identity: %v", name, err)
		return
	}
	o.lookAtApproval(csr, id.Name, leaf)
}

// lookAtApproval checks that a signed certificate was approved by the operator, or renews such a certificate.
func (o *joinOracle) lookAtApproval(csr fakehub.Object, cluster string, leaf *x509.Certificate) {
	m := csr["metadata"].(fakehub.Object)
	request, _ := csr["spec"].(fakehub.Object)["request"].(string)
	notes, _ := m["annotations"].(fakehub.Object)
	o.j.mu.Lock()
	byPerson, wanted, left := o.approved[request], o.wanted[cluster], o.left[cluster]
	o.j.mu.Unlock()
	created, err := time.Parse(time.RFC3339, m["creationTimestamp"].(string))
	must(err)
	renewal := notes[ocm.RequesterAnnotation] == leaf.Subject.CommonName
	switch {
	case byPerson:
	case !renewal:
		o.j.fail("I8", "request %s of cluster %s is signed without an approval", m["name"], cluster)
	case !wanted && created.After(left.Add(dispatched)):
		o.j.fail("I8", "request %s renewed the certificate of cluster %s, which is not accepted since %v", m["name"], cluster, left)
	}
}

// approve approves the requests of an agent, as an operator does after a check.
func (j *join) approve(a *joinAgent) (n int) {
	want := "system:open-cluster-management:" + a.cluster + ":" + a.agentName()
	for _, csr := range j.hub.api.All("certificatesigningrequests") {
		request, _ := csr["spec"].(fakehub.Object)["request"].(string)
		if len(fakehub.Conditions(csr)) > 0 || subjectOf(request) != want {
			continue
		}
		j.mu.Lock()
		j.oracle.approved[request] = true
		j.mu.Unlock()
		j.checkEnd(fakehub.Name(csr), "Approved")
		n++
	}
	return n
}

// checkEnd approves or denies a request.
func (j *join) checkEnd(name, what string) {
	j.hub.api.Change("certificatesigningrequests", "", name, func(o fakehub.Object) {
		status, _ := o["status"].(fakehub.Object)
		if status == nil {
			status = fakehub.Object{}
		}
		had, _ := status["conditions"].([]any)
		now := time.Now().UTC().Format(time.RFC3339)
		status["conditions"] = append(had, fakehub.Object{"type": what, "status": "True", "reason": "Person", "lastUpdateTime": now, "lastTransitionTime": now})
		o["status"] = status
	})
}

// subjectOf returns the common name in a request.
func subjectOf(request string) string {
	text, err := base64.StdEncoding.DecodeString(request)
	if err != nil {
		return ""
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return ""
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return ""
	}
	return r.Subject.CommonName
}

// accept sets spec.hubAcceptsClient, or removes it.
func (j *join) accept(cluster string, accepted bool) bool {
	if _, exists := j.hub.accepts(cluster); !exists {
		return false
	}
	if accepted {
		j.oracle.want(cluster, true)
	}
	j.hub.api.Change("managedclusters", "", cluster, func(o fakehub.Object) {
		spec, _ := o["spec"].(fakehub.Object)
		if spec == nil {
			spec = fakehub.Object{}
		}
		spec["hubAcceptsClient"] = accepted
		o["spec"] = spec
	})
	if !accepted {
		j.oracle.want(cluster, false)
	}
	return true
}

// decide acts as the operator: it accepts waiting clusters and approves their requests. It deletes the requests
// of others, and invites agents that must begin again.
func (j *join) decide() {
	j.oracle.look()
	for _, a := range j.agents {
		if a.imposter {
			continue
		}
		if !j.accept(a.cluster, true) {
			j.begin(a)
			continue
		}
		// It keeps an expired certificate, which the broker rejects.
		if own := a.reg.Progress().Credential; (own == nil || !time.Now().Before(own.NotAfter)) && a.isRevoked() {
			a.invite()
		}
		j.approve(a)
		j.tidy(a)
	}
}

// begin lets an agent join again that is unknown on the hub. The agent gets another bootstrap file, once.
func (j *join) begin(a *joinAgent) {
	if a.invited.IsZero() || time.Since(a.invited) > joinSettle/4 {
		a.invited = time.Now()
		j.note("> agent %s is invited", a.name)
		a.invite()
	}
}

func (a *joinAgent) isRevoked() bool {
	a.j.mu.Lock()
	defer a.j.mu.Unlock()
	return a.revoked
}

// tidy deletes undecided requests of others under the name of a cluster.
func (j *join) tidy(a *joinAgent) {
	for _, csr := range j.hub.api.All("certificatesigningrequests") {
		request, _ := csr["spec"].(fakehub.Object)["request"].(string)
		client := subjectOf(request)
		if of, _, _ := strings.Cut(strings.TrimPrefix(client, "system:open-cluster-management:"), ":"); len(fakehub.Conditions(csr)) == 0 && of == a.cluster && !strings.HasSuffix(client, ":"+a.agentName()) {
			j.hub.api.Delete("certificatesigningrequests", "", fakehub.Name(csr))
		}
	}
}

// wrong describes the state that has not converged after a long time without faults.
func (j *join) wrong() (all []string) {
	j.oracle.look()
	for _, a := range j.agents {
		s := a.reg.Progress()
		switch {
		case s.WaitReason != nil:
			all = append(all, fmt.Sprintf("agent %s waits: %v", a.name, s.WaitReason))
		case s.Credential == nil || !time.Now().Before(s.Credential.NotAfter):
			all = append(all, fmt.Sprintf("agent %s has no certificate that is good", a.name))
		}
		all = append(all, j.wrongWith(a.cluster)...)
		j.mu.Lock()
		id := "work-of-" + a.cluster
		got, latest := a.works[id], j.oracle.latest[id]
		j.mu.Unlock()
		if behind := latest - got; behind > int64((3*worksEvery).Seconds()) || latest < time.Now().Add(-4*worksEvery).Unix()-firstVersion {
			all = append(all, fmt.Sprintf("agent %s is %d s behind with its work, whose last version is %d", a.name, behind, latest))
		}
	}
	return all
}

// wrongWith describes the state of one cluster that has not converged: its ManagedCluster and its Lease.
func (j *join) wrongWith(cluster string) (all []string) {
	o := j.hub.api.Get("managedclusters", "", cluster)
	has := map[string]any{}
	for _, v := range fakehub.Conditions(o) {
		c := v.(fakehub.Object)
		has[c["type"].(string)] = c["status"]
	}
	for _, want := range []string{"HubAcceptedManagedCluster", "ManagedClusterJoined", "ManagedClusterConditionAvailable"} {
		if has[want] != "True" {
			all = append(all, fmt.Sprintf("cluster %s: condition %s is %v", cluster, want, has[want]))
		}
	}
	lease := j.hub.api.Get("leases", cluster, ocm.LeaseName)
	spec, _ := lease["spec"].(fakehub.Object)
	text, _ := spec["renewTime"].(string)
	renewed, err := time.Parse(time.RFC3339Nano, text)
	if age := time.Since(renewed); err != nil || age > 3*time.Minute || age < -time.Minute {
		all = append(all, fmt.Sprintf("cluster %s: its lease was renewed at %q, it is %s", cluster, text, time.Now().UTC().Format(time.RFC3339)))
	}
	return all
}

// audit counts the writes of hub-source.
func (o *joinOracle) audit(r *fakehub.Request, code int) {
	if r.Verb == "get" || r.Verb == "list" || r.Verb == "watch" {
		return
	}
	o.j.note("  hub: %s: %d", r, code)
}
