package registration

import (
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/ocm"
)

// creation returns the request to create the ManagedCluster, while bootstrapping.
func (c *Core) creation() *Publish {
	if c.credentialKind != Bootstrapping || !c.connected(Clusters) || c.cluster != nil || c.flight[CreateCluster] || !c.due(c.create.until) {
		return nil
	}
	return &Publish{Request: CreateCluster, Object: &clusterv1.ManagedCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "ManagedCluster"},
		ObjectMeta: metav1.ObjectMeta{Name: c.c.Cluster},
	}}
}

func (c *Core) clusterCreated(now time.Time, err error) {
	if err != nil && !alreadyExists(err) {
		c.create.failed(now, c.c.Random(), firstRetry, lastRetry, err)
		return
	}
	// If the hub removes the ManagedCluster again, it has a reason, so the next attempt waits.
	c.create = retry{until: now.Add(recreate + time.Duration(c.c.Random()*float64(recreate)))}
}

// answers processes the hub's answer to the pending request.
func (c *Core) answers() {
	r := c.pendingState()
	if r == nil {
		return
	}
	for _, condition := range r.Status.Conditions {
		if condition.Status != corev1.ConditionFalse && (condition.Type == certificatesv1.CertificateDenied || condition.Type == certificatesv1.CertificateFailed) {
			c.discard(fmt.Sprintf("the CertificateSigningRequest %s is %s: %s", r.Name, condition.Type, condition.Message))
			return
		}
	}
	if len(r.Status.Certificate) > 0 {
		c.issued(c.state.Pending, r.Status.Certificate)
	}
}

// issued adopts a certificate, if it is usable.
func (c *Core) issued(p *Pending, cert []byte) {
	own, err := ReadCredential(cert, p.Key, c.subject())
	if err != nil {
		c.discard(fmt.Sprintf("the CertificateSigningRequest %s has a certificate that cannot be used: %v", p.Name, err))
		return
	}
	rotates, requested := c.rotates(), c.renew
	if old := c.state.Credential; old != nil {
		if at := c.now.Add(time.Duration(c.c.Random() * float64(moveWithin(old, c.now)))); c.move.IsZero() || at.Before(c.move) {
			c.move = at
		}
	}
	if rotates {
		c.move = c.now // connections with the old certificate must end
	}
	c.state.Credential, c.state.Pending = own, nil
	if p.As == Bootstrapping { // a renewal does not change the bootstrap file that the registration is based on
		c.state.Bootstrap = c.bootstrap
	}
	c.reregister, c.obtained, c.spread, c.fresh = false, c.now, c.c.Random(), true
	c.renew, c.publishRetry, c.sent = retry{}, retry{}, time.Time{}
	if c.rotates() { // the clocks of the hub and its signer differ; the next attempt waits
		c.renew = requested
		c.renew.failed(c.now, c.c.Random(), firstRequest, lastRequest, errors.New("the hub requires a later issue time than its signer uses: check the clocks of the hub"))
	}
	c.certificateRetry = retry{} // the registration has succeeded; the next expiry begins another
	if c.ended() {
		// Scenario:
		//   t1: a request is approved. Its signer is down for longer than a certificate is valid.
		//   t2: the signer counts the validity from the approval. The certificate has expired when it arrives.
		//   t3: the broker refuses it.
		// Result: the agent registers again after a few minutes. If only its clock is wrong, the broker does not refuse.
		c.certificateRetry.failed(c.now, c.c.Random(), firstTrial, lastTrial, nil)
	}
}

// moveWithin returns the time for which connections may keep a replaced certificate. It ends well before the
// last tenth of the validity, in which the broker shows a certificate as not renewed. The time is randomized,
// so that a fleet that renewed at one moment does not reconnect at one moment.
func moveWithin(old *Credential, now time.Time) time.Duration {
	return min(lastMove, old.NotAfter.Sub(old.NotBefore)/20, old.NotAfter.Sub(now)/2)
}

// discard drops the pending request and delays the next one.
func (c *Core) discard(why string) {
	c.state.Pending, c.sent = nil, time.Time{}
	c.renew.failed(c.now, c.c.Random(), firstRequest, lastRequest, errors.New(why))
}

func (c *Core) subject() ocm.Subject { return ocm.Subject{Cluster: c.c.Cluster, Agent: c.state.Agent} }

