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
)

const (
	// Signer is who signs the certificates of agents that reach the hub by a broker.
	Signer = "open-cluster-management.io/grpc"
	// addonLabel is on the requests of add-ons, which are none of ours.
	addonLabel = "open-cluster-management.io/addon-name"
)

// creation asks for the ManagedCluster, while bootstrapping.
func (c *Core) creation() *Publish {
	if c.as != Bootstrapping || !c.connected(Clusters) || c.cluster != nil || c.flight[CreateCluster] || !c.due(c.create.until) {
		return nil
	}
	return &Publish{What: CreateCluster, Object: &clusterv1.ManagedCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "ManagedCluster"},
		ObjectMeta: metav1.ObjectMeta{Name: c.c.Cluster},
	}}
}

func (c *Core) clusterCreated(now time.Time, err error) {
	if err != nil && reasonOf(err) != metav1.StatusReasonAlreadyExists {
		c.create.failed(now, c.c.Random(), firstRetry, lastRetry, err)
		return
	}
	// A hub that removes it again does so for a reason.
	c.create = retry{until: now.Add(recreate + time.Duration(c.c.Random()*float64(recreate)))}
}

// answers looks at what the hub did with the pending request.
func (c *Core) answers() {
	p := c.kept.Pending
	if p == nil {
		return
	}
	for _, r := range c.requests {
		if r.Name != p.Name {
			continue
		}
		for _, condition := range r.Status.Conditions {
			if condition.Status != corev1.ConditionFalse && (condition.Type == certificatesv1.CertificateDenied || condition.Type == certificatesv1.CertificateFailed) {
				c.discard(fmt.Sprintf("the CertificateSigningRequest %s is %s: %s", p.Name, condition.Type, condition.Message))
				return
			}
		}
		if len(r.Status.Certificate) > 0 {
			c.issued(p, r.Status.Certificate)
		}
		return
	}
}

// issued takes a certificate, if it can be used.
func (c *Core) issued(p *Pending, cert []byte) {
	own, err := ReadCredential(cert, p.Key, c.subject())
	if err != nil {
		c.discard(fmt.Sprintf("the CertificateSigningRequest %s has a certificate that cannot be used: %v", p.Name, err))
		return
	}
	rotates, requested := c.rotates(), c.renew
	if old := c.kept.Credential; old != nil {
		if at := c.now.Add(time.Duration(c.c.Random() * float64(moveWithin(old, c.now)))); c.move.IsZero() || at.Before(c.move) {
			c.move = at
		}
	}
	if rotates {
		c.move = c.now // the one before is to end
	}
	c.kept.Credential, c.kept.Pending, c.kept.Bootstrap = own, nil, c.foundation(p)
	c.reregister, c.obtained, c.spread, c.fresh = false, c.now, c.c.Random(), true
	c.renew, c.publishRetry, c.sent = retry{}, retry{}, time.Time{}
	if c.rotates() { // the clocks of the hub differ: the next one is another time
		c.renew = requested
		c.renew.failed(c.now, c.c.Random(), firstRequest, lastRequest, errors.New("the hub wants one from a later time than it signs: do its clocks agree?"))
	}
	if !c.ended() { // the trial, if this was one, has succeeded; the next end of a certificate begins another
		c.certificateRetry = retry{}
	}
}

// moveWithin is how long a certificate that was replaced may be on connections: who looks at the broker
// when it ends takes it in the last tenth of its life for one that nobody renews. A fleet that has
// renewed at one moment does not come back at one moment.
func moveWithin(old *Credential, now time.Time) time.Duration {
	return min(lastMove, old.NotAfter.Sub(old.NotBefore)/20, old.NotAfter.Sub(now)/2)
}

// foundation is the bootstrap file that the registration rests on: a renewal changes nothing.
func (c *Core) foundation(p *Pending) string {
	if p.As == Bootstrapping {
		return c.bootstrap
	}
	return c.kept.Bootstrap
}

// discard gives the pending request up, for a while.
func (c *Core) discard(why string) {
	c.kept.Pending, c.sent = nil, time.Time{}
	c.renew.failed(c.now, c.c.Random(), firstRequest, lastRequest, errors.New(why))
}

