package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/feedback"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/outbox"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Tracker reports objects that are no longer as they were left. A *drift.Watcher is one.
type Tracker interface {
	// Track replaces the objects that a key tracks and the expected state of each: by content, or exactly where
	// every change of the object matters.
	Track(key string, expected map[kubeclient.Ref]drift.Signature)
	// LastSeen returns the state in which an object was last seen, if known. The zero ObservedObject means absent.
	LastSeen(ref kubeclient.Ref) (s drift.ObservedObject, ok bool)
	// Begin and End enclose the writes of a key. RecordWrite records the exact signature that each write left. The
	// watch then does not report this state as a change, whether it shows it before or after. Other changes are
	// reported to the key at End.
	Begin(key string)
	RecordWrite(key string, ref kubeclient.Ref, s drift.Signature)
	End(key string)
	// Unwatched returns 0 if all objects of a key are watched. Else it returns the number of unwatched objects of
	// all keys.
	Unwatched(key string) int
}

// CoreConfig configures a Core. All fields but Roles, Policies, Guard, Journal, Log and Metrics are required.
type CoreConfig struct {
	// Cluster is the name of the cluster. ClientID is the source of the agent's events.
	Cluster, ClientID string
	// Version is sent to the broker; see Config.
	Version string
	// HubHash and AgentID are recorded in AppliedManifestWorks; see Config.
	HubHash, AgentID string
	// StatusSyncInterval is the interval at which objects are read that cannot be watched.
	StatusSyncInterval time.Duration
	// Feedback reads the status values that works request.
	Feedback feedback.Reader
	// EvictionGracePeriod is the time from the proof that no source wants a work until its AppliedManifestWork is
	// removed; 100 years or more disable eviction.
	EvictionGracePeriod time.Duration

	Client  kubeclient.Client
	Tracker Tracker
	// Roles may be nil: then permissions of executors are checked every few minutes.
	Roles Roles
	// Policies watches admission policies and calls Core.PoliciesChanged. nil: refused writes are retried every
	// few minutes.
	Policies Roles
	// KeepPermits reuses permissions of executors while roles are watched and unchanged, instead of a check before
	// each write.
	KeepPermits bool
	// Guard decides which objects no work may have; nil: none are forbidden.
	Guard *workpolicy.Guard
	// OwnWrites are the writes of the process on the cluster besides AppliedManifestWorks.
	OwnWrites []kubeclient.Write
	// InFlight is the number of objects of one work that are read or written concurrently. 0 means 1.
	InFlight int
	// Journal stores the desired state across restarts; nil: it is not stored.
	Journal Journal
	// Wait sleeps between attempts to write one object.
	Wait func(ctx context.Context, d time.Duration) error
	Now  func() time.Time
	// Random returns numbers in [0, 1).
	Random func() float64
	// NewID creates ids of events.
	NewID func() string

	// The Core calls these functions when a call is due. They must neither block nor call the Core. Wake: Reconcile
	// of a key, at once; fresh resets the back-off of earlier failures. Later: Reconcile of a key after the given
	// time, unless it is due before. Send: NextReport has a status for an id. Sync: NextSync has an event after the
	// given time. Save, only with a Journal: Save is due after the given time.
	Wake  func(key string, fresh bool)
	Later func(key string, after time.Duration)
	Send  func(id string)
	Sync  func(after time.Duration)
	Save  func(after time.Duration)

	Log     *slog.Logger
	Metrics *Metrics
}

// Core decides all actions of the agent. Start comes first. Hello, Subscribed, Handle and Disconnected are
// called one at a time, in the order of session.Handler. The others may be called concurrently, with these
// limits:
//   - Reconcile for different keys only;
//   - NextReport and ReportDone for different ids only;
//   - NextSync and SyncDone one after the other.
//
// A key is the name of an AppliedManifestWork. All work on one key is serialized: that on works of one name and
// on the objects recorded there.
type Core struct {
	*works
	*tools
	subscription *subscriptionState
	persister    *persister
	roles        *roleState
	// policies is the state of the watch of admission policies.
	policies *roleState
	causes   *causes // guarded by works.mu
	orphans  *orphans
	sessions *sourceSessions

	limited atomic.Pointer[error] // see Limit
}