// prepare creates a request if one is needed. It is published after it is in the Secret.
func (c *Core) prepare() {
	// An agent that only retries its certificate keeps its pending request. It needs the request if the broker
	// refuses.
	if p := c.state.Pending; p != nil && (p.As != c.credentialKind && c.connected(Requests) || c.hidden(p)) {
		c.state.Pending, c.sent = nil, time.Time{}
	}
	if c.state.Pending != nil || !c.wanted() {
		return
	}
	if !c.connected(Requests) || !c.due(c.streams[Requests].since.Add(showFirst)) || !c.due(c.renew.until) {
		return
	}
	if n := c.undecided(); n >= MaxPending {
		c.renew.failed(c.now, c.c.Random(), firstRequest, lastRequest, fmt.Errorf("%d CertificateSigningRequests of this cluster wait on the hub: deny or approve them", n))
		return
	}
	key, request, err := c.c.NewKey(c.subject())
	if err != nil {
		c.renew.failed(c.now, c.c.Random(), firstRetry, lastRetry, err)
		return
	}
	c.state.Pending = &Pending{Name: c.c.Cluster + "-" + c.c.Name(), Key: key, Request: request, As: c.credentialKind, Bootstrap: c.bootstrap}
}

// hidden reports whether the hub has the request but does not show it with the present bootstrap file.
//
// Scenario:
//
//	t1: the request is created.
//	t2: another bootstrap file arrives, of another account.
//
// Result: this account does not see the answer, so the request is dropped.
func (c *Core) hidden(p *Pending) bool {
	return p.As == Bootstrapping && p.Bootstrap != c.bootstrap && c.connected(Requests) && c.pendingState() == nil &&
		!c.sent.IsZero() && c.due(c.sent.Add(unseen))
}

// wanted reports whether a certificate is needed. The hub would deny a request of a cluster that is not
// accepted.
func (c *Core) wanted() bool {
	return c.credentialKind == Bootstrapping || (c.cluster == nil && !c.missing() || c.isAccepted()) && (c.rotates() || c.due(c.RenewAt()))
}

// RenewAt returns when to renew the certificate: after 75 to 80 % of its validity. The validity counts from the
// arrival, because a signer may set NotBefore in the past. Zero: there is no certificate.
func (c *Core) RenewAt() time.Time {
	own := c.state.Credential
	if own == nil {
		return time.Time{}
	}
	from := own.NotBefore
	switch at := c.obtained.Round(0); { // by the wall clock, not by the monotonic time
	case at.After(c.now.Round(0)): // the clock was wrong then
	case !at.Before(own.NotAfter): // the clock is wrong now
		return c.obtained.Add(min(lastRequest, own.NotAfter.Sub(from)/2))
	case at.After(from):
		from = at
	}
	lifetime := own.NotAfter.Sub(from)
	return from.Add(time.Duration((0.75 + c.spread/20) * float64(lifetime)))
}

// undecided returns the number of undecided requests of agents of this cluster.
func (c *Core) undecided() (n int) {
	for _, r := range c.requests {
		if _, addon := r.Labels[ocm.AddOnLabel]; !addon && len(r.Status.Certificate) == 0 && len(r.Status.Conditions) == 0 {
			n++
		}
	}
	return n
}

// request publishes the pending request, and repeats it if the hub does not show it.
func (c *Core) request() *Publish {
	p := c.state.Pending
	if p == nil || !c.connected(Requests) || c.flight[CreateRequest] || !c.state.equal(c.saved) || c.pendingState() != nil {
		return nil
	}
	if !c.sent.IsZero() && !c.due(c.sent.Add(unseen)) || !c.due(c.publishRetry.until) {
		return nil
	}
	return &Publish{Request: CreateRequest, Object: &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: map[string]string{clusterv1.ClusterNameLabelKey: c.c.Cluster}},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: p.Request, SignerName: ocm.Signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth},
		},
	}}
}

func (c *Core) requestCreated(now time.Time, o runtime.Object, err error) {
	p := c.state.Pending
	if r, ok := o.(*certificatesv1.CertificateSigningRequest); !ok || p == nil || r.Name != p.Name {
		return // the request was dropped in the meantime
	}
	if err != nil && !alreadyExists(err) {
		c.publishRetry.failed(now, c.c.Random(), firstRetry, lastRetry, err)
		return
	}
	c.publishRetry, c.sent = retry{}, now
}

// pendingState returns the pending request as the hub shows it, nil if it does not.
func (c *Core) pendingState() *certificatesv1.CertificateSigningRequest {
	for _, r := range c.requests {
		if c.state.Pending != nil && r.Name == c.state.Pending.Name {
			return r
		}
	}
	return nil
}
