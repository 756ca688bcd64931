package registration

import (
	"crypto/tls"
	"errors"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Kind is one of the streams.
type Kind int

// The streams. While bootstrapping there is none of Leases.
const (
	Clusters Kind = iota
	Requests
	Leases
	kinds
)

// What is something that the agent asks the hub for.
type What int

// What there is to ask for. At most one of each is under way.
const (
	CreateCluster What = iota
	CreateRequest
	ReportStatus
	RenewLease
	whats
)

// String is for logs and metrics.
func (w What) String() string {
	return [...]string{"create_cluster", "create_request", "report_status", "renew_lease"}[w]
}

// Effect is one of [Connect], [Save], [ActivateCertificate], [MigrateConnections], [Publish] and [NotifyAccepted].
type Effect interface{ effect() }

// Connect ends the sessions that there are, and begins others.
type Connect struct{ As CredentialKind }

// Save writes the Secret. The result goes to [Core.Saved].
type Save struct{ Kept SavedState }

// ActivateCertificate has new connections use a certificate; nil: there is none.
type ActivateCertificate struct{ Credential *Credential }

// MigrateConnections has connections with the former certificate give way to ones with the present one.
type MigrateConnections struct{}

// Publish asks the hub for something. The result goes to [Core.Published] with Life.
type Publish struct {
	What   What
	Object runtime.Object
	Epoch  int
}

// NotifyAccepted says that the hub accepted the cluster: works may flow now.
type NotifyAccepted struct{}

func (Connect) effect()             {}
func (Save) effect()                {}
func (ActivateCertificate) effect() {}
func (MigrateConnections) effect()  {}
func (Publish) effect()             {}
func (NotifyAccepted) effect()      {}

// CoreConfig is what a Core needs; everything is required.
type CoreConfig struct {
	// Cluster and Hub are of whom the certificate is to be, and for which hub.
	Cluster, Hub string
	// Config is what to write down about how the broker is reached.
	Config []byte
	// Random returns numbers in [0, 1), Name five random letters or digits.
	Random func() float64
	Name   func() string
	// NewKey is [NewKey].
	NewKey func(Subject) (key, request []byte, err error)
}

// Core decides what an agent does to be part of a fleet. Tell it what happened, then call
// Step, perform the effects in their order, and call Step again when something else has
// happened or [Core.Next] has come. It is not safe for concurrent use.
type Core struct {
	c CoreConfig

	kept, saved SavedState
	// bootstrap says which bootstrap file there is now.
	bootstrap string
	// as is how the sessions connect, "" before the first Step; life counts those changes.
	as    CredentialKind
	epoch int
	// reregister: a registration begins although there is a certificate. trial.until is how long that may
	// take before the certificate is tried again, and when the next may begin; certificateRefused: it began
	// because the broker refused the certificate.
	reregister, certificateRefused bool
	certificateRetry               retry
	// used is the certificate that the last Use named; inUse: there was one.
	used  *Credential
	inUse bool
	// obtained is when the certificate came, zero after a restart.
	obtained time.Time
	// spread is the random part of when to renew.
	spread float64
	// fresh: a certificate came, and the hub has not heard of it by a renewal of the Lease.
	fresh bool
	// move is when connections with the former certificate are to end, zero if there are none.
	move time.Time

	streams [kinds]stream
	flight  [whats]bool
	saving  bool

	// What the hub shows.
	cluster  *clusterv1.ManagedCluster
	gone     bool // it was there, and was deleted
	accepted bool
	lease    *coordinationv1.Lease
	requests map[types.UID]*certificatesv1.CertificateSigningRequest

	facts         Facts
	known         bool      // facts are
	noAnswerSince time.Time // since when the managed cluster does not answer, zero if it does
	reported      reported
	leaseDue      time.Time

	secret, create, publishRetry, renew retry
	// sent is when the hub took the pending request, or said that it has it.
	sent time.Time

	now  time.Time
	next time.Time
}

// stream is what is known of one.
type stream struct {
	since  time.Time // zero: it does not run
	listed time.Time // when it had said what there is, zero before
	err    error     // why it does not run
}

// Times.
const (
	// showFirst is how long a stream shows what there is before a request is made.
	showFirst = time.Second
	// unseen is how long something may be missing on a stream before it counts as not there.
	unseen = 30 * time.Second
	// firstRetry and lastRetry bound the wait after a failure, firstRequest and lastRequest
	// that after a request that was denied or removed.
	firstRetry   = time.Second
	lastRetry    = 30 * time.Second
	firstRequest = 30 * time.Second
	lastRequest  = time.Hour
	// firstTrial and lastTrial bound the time that a registration takes by which one with a good
	// certificate begins again.
	firstTrial = 5 * time.Minute
	lastTrial  = time.Hour
	// lastMove bounds how long connections keep a certificate that was replaced.
	lastMove = time.Hour
	// recreate is when a ManagedCluster is created once more that does not show; up to twice
	// that.
	recreate = time.Hour
	// MaxPending is how many requests of this cluster may wait on the hub for this agent to
	// make one.
	MaxPending = 5
	// noUID is in the list of ManagedClusters of an agent that has none: that the hub says it is
	// gone is the only sign that it has compared the list. A broker that does not know yet what
	// there is takes the list as well.
	noUID types.UID = "nobody"
)

// NewCore returns a Core that begins with what the Secret keeps.
func NewCore(c CoreConfig, k SavedState, bootstrap string) *Core {
	core := &Core{c: c, kept: k, saved: k, bootstrap: bootstrap, requests: map[types.UID]*certificatesv1.CertificateSigningRequest{}}
	if k.Agent == "" {
		core.kept = SavedState{Agent: c.Name()}
	}
	if bootstrap == "" {
		core.bootstrap = k.Bootstrap
	}
	core.kept.Cluster, core.kept.Hub, core.kept.Config = c.Cluster, c.Hub, c.Config
	core.spread = c.Random()
	return core
}

// Bootstrap says which bootstrap file there is now, "" for one that cannot be read: that is none.
// Who gives the agent another one wants it to join, also where the hub has removed its
// ManagedCluster.
func (c *Core) Bootstrap(id string) {
	if id != "" && id != c.bootstrap {
		c.bootstrap, c.create, c.renew, c.certificateRetry, c.reregister = id, retry{}, retry{}, retry{}, false
	}
}

// Learned takes what the managed cluster says of itself. Of what could not be read, what it said
// before counts.
func (c *Core) Learned(now time.Time, f Facts) {
	switch {
	case f.Healthy:
		c.noAnswerSince = time.Time{}
	case c.noAnswerSince.IsZero():
		c.noAnswerSince = now
	}
	c.facts, c.known = f.over(c.facts), true
}

// Connected says that a stream runs. What it showed before still counts: the agent lists
// that, and hears of what is gone.
func (c *Core) Connected(now time.Time, k Kind) {
	c.streams[k] = stream{since: now}
	if k == Leases && c.fresh && c.move.IsZero() {
		c.fresh, c.leaseDue = false, now // what was asked for takes effect with it
	}
}

// Disconnected says that a stream does not run, and why. The broker may not have been reached.
func (c *Core) Disconnected(k Kind, err error) { c.streams[k] = stream{err: err} }

// refused reports whether the broker does not take who comes. Where it is the agent that does not take
// the broker's certificate, another one of its own would not help.
func (c *Core) refused() bool {
	s := c.streams[Clusters]
	return s.since.IsZero() && s.err != nil && transport.CodeOf(s.err) == transport.CodeUnauthenticated && !errors.As(s.err, new(*tls.CertificateVerificationError))
}

// outdated reports whether the broker takes no certificate as old as this one, and the hub has not let the cluster
// go: one that was detached asks again when its bootstrap Secret is another one.
func (c *Core) outdated() bool {
	var e *transport.Error
	detached := c.gone || c.cluster != nil && c.cluster.DeletionTimestamp != nil
	return !detached && c.refused() && errors.As(c.streams[Clusters].err, &e) && e.Attribute == transport.AttributeCertificate
}

// rotates reports whether the hub wants a certificate from after a time, and this one is from before.
func (c *Core) rotates() bool {
	if c.cluster == nil || c.kept.Credential == nil {
		return false
	}
	e, err := earliest.Parse(c.cluster.Annotations[earliest.RotateAnnotation])
	return err == nil && c.kept.Credential.Issued.Before(e.At)
}

// Saw takes an object that the hub showed.
func (c *Core) Saw(o runtime.Object) {
	switch o := o.(type) {
	case *clusterv1.ManagedCluster:
		if o.Name == c.c.Cluster {
			c.sawCluster(o)
		}
	case *certificatesv1.CertificateSigningRequest:
		if o.Labels[clusterv1.ClusterNameLabelKey] == c.c.Cluster {
			c.requests[o.UID] = o
		}
	case *coordinationv1.Lease:
		if o.Namespace == c.c.Cluster && o.Name == LeaseName {
			c.lease = o
		}
	}
}

func (c *Core) sawCluster(o *clusterv1.ManagedCluster) {
	if c.cluster == nil || c.cluster.UID != o.UID || c.cluster.ResourceVersion != o.ResourceVersion {
		c.reported.noteAnswer()
	}
	c.cluster, c.gone = o, false
}

// Gone says that the hub has an object no more.
func (c *Core) Gone(now time.Time, k Kind, uid types.UID) {
	switch {
	case k == Clusters && uid == noUID:
		c.streams[Clusters].listed = now
	case k == Clusters && c.cluster != nil && c.cluster.UID == uid:
		c.cluster, c.gone = nil, true
	case k == Leases && c.lease != nil && c.lease.UID == uid:
		c.lease = nil
	case k == Requests:
		if r := c.requests[uid]; r != nil {
			delete(c.requests, uid)
			if p := c.kept.Pending; p != nil && p.Name == r.Name {
				c.discard("the hub has removed the CertificateSigningRequest " + p.Name)
			}
		}
	}
}

// Held returns what a stream has shown, for the list that begins the next one.
func (c *Core) Held(k Kind) (all []types.UID) {
	switch {
	case k == Clusters && c.cluster == nil:
		all = append(all, noUID)
	case k == Clusters:
		all = append(all, c.cluster.UID)
	case k == Leases && c.lease != nil:
		all = append(all, c.lease.UID)
	case k == Requests:
		for uid := range c.requests {
			all = append(all, uid)
		}
	}
	return all
}

// Saved says what became of a Save.
func (c *Core) Saved(now time.Time, k SavedState, err error) {
	c.saving = false
	if err != nil {
		c.secret.failed(now, c.c.Random(), firstRetry, lastRetry, err)
		return
	}
	c.secret, c.saved = retry{}, k
}

// Published says what became of a Publish.
func (c *Core) Published(now time.Time, p Publish, err error) {
	if p.Epoch != c.epoch {
		return // of sessions that are no more
	}
	c.flight[p.What] = false
	switch p.What {
	case CreateCluster:
		c.clusterCreated(now, err)
	case CreateRequest:
		c.requestCreated(now, p.Object, err)
	case ReportStatus:
		c.reported.answered(now, c.c.Random(), err)
	case RenewLease:
		// Whatever the answer was, the next one is due a period later.
	default:
	}
}

// Next is when to call Step again although nothing has happened; zero: never.
func (c *Core) Next() time.Time { return c.next }

// due reports whether a time has come; if not, Step is called then.
func (c *Core) due(t time.Time) bool {
	if !c.now.Before(t) {
		return true
	}
	if c.next.IsZero() || t.Before(c.next) {
		c.next = t
	}
	return false
}

// Step returns what to do now.
func (c *Core) Step(now time.Time) (effects []Effect) {
	c.now, c.next = now, time.Time{}
	c.answers()
	c.choose()
	if c.used != c.kept.Credential || !c.inUse {
		c.used, c.inUse = c.kept.Credential, true
		effects = append(effects, ActivateCertificate{c.used})
	}
	if !c.move.IsZero() && c.due(c.move) {
		c.move = time.Time{}
		effects = append(effects, MigrateConnections{})
	}
	if as := c.way(); as != c.as {
		c.connectAs(as)
		effects = append(effects, Connect{as})
	}
	c.prepare()
	if !c.saving && !c.kept.equal(c.saved) && c.due(c.secret.until) {
		c.saving = true
		effects = append(effects, Save{c.kept})
	}
	for _, p := range []*Publish{c.creation(), c.request(), c.report(), c.renewal()} {
		if p != nil {
			p.Epoch, c.flight[p.What] = c.epoch, true
			effects = append(effects, *p)
		}
	}
	if accepted := c.isAccepted(); accepted != c.accepted {
		if c.accepted = accepted; accepted {
			effects = append(effects, NotifyAccepted{})
		}
	}
	return effects
}

// choose begins again where that is asked for, and where the broker does not take a certificate that has
// ended, or that is from before the earliest issue time of the cluster. Such a certificate is kept until there is another one: the local clock alone says that it has ended.
//
//	t1 the machine resumes, with a clock that is a year ahead, t2 the certificate has ended by it, t3 the
//	clock is set right, therefore the certificate is as good as before, and the token ended long ago
func (c *Core) choose() {
	if c.kept.Credential == nil {
		return
	}
	over, another := c.due(c.certificateRetry.until), c.bootstrap != c.kept.Bootstrap
	if c.reregister {
		// t1 the broker refuses the certificate for a moment, t2 it refuses the token too, which has
		// ended long ago, t3 it takes the certificate again.
		if c.refused() {
			c.reregister, c.certificateRetry.why = false, c.streams[Clusters].err
		} else if over && (c.certificateRefused || !c.connected(Clusters)) {
			c.reregister = false
		}
		return
	}
	if !over || !another && !c.ended() && !c.outdated() {
		return
	}
	c.certificateRefused = c.refused()
	if c.reregister = c.certificateRefused || another && c.missing(); c.reregister {
		c.certificateRetry.failed(c.now, c.c.Random(), firstTrial, lastTrial, nil)
	}
}

// missing reports whether the hub has no ManagedCluster of this cluster. What it has may come a
// moment after it was listed.
func (c *Core) missing() bool {
	s := c.streams[Clusters]
	return c.as == Registered && c.cluster == nil && (c.gone || !s.listed.IsZero() && c.due(s.listed.Add(unseen)))
}

// ended reports whether the certificate has ended by the local clock.
func (c *Core) ended() bool { return c.kept.Credential != nil && c.due(c.kept.Credential.NotAfter) }

func (c *Core) way() CredentialKind {
	if c.kept.Credential == nil || c.reregister {
		return Bootstrapping
	}
	return Registered
}

// connectAs forgets what the sessions of another identity have shown.
func (c *Core) connectAs(as CredentialKind) {
	c.as = as
	c.epoch++
	c.streams, c.flight = [kinds]stream{}, [whats]bool{}
	c.cluster, c.gone, c.lease = nil, false, nil
	clear(c.requests)
	c.reported, c.create, c.publishRetry, c.sent = reported{}, retry{}, retry{}, time.Time{}
	c.leaseDue = time.Time{}
}

// connected reports whether a stream runs.
func (c *Core) connected(k Kind) bool { return !c.streams[k].since.IsZero() }

// isAccepted reports whether the hub has accepted the cluster. Its spec says so, with OCM's
// controllers too, which write the condition HubAcceptedManagedCluster after it.
func (c *Core) isAccepted() bool {
	return c.as == Registered && c.cluster != nil && c.cluster.Spec.HubAcceptsClient
}