// works has the desired state and the reported state. Its mutex guards all parts of a Core, unless a part
// documents another rule.
type works struct {
	config *CoreConfig

	mu         sync.Mutex
	clusterUID string
	history    int // number of changes of the cluster's history
	set        *desired.Set
	outbox     outbox.Outbox
	states     map[string]*keyState
	connected  bool
	stuck      map[string]bool // keys, see noteStuck
}

// tools read and write cluster objects.
type tools struct {
	store      appliedwork.Store
	remover    appliedwork.Remover
	applier    apply.Applier
	rules      conditionrules.Evaluator
	lastRecord *lastRecord
}

// NewCore returns an empty Core.
func NewCore(c CoreConfig) *Core {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	w := &works{
		config: &c,
		set:    desired.New(),
		outbox: outbox.Outbox{AgentID: c.ClientID, NewID: c.NewID, Remember: c.Journal != nil},
		states: map[string]*keyState{},
		stuck:  map[string]bool{},
	}
	l := &subscriptionState{}
	k, last := newPersister(w, l), &lastRecord{}
	return &Core{
		works: w, subscription: l, persister: k, orphans: newOrphans(w, l, k), roles: &roleState{waiting: map[string]int{}},
		policies: &roleState{waiting: map[string]int{}}, causes: newCauses(), sessions: newSourceSessions(&c),
		tools: &tools{
			lastRecord: last,
			store:      appliedwork.Store{Objects: c.Client, HubHash: c.HubHash, AgentID: c.AgentID, Wrote: last.note},
			remover:    appliedwork.Remover{Client: c.Client, InFlight: c.InFlight, Guard: c.Guard, Done: func(d appliedwork.RemovalAction, err error) { c.Metrics.write(string(d), err == nil) }},
			applier:    apply.Applier{Objects: c.Client, Wait: c.Wait, Guard: c.Guard},
		},
	}
}

// keyOf returns the key of a work name.
func (w *works) keyOf(workName string) string { return appliedwork.Name(w.config.HubHash, workName) }

// workName returns the work name of a key of this hub.
func (w *works) workName(key string) (name string, ok bool) {
	return strings.CutPrefix(key, w.config.HubHash+"-")
}

// save requests a call of Save.
func (w *works) save(after time.Duration) {
	if w.config.Journal != nil {
		w.config.Save(after)
	}
}

// Start loads the state of an earlier process from the journal. It is called once, before all other methods.
// clusterUID is the uid of the namespace kube-system. The error means that this release cannot read the
// journal.
func (c *Core) Start(clusterUID string) error {
	c.mu.Lock()
	c.clusterUID = clusterUID
	c.mu.Unlock()
	if c.config.Journal == nil {
		return nil
	}
	return c.persister.load()
}

// Hello returns the parameters of the next subscribe call.
func (c *Core) Hello() transport.Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	return transport.Hello{Protocol: protocol, Cursor: c.subscription.cursor.String(), ClusterUID: c.clusterUID, Version: c.config.Version}
}

// Subscribed begins a connection. It returns the events to publish at once: the list of all held works, unless
// the broker resumes from the cursor.
func (c *Core) Subscribed(a transport.Accepted) ([]codec.Event, error) {
	c.mu.Lock()
	c.connected = true
	resumed := c.subscription.begin(a)
	var events []codec.Event
	var err error
	if resumed {
		c.set.Continued(c.subscription.cursor.Revision)
	} else {
		c.persister.refused()
		c.set.Subscribed(c.subscription.hawser)
		var e codec.Event
		if e, err = c.list(); err == nil {
			events = []codec.Event{e}
		}
	}
	waiting := c.outbox.Reconnected(resumed)
	c.mu.Unlock()
	if !resumed {
		c.save(0)
	}
	if err != nil {
		return nil, err
	}
	for _, id := range waiting {
		c.config.Send(id)
	}
	return events, nil
}