func (c *Core) subject() Subject { return Subject{c.c.Cluster, c.kept.Agent} }

// prepare makes a request where one is needed. It is published once it is in the Secret.
func (c *Core) prepare() {
	// Who looks whether the broker takes the certificate again goes on with its request if not.
	if p := c.kept.Pending; p != nil && (p.As != c.as && c.connected(Requests) || c.hidden(p)) {
		c.kept.Pending, c.sent = nil, time.Time{}
	}
	if c.kept.Pending != nil || !c.wanted() {
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
	c.kept.Pending = &Pending{Name: c.c.Cluster + "-" + c.c.Name(), Key: key, Request: request, As: c.as, Bootstrap: c.bootstrap}
}

// hidden reports whether the hub has a request, and does not show it to who comes with the
// present bootstrap file: t1 the request is made, t2 there is another file, of another account,
// therefore nobody here would hear of the answer.
func (c *Core) hidden(p *Pending) bool {
	return p.As == Bootstrapping && p.Bootstrap != c.bootstrap && c.connected(Requests) && c.pendingState() == nil &&
		!c.sent.IsZero() && c.due(c.sent.Add(unseen))
}

// wanted reports whether a certificate is needed. One that the hub does not accept at
// present would be denied.
func (c *Core) wanted() bool {
	if c.as == Bootstrapping {
		return true
	}
	return (c.cluster == nil && !c.missing() || c.isAccepted()) && (c.rotates() || c.due(c.RenewAt()))
}

// RenewAt is when the certificate is to be renewed: after 75 to 80 % of its life, which a
// signer may have let begin in the past.
func (c *Core) RenewAt() time.Time {
	own := c.kept.Credential
	if own == nil {
		return time.Time{}
	}
	from := own.NotBefore
	switch at := c.obtained.Round(0); { // by the clock, not by the time that has passed
	case at.After(c.now.Round(0)): // it was wrong then
	case !at.Before(own.NotAfter): // it is wrong now
		return c.obtained.Add(min(lastRequest, own.NotAfter.Sub(from)/2))
	case at.After(from):
		from = at
	}
	lifetime := own.NotAfter.Sub(from)
	return from.Add(time.Duration((0.75 + c.spread/20) * float64(lifetime)))
}

// undecided counts the requests of agents of this cluster that nobody has decided about.
func (c *Core) undecided() (n int) {
	for _, r := range c.requests {
		if _, addon := r.Labels[addonLabel]; !addon && len(r.Status.Certificate) == 0 && len(r.Status.Conditions) == 0 {
			n++
		}
	}
	return n
}

// request publishes the pending request, and again if it does not show.
func (c *Core) request() *Publish {
	p := c.kept.Pending
	if p == nil || !c.connected(Requests) || c.flight[CreateRequest] || !c.kept.equal(c.saved) || c.pendingState() != nil {
		return nil
	}
	if !c.sent.IsZero() && !c.due(c.sent.Add(unseen)) || !c.due(c.publishRetry.until) {
		return nil
	}
	return &Publish{What: CreateRequest, Object: &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: map[string]string{clusterv1.ClusterNameLabelKey: c.c.Cluster}},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: p.Request, SignerName: Signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth},
		},
	}}
}

func (c *Core) requestCreated(now time.Time, o runtime.Object, err error) {
	p := c.kept.Pending
	if r, ok := o.(*certificatesv1.CertificateSigningRequest); !ok || p == nil || r.Name != p.Name {
		return // of a request that was given up meanwhile
	}
	if err != nil && reasonOf(err) != metav1.StatusReasonAlreadyExists {
		c.publishRetry.failed(now, c.c.Random(), firstRetry, lastRetry, err)
		return
	}
	c.publishRetry, c.sent = retry{}, now
}

// pendingState is what the hub shows of the pending request, nil if it does not.
func (c *Core) pendingState() *certificatesv1.CertificateSigningRequest {
	for _, r := range c.requests {
		if c.kept.Pending != nil && r.Name == c.kept.Pending.Name {
			return r
		}
	}
	return nil
}
