package registration

import (
	"crypto/tls"
	"errors"
	"maps"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Kind is the kind of a stream.
type Kind int

// The streams. Leases has none while bootstrapping.
const (
	Clusters Kind = iota
	Requests
	Leases
	numKinds
)

// RequestKind is the kind of a request to the hub.
type RequestKind int

// The requests. At most one of each is in flight.
const (
	CreateCluster RequestKind = iota
	CreateRequest
	ReportStatus
	RenewLease
	numRequestKinds
)

// String returns the name for logs and metrics.
func (w RequestKind) String() string {
	return [...]string{"create_cluster", "create_request", "report_status", "renew_lease"}[w]
}

// Effect is one of [Connect], [Save], [ActivateCertificate], [MigrateConnections], [Publish] and [NotifyAccepted].
type Effect interface{ effect() }

// Connect ends the present sessions and begins others.
type Connect struct{ Credential CredentialKind }

// Save writes the Secret. The result goes to [Core.Saved].
type Save struct{ State SavedState }

// ActivateCertificate makes new connections use a certificate; nil: none.
type ActivateCertificate struct{ Credential *Credential }

// MigrateConnections replaces connections with the former certificate by connections with the present one.
type MigrateConnections struct{}

// Publish sends a request to the hub. The result goes to [Core.Published] with the same Epoch.
type Publish struct {
	Request RequestKind
	Object  runtime.Object
	Epoch   int
}

// NotifyAccepted reports that the hub has accepted the cluster: works may flow now.
type NotifyAccepted struct{}

func (Connect) effect()             {}
func (Save) effect()                {}
func (ActivateCertificate) effect() {}
func (MigrateConnections) effect()  {}
func (Publish) effect()             {}
func (NotifyAccepted) effect()      {}

// CoreConfig configures a Core; all fields are required.
type CoreConfig struct {
	// Cluster is the cluster name in the certificate, Hub the identity of its hub.
	Cluster, Hub string
	// Config is the broker connection in the form of config.yaml; it is stored in the Secret.
	Config []byte
	// Random returns numbers in [0, 1), Name five random letters or digits.
	Random func() float64
	Name   func() string
	// NewKey creates a key and a certificate request; see the function [NewKey].
	NewKey func(ocm.Subject) (key, request []byte, err error)
}

// Core decides how an agent joins a fleet and stays in it. The caller reports events, calls Step, and performs
// the effects in order. It calls Step again after each event and when [Core.Next] has come. A Core is not safe
// for concurrent use.
type Core struct {
	c CoreConfig

	state, saved SavedState
	// bootstrap identifies the present bootstrap file.
	bootstrap string
	// credentialKind is how the sessions connect, "" before the first Step. epoch counts changes of it.
	credentialKind CredentialKind
	epoch          int
	// reregister: the agent registers again although it has a certificate. certificateRefused: the reason is that
	// the broker refused the certificate. certificateRetry.until ends this registration, so that the certificate is
	// retried; it is also when the next one may begin.
	reregister, certificateRefused bool
	certificateRetry               retry
	// used is the certificate of the last ActivateCertificate; inUse: there was one.
	used  *Credential
	inUse bool
	// obtained is when the certificate arrived, zero after a restart.
	obtained time.Time
	// spread is the random part of the renewal time.
	spread float64
	// fresh: a certificate arrived, and the Lease was not renewed with it yet.
	fresh bool
	// move is when connections with the former certificate are closed, zero if there are none.
	move time.Time

	streams [numKinds]stream
	flight  [numRequestKinds]bool
	saving  bool

	// The state of the hub, as shown by the streams.
	cluster  *clusterv1.ManagedCluster
	gone     bool // the ManagedCluster existed and was deleted
	accepted bool
	lease    *coordinationv1.Lease
	requests map[types.UID]*certificatesv1.CertificateSigningRequest

	facts         Facts
	known         bool      // facts were read
	noAnswerSince time.Time // since when the managed cluster gives no answer, zero if it answers
	reported      reported
	leaseDue      time.Time

	secret, create, publishRetry, renew retry
	// sent is when the hub accepted the pending request, or answered that it has it.
	sent time.Time

	now  time.Time
	next time.Time
}

// stream is the state of one stream.
type stream struct {
	since  time.Time // zero: it is not connected
	listed time.Time // when its list was complete, zero before
	err    error     // why it is not connected
}

// Intervals and limits.
const (
	// showFirst is the time for a stream to show the present objects before a request is created.
	showFirst = time.Second
	// unseen is the time after which an object that a stream does not show counts as absent.
	unseen = 30 * time.Second
	// firstRetry and lastRetry bound the wait after a failure. firstRequest and lastRequest bound the wait after a
	// denied or removed request.
	firstRetry   = time.Second
	lastRetry    = 30 * time.Second
	firstRequest = 30 * time.Second
	lastRequest  = time.Hour
	// firstTrial and lastTrial bound the duration of a new registration of an agent that still has a valid
	// certificate.
	firstTrial = 5 * time.Minute
	lastTrial  = time.Hour
	// lastMove bounds the time for which connections keep a replaced certificate.
	lastMove = time.Hour
	// recreate is the minimum wait before a ManagedCluster that does not show is created again. A random time up to
	// recreate is added.
	recreate = time.Hour
	// MaxPending bounds the pending requests of this cluster on the hub. With that many the agent creates none.
	MaxPending = 5
	// noUID is in the list of ManagedClusters of an agent that knows none. When the hub reports noUID as
	// deleted, it has compared the list; there is no other sign. A broker whose hub cache is incomplete also
	// accepts the list.
	noUID types.UID = "none"
)

// NewCore returns a Core with the state of the Secret.
func NewCore(c CoreConfig, k SavedState, bootstrap string) *Core {
	core := &Core{c: c, state: k, saved: k, bootstrap: bootstrap, requests: map[types.UID]*certificatesv1.CertificateSigningRequest{}}
	if k.Agent == "" {
		core.state = SavedState{Agent: c.Name()}
	}
	if bootstrap == "" {
		core.bootstrap = k.Bootstrap
	}
	core.state.Cluster, core.state.Hub, core.state.Config = c.Cluster, c.Hub, c.Config
	core.spread = c.Random()
	return core
}

// Bootstrap sets the id of the present bootstrap file. "" means that the file is unreadable, and changes
// nothing. A new file starts a new attempt to join, even if the hub has removed the ManagedCluster.
func (c *Core) Bootstrap(id string) {
	if id != "" && id != c.bootstrap {
		c.bootstrap, c.create, c.renew, c.certificateRetry, c.reregister = id, retry{}, retry{}, retry{}, false
	}
}

// Learned updates the facts of the managed cluster. Facts that could not be read keep their previous values.
func (c *Core) Learned(now time.Time, f Facts) {
	switch {
	case f.Healthy:
		c.noAnswerSince = time.Time{}
	case c.noAnswerSince.IsZero():
		c.noAnswerSince = now
	}
	c.facts, c.known = f.over(c.facts), true
}

// Connected records that a stream is connected. Objects that it showed before stay: the agent lists them, and
// the hub reports the deleted ones.
func (c *Core) Connected(now time.Time, k Kind) {
	c.streams[k] = stream{since: now}
	if k == Leases && c.fresh && c.move.IsZero() {
		c.fresh, c.leaseDue = false, now // values from the request take effect with the certificate
	}
}

// Disconnected records that a stream is not connected, and why. The broker may not have been reached.
func (c *Core) Disconnected(k Kind, err error) { c.streams[k] = stream{err: err} }

// refused reports whether the broker rejects the agent's credentials. It is false if the agent rejects the
// broker's certificate, because new credentials of the agent would not help.
func (c *Core) refused() bool {
	s := c.streams[Clusters]
	return s.since.IsZero() && s.err != nil && transport.CodeOf(s.err) == transport.CodeUnauthenticated && !errors.As(s.err, new(*tls.CertificateVerificationError))
}

// outdated reports whether the broker rejects the certificate because of its age, and the cluster is not
// detached. A detached cluster registers again only with a new bootstrap Secret.
func (c *Core) outdated() bool {
	var e *transport.Error
	detached := c.gone || c.cluster != nil && c.cluster.DeletionTimestamp != nil
	return !detached && c.refused() && errors.As(c.streams[Clusters].err, &e) && e.Attribute == transport.AttributeCertificate
}

// rotates reports whether the hub requires a certificate issued after a given time, and this one is older.
func (c *Core) rotates() bool {
	if c.cluster == nil || c.state.Credential == nil {
		return false
	}
	e, err := earliest.Parse(c.cluster.Annotations[earliest.RotateAnnotation])
	return err == nil && c.state.Credential.Issued.Before(e.At)
}

// StoreObject stores an object that the hub showed.
func (c *Core) StoreObject(o runtime.Object) {
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
		if o.Namespace == c.c.Cluster && o.Name == ocm.LeaseName {
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

// RemoveObject removes an object that the hub no longer has.
func (c *Core) RemoveObject(now time.Time, k Kind, uid types.UID) {
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
			if p := c.state.Pending; p != nil && p.Name == r.Name {
				c.discard("the hub has removed the CertificateSigningRequest " + p.Name)
			}
		}
	}
}

// ObjectUIDs returns the objects that a stream has shown, for the first list of the next one.
func (c *Core) ObjectUIDs(k Kind) (all []types.UID) {
	switch {
	case k == Clusters && c.cluster == nil:
		all = append(all, noUID)
	case k == Clusters:
		all = append(all, c.cluster.UID)
	case k == Leases && c.lease != nil:
		all = append(all, c.lease.UID)
	case k == Requests:
		return slices.Collect(maps.Keys(c.requests))
	}
	return all
}

// Saved records the result of a Save.
func (c *Core) Saved(now time.Time, k SavedState, err error) {
	c.saving = false
	if err != nil {
		c.secret.failed(now, c.c.Random(), firstRetry, lastRetry, err)
		return
	}
	c.secret, c.saved = retry{}, k
}

// Published records the result of a Publish.
func (c *Core) Published(now time.Time, p Publish, err error) {
	if p.Epoch != c.epoch {
		return // of former sessions
	}
	c.flight[p.Request] = false
	switch p.Request {
	case CreateCluster:
		c.clusterCreated(now, err)
	case CreateRequest:
		c.requestCreated(now, p.Object, err)
	case ReportStatus:
		c.reported.answered(now, c.c.Random(), err)
	case RenewLease:
		// The next renewal is due one period later, also after an error.
	default:
	}
}

// Next returns when to call Step again if no event comes before; zero: never.
func (c *Core) Next() time.Time { return c.next }

// due reports whether a time has come. If not, Next is at most t.
func (c *Core) due(t time.Time) bool {
	if !c.now.Before(t) {
		return true
	}
	if c.next.IsZero() || t.Before(c.next) {
		c.next = t
	}
	return false
}

// Step returns the effects to perform now.
func (c *Core) Step(now time.Time) (effects []Effect) {
	c.now, c.next = now, time.Time{}
	c.answers()
	c.choose()
	if c.used != c.state.Credential || !c.inUse {
		c.used, c.inUse = c.state.Credential, true
		effects = append(effects, ActivateCertificate{c.used})
	}
	if !c.move.IsZero() && c.due(c.move) {
		c.move = time.Time{}
		effects = append(effects, MigrateConnections{})
	}
	if as := c.way(); as != c.credentialKind {
		c.connectAs(as)
		effects = append(effects, Connect{as})
	}
	c.prepare()
	if !c.saving && !c.state.equal(c.saved) && c.due(c.secret.until) {
		c.saving = true
		effects = append(effects, Save{c.state})
	}
	for _, p := range []*Publish{c.creation(), c.request(), c.report(), c.renewal()} {
		if p != nil {
			p.Epoch, c.flight[p.Request] = c.epoch, true
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

// choose starts a new registration in two cases: a new bootstrap file requires it, or the broker rejects an old
// certificate. Old means expired, or older than the earliest issue time of the cluster. Such a certificate is
// kept until there is another one, because only the local clock shows it as expired.
//
// Scenario:
//
//	t1: the machine resumes with a clock that is one year ahead.
//	t2: the certificate has expired by this clock.
//	t3: the clock is corrected.
//
// Result: the certificate is valid again. The bootstrap token has expired long ago and would not help.
func (c *Core) choose() {
	if c.state.Credential == nil {
		return
	}
	over, another := c.due(c.certificateRetry.until), c.bootstrap != c.state.Bootstrap
	if c.reregister {
		// Scenario:
		//   t1: the broker refuses the certificate for a moment.
		//   t2: it refuses the token too, which expired long ago.
		//   t3: it accepts the certificate again.
		// Result: the agent returns to the certificate.
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

// missing reports whether the hub has no ManagedCluster of this cluster. Objects of the hub may show a moment
// after the list was complete.
func (c *Core) missing() bool {
	s := c.streams[Clusters]
	return c.credentialKind == Registered && c.cluster == nil && (c.gone || !s.listed.IsZero() && c.due(s.listed.Add(unseen)))
}

// ended reports whether the certificate has expired by the local clock.
func (c *Core) ended() bool { return c.state.Credential != nil && c.due(c.state.Credential.NotAfter) }

func (c *Core) way() CredentialKind {
	if c.state.Credential == nil || c.reregister {
		return Bootstrapping
	}
	return Registered
}

// connectAs switches the credentials and drops everything that the former sessions have shown.
func (c *Core) connectAs(as CredentialKind) {
	c.credentialKind = as
	c.epoch++
	c.streams, c.flight = [numKinds]stream{}, [numRequestKinds]bool{}
	c.cluster, c.gone, c.lease = nil, false, nil
	clear(c.requests)
	c.reported, c.create, c.publishRetry, c.sent = reported{}, retry{}, retry{}, time.Time{}
	c.leaseDue = time.Time{}
}

// connected reports whether a stream is connected.
func (c *Core) connected(k Kind) bool { return !c.streams[k].since.IsZero() }

// isAccepted reports whether the hub has accepted the cluster. The spec decides: OCM's controllers write the
// condition HubAcceptedManagedCluster after it.
func (c *Core) isAccepted() bool {
	return c.credentialKind == Registered && c.cluster != nil && c.cluster.Spec.HubAcceptsClient
}