// Disconnected ends a connection: statuses wait for the next one.
func (c *Core) Disconnected(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = false
	c.subscription.end(err)
}

// Handle processes a received event. Every event counts as received. Errors are reported to the source if
// possible, else logged.
func (c *Core) Handle(ctx context.Context, e codec.Event) {
	t, err := codec.ParseEventType(e.Type())
	if err == nil && !c.counts(ctx, e) {
		return
	}
	switch {
	case e.Type() == codec.TypeCheckpoint:
		c.checkpoint(ctx, e)
	case e.Type() == codec.TypeResolveOrphan:
		c.resolve(ctx, e)
	case err != nil, t.DataType != codec.ManifestBundles:
		c.drop(ctx, eventIgnored, e)
	case t.Subresource == codec.Status && t.Action == codec.ResyncRequest:
		c.answer(ctx, e)
	case t.Subresource == codec.Spec && t.Action != codec.ResyncRequest:
		c.receive(ctx, e)
	default:
		c.drop(ctx, eventIgnored, e)
	}
}

// drop counts an event that does not concern this agent.
func (c *Core) drop(ctx context.Context, outcome string, e codec.Event) {
	c.config.Metrics.event(outcome)
	c.config.Log.DebugContext(ctx, "event is not for this agent", "type", e.Type(), "reason", outcome)
}

// answer sends the statuses that differ from the versions in a request. It ignores the request's cluster.
func (c *Core) answer(ctx context.Context, e codec.Event) {
	hashes, err := codec.DecodeHashes(e.Data())
	if err != nil {
		c.config.Metrics.event(eventUndecodable)
		c.config.Log.WarnContext(ctx, "unreadable status resync request", "error", err)
		return
	}
	c.config.Metrics.event(eventRequested)
	requested := resync.NewStatuses(hashes)
	var ids []string
	c.mu.Lock()
	c.outbox.Each(func(id, hash string, deleted bool) {
		if requested.Needs(resync.Status{ID: id, Hash: hash, Final: deleted}) {
			c.outbox.Request(id, codec.ResyncResponse)
			ids = append(ids, id)
		}
	})
	c.mu.Unlock()
	for _, id := range ids {
		c.config.Send(id)
	}
}

// receive processes a spec or a deletion.
func (c *Core) receive(ctx context.Context, e codec.Event) {
	if name, _, err := codec.StringExtension(e, codec.ExtClusterName); err != nil || name != c.config.Cluster {
		c.drop(ctx, eventElsewhere, e)
		return
	}
	spec, err := manifestwork.DecodeSpec(e)
	problem := ""
	var invalid *manifestwork.InvalidError
	switch {
	case errors.As(err, &invalid):
		problem = invalid.Problem
	case err != nil:
		c.config.Metrics.event(eventUndecodable)
		c.config.Log.WarnContext(ctx, "unreadable spec: its work is unknown", "source", e.Source(), "error", err)
		return
	}
	c.number(spec, e)
	d, repeat := c.accept(spec, problem)
	c.config.Metrics.event(string(d.Outcome))
	log := c.config.Log.With("work", spec.Name, "id", spec.ResourceID, "version", spec.Version, "revision", spec.Revision)
	switch {
	case d.Outcome == desired.Foreign:
		log.WarnContext(ctx, "event rejected: another source owns the work with this name or id", "source", spec.Source)
	case problem != "":
		log.WarnContext(ctx, "unusable work", "outcome", d.Outcome, "problem", problem)
	default:
		log.DebugContext(ctx, "spec received", "outcome", d.Outcome, "deleting", spec.Deleting)
	}
	if repeat {
		c.config.Send(spec.ResourceID)
	}
	for _, name := range d.Names {
		c.config.Wake(c.keyOf(name), true)
	}
}

// accept adopts a spec after it is on the journal. repeat: the sender does not have the status.
func (c *Core) accept(spec *manifestwork.Spec, problem string) (d desired.AcceptResult, repeat bool) {
	if c.config.Journal != nil {
		c.persister.disk.Lock()
		defer c.persister.disk.Unlock()
		c.mu.Lock()
		_, w := c.set.Classify(spec, problem)
		c.mu.Unlock()
		if w != nil {
			c.persister.put(w)
		}
	}
	c.mu.Lock()
	d = c.set.Accept(spec, problem)
	if d.Outcome == desired.Duplicate {
		c.outbox.Renew(c.set.Get(spec.ResourceID))
	}
	repeat = d.Outcome == desired.Duplicate && c.outbox.Answers(spec.ResourceID, spec.Tag) && c.outbox.Request(spec.ResourceID, codec.UpdateRequest)
	if d.Outcome == desired.Duplicate && c.orphans.graces[c.keyOf(spec.Name)] {
		d.Names = append(d.Names, spec.Name) // an unchanged work is wanted again, so its grace period ends
	}
	if d.Replaced != "" {
		c.outbox.Remove(d.Replaced)
		c.persister.discard(d.Replaced)
	}
	c.mu.Unlock()
	if d.Replaced != "" {
		c.save(0)
	}
	return d, repeat
}

// Drifted reports that an object tracked by a key changed. It returns the wait before Reconcile: driftPause,
// which collects further changes, or longer if another writer keeps changing the objects.
func (c *Core) Drifted(key string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.states[key]; s != nil {
		now := c.config.Now()
		wait := max(driftPause, s.looks.wait(now))
		if !s.observes {
			wait = max(wait, s.repairs.wait(repairRate, now))
		}
		return wait
	}
	return driftPause
}

// RulesChanged applies changed rules of the cluster's owner for the objects that works may have.
func (c *Core) RulesChanged() {
	c.mu.Lock()
	names := c.set.Names()
	c.mu.Unlock()
	for _, name := range names {
		c.config.Wake(c.keyOf(name), true)
	}
}

// Limit restricts the Core to corrections and deletions of admission configurations. cause is the reason; nil
// ends the restriction.
func (c *Core) Limit(cause error) {
	var limited *error
	if cause != nil {
		cause = fmt.Errorf("%w: %w", errLimited, cause)
		limited = &cause
	}
	if c.limited.Swap(limited) != nil && cause == nil {
		c.RulesChanged()
	}
}

// TakesLong reports that a key has been reconciled for long, since the given time. waits is the request that the
// reconciliation waits for. The last status stays, with a condition added.
func (c *Core) TakesLong(key string, since time.Time, waits string) {
	name, ours := c.workName(key)
	if !ours {
		return
	}
	c.mu.Lock()
	v := c.set.ByName(name)
	works := slices.Clone(v.Deleted)
	if v.Live != nil {
		works = append(works, v.Live)
	}
	var due []string
	for _, w := range works {
		status, deleted := c.outbox.LastStatus(w.ResourceID)
		if deleted {
			continue
		}
		is, err := c.outbox.Put(w, conditions.WithReconcileSlow(status, w.Generation, since, waits), false)
		if err != nil {
			c.config.Log.Error("a status cannot be built", "work", w.Name, "error", err)
		}
		if is {
			due = append(due, w.ResourceID)
		}
	}
	c.mu.Unlock()
	for _, id := range due {
		c.config.Send(id)
	}
}

// NextReport returns the status to publish for an id. ok is false if there is none, or no connection.
func (c *Core) NextReport(id string) (l outbox.OutgoingStatus, ok bool) {
	c.persister.reserve(id)
	c.mu.Lock()
	if c.connected {
		var err error
		l, ok, err = c.outbox.Next(id, c.config.Now())
		if ok {
			c.sessions.stamp(c.subscription, l.Work.Source, &l.Event)
		}
		if err != nil {
			c.mu.Unlock()
			c.config.Log.Error("a status cannot be sent", "id", id, "error", err)
			return l, false
		}
	}
	c.mu.Unlock()
	return l, ok
}

// ReportDone records the result of publishing a status of NextReport. receipt is the broker's receipt if err is
// nil. again: there is another status for the id, to be sent after a back-off if err is not nil.
func (c *Core) ReportDone(l outbox.OutgoingStatus, receipt transport.Receipt, err error) (again bool) {
	if err != nil && !transport.Retryable(err) {
		c.config.Log.Error("status rejected: the hub does not see the present state of this work", "work", l.Work.Name, "id", l.Work.ResourceID, "error", err)
	}
	c.mu.Lock()
	again = c.outbox.Done(l, receipt, err)
	// While the report was in flight, the deletion may have arrived again, or a source may have requested the
	// status. The requester does not have it yet.
	confirmed := err == nil && receipt.Outcome != codec.OutcomeStale && l.Deleted && !again
	if confirmed {
		c.set.Forget(l.Work)
		if c.set.Get(l.Work.ResourceID) == nil {
			c.outbox.Remove(l.Work.ResourceID)
			c.persister.discard(l.Work.ResourceID)
			again = false
		}
	}
	save := err == nil && c.persister.noteReported()
	c.mu.Unlock()
	if save || confirmed {
		c.save(0)
	}
	if confirmed {
		c.config.Log.Info("work deleted", "work", l.Work.Name, "id", l.Work.ResourceID)
		c.config.Wake(c.keyOf(l.Work.Name), true) // this drops the remaining state of the key
	}
	return again
}

// Counts has the sizes of a Core.
type Counts struct {
	// Live works, those of them whose latest spec is unusable, and works that are being deleted.
	Live, Unusable, Deleting int
	// Statuses that the broker has not accepted yet.
	ReportsDue int
	// Works that were not confirmed since the agent started, and works that differ in the state directory.
	Unconfirmed, Unsaved int
	// AppliedManifestWorks in their grace period, and those without a work that name no source.
	Evicting, UnownedOrphans int
	// AppliedManifestWorks of other hubs that share objects with works of this hub.
	Shared int
	// Contested counts objects that are changed after each repair.
	Contested int
	// InSync: the latest checkpoint proved that the agent holds exactly the broker's works, orphans aside.
	InSync bool
}

// Counts returns the current counts.
func (c *Core) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := Counts{ReportsDue: c.outbox.CountDue(), Unsaved: len(c.persister.unsaved), Evicting: len(c.orphans.graces), Shared: len(c.orphans.shared()), InSync: c.subscription.inSync}
	for _, s := range c.orphans.found {
		if s.state == unowned {
			n.UnownedOrphans++
		}
	}
	now := c.config.Now()
	for _, s := range c.states {
		n.Contested += s.contests.count(now)
	}
	c.set.Each(func(w *desired.Work, unconfirmed bool) {
		if unconfirmed {
			n.Unconfirmed++
		}
		switch {
		case w.Deleting:
			n.Deleting++
		case w.Problem != "":
			n.Unusable++
			n.Live++
		default:
			n.Live++
		}
	})
	return n
}

func sorted(keys map[string]bool) []string { return slices.Sorted(maps.Keys(keys)) }

// Save performs the pending writes to disk. It returns when to call it next, 0 if nothing is pending. One
// goroutine calls it at a time.
func (c *Core) Save(context.Context) (next time.Duration) {
	if c.config.Journal == nil {
		return 0
	}
	next, recovered := c.persister.saveAll()
	if recovered {
		c.mu.Lock()
		keys := c.orphans.keysToRecheck()
		c.mu.Unlock()
		for _, key := range keys {
			c.config.Wake(key, false)
		}
	}
	return next
}

// Stop saves the state that is saved only periodically. The Core must not be used after it.
func (c *Core) Stop(context.Context) {
	if c.config.Journal != nil {
		c.persister.stop()
	}
}
