package agent

import (
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

// Tracker notices that objects are no longer as they were left; a
// *drift.Watcher is one.
type Tracker interface {
	// Track replaces what a key tracks, and the state it expects each in: by
	// content, or exactly where every change of the object matters.
	Track(key string, expected map[kubeclient.Ref]drift.Signature)
	// Seen returns the state in which an object was last seen, if that is known;
	// the zero State is absence.
	Seen(ref kubeclient.Ref) (s drift.ObservedObject, ok bool)
	// Begin and End enclose the writes of a key. Wrote tells the state that each of them left,
	// by its exact signature: it is no news, whether the watch shows it before or after. The
	// key is told of other changes at End.
	Begin(key string)
	Wrote(key string, ref kubeclient.Ref, s drift.Signature)
	End(key string)
	// Unwatched returns 0 if the key tracks nothing that it must look at itself, else
	// how many such objects there are, those of other keys included.
	Unwatched(key string) int
}

// CoreConfig is what a Core works with. All fields but Guard, Journal, Log and Metrics
// are required.
type CoreConfig struct {
	// Cluster is the name of the cluster; ClientID the source of the events that
	// are sent.
	Cluster, ClientID string
	// Version is told the broker; see Config.
	Version string
	// HubHash and AgentID are recorded in AppliedManifestWorks; see Config.
	HubHash, AgentID string
	// StatusSyncInterval is how often objects are looked at that cannot be
	// watched.
	StatusSyncInterval time.Duration
	// Feedback reads the values that works want to see.
	Feedback feedback.Reader
	// EvictionGracePeriod is how long an AppliedManifestWork stays after it is
	// certain that nobody has its work; 100 years or more mean for ever.
	EvictionGracePeriod time.Duration

	Client  kubeclient.Client
	Tracker Tracker
	// Roles may be nil: then permissions of executors are asked for every few
	// minutes.
	Roles Roles
	// Policies notices that policies of admission changed, and calls Core.PoliciesChanged; it may
	// be nil: then what they refuse is tried again every few minutes.
	Policies Roles
	// KeepPermits: what an executor was allowed is not asked for again before each
	// write, while roles are watched and do not change.
	KeepPermits bool
	// Guard says which objects no work may have; nil: none.
	Guard *workpolicy.Guard
	// OwnWrites are what the process writes on the cluster besides AppliedManifestWorks.
	OwnWrites []kubeclient.Write
	// Journal is where what is wanted outlives the process; nil: nowhere.
	Journal Journal
	// Wait sleeps between attempts to write one object.
	Wait func(ctx context.Context, d time.Duration) error
	Now  func() time.Time
	// Random returns numbers in [0, 1).
	Random func() float64
	// NewID makes ids of events.
	NewID func() string

	// Wake is told that Reconcile is due for a key at once; fresh says that
	// there is something new, so that earlier failures do not count. Send is
	// told that NextReport has something for an id, Sync that NextSync has
	// something after some time, Save (with a Journal only) that Save is due after some
	// time. They must neither block nor call the Core.
	// Later is told that Reconcile is due for a key after some time, unless it is due before.
	Wake  func(key string, fresh bool)
	Later func(key string, after time.Duration)
	Send  func(id string)
	Sync  func(after time.Duration)
	Save  func(after time.Duration)

	Log     *slog.Logger
	Metrics *Metrics
}

// Core decides what the agent does. Start comes first. Hello, Subscribed, Handle
// and Disconnected are called one at a time, in the order of a session's party.
// The others may be called concurrently; Reconcile only for different keys,
// NextReport and ReportDone only for different ids, NextSync and SyncDone one
// after the other.
//
// A key is the name of an AppliedManifestWork: everything about works of one
// name, and about the objects recorded there, is done one after the other.
type Core struct {
	*works
	*tools
	subscription *subscriptionState
	persister    *persister
	roles        *roleState
	// policies is what is known of those of admission.
	policies *roleState
	causes   *causes // guarded by works.mu
	orphans  *orphans
	sessions *sourceSessions

	limited atomic.Pointer[error] // see Limit
}

// works is what is wanted on the cluster, and what the broker is told of it. Its mutex
// guards all parts of a Core, but for what they say.
type works struct {
	config *CoreConfig

	mu         sync.Mutex
	clusterUID string
	history    int // of the cluster: how often it was another one
	set        *desired.Set
	outbox     outbox.Outbox
	states     map[string]*keyState
	connected  bool
	stuck      map[string]bool // keys, see noteStuck
}

// tools are what cluster objects are read and written with.
type tools struct {
	store      appliedwork.Store
	remover    appliedwork.Remover
	applier    apply.Applier
	rules      conditionrules.Evaluator
	lastRecord *lastRecord
}

// NewCore returns a Core that holds nothing.
func NewCore(c CoreConfig) *Core {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
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
			remover:    appliedwork.Remover{Client: c.Client, Guard: c.Guard, Done: func(d appliedwork.RemovalAction, err error) { c.Metrics.write(string(d), err == nil) }},
			applier:    apply.Applier{Objects: c.Client, Wait: c.Wait, Guard: c.Guard},
		},
	}
}

// keyOf is where the work of this name is brought in line.
func (w *works) keyOf(workName string) string { return appliedwork.Name(w.config.HubHash, workName) }

// workName is the name of the work that a key of this hub is about.
func (w *works) workName(key string) (name string, ok bool) {
	return strings.CutPrefix(key, w.config.HubHash+"-")
}

// save asks for a call of Save.
func (w *works) save(after time.Duration) {
	if w.config.Journal != nil {
		w.config.Save(after)
	}
}

// Start is called once, before anything else, and takes what an earlier process
// left on the journal. clusterUID is the uid of the cluster's namespace
// kube-system. The error says that the journal cannot be used by this release.
func (c *Core) Start(clusterUID string) error {
	c.mu.Lock()
	c.clusterUID = clusterUID
	c.mu.Unlock()
	if c.config.Journal == nil {
		return nil
	}
	return c.persister.load()
}

// Hello returns what to say at the next subscribe.
func (c *Core) Hello() transport.Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	return transport.Hello{Protocol: protocol, Cursor: c.subscription.cursor.String(), ClusterUID: c.clusterUID, Version: c.config.Version}
}

// Subscribed begins a connection. It returns what to publish at once: the list
// of everything that is held, unless the broker continues from the cursor.
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

// Disconnected ends a connection: statuses wait for the next.
func (c *Core) Disconnected(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = false
	c.subscription.end(err)
}

// Handle takes a received event. Whatever it is, it counts as received: what is
// wrong with it is reported to the source where possible, else logged.
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

// drop counts an event that is not for this agent.
func (c *Core) drop(ctx context.Context, outcome string, e codec.Event) {
	c.config.Metrics.event(outcome)
	c.config.Log.DebugContext(ctx, "event is not for this agent", "type", e.Type(), "reason", outcome)
}

// answer sends the statuses that whoever asks does not have. Which cluster the
// request names does not matter.
func (c *Core) answer(ctx context.Context, e codec.Event) {
	hashes, err := codec.DecodeHashes(e.Data())
	if err != nil {
		c.config.Metrics.event(eventUndecodable)
		c.config.Log.WarnContext(ctx, "status resync request that cannot be read", "error", err)
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

// receive takes a spec, or a deletion.
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
		c.config.Log.WarnContext(ctx, "spec that cannot be read: it is not known which work it is about", "source", e.Source(), "error", err)
		return
	}
	c.number(spec, e)
	d, repeat := c.accept(spec, problem)
	c.config.Metrics.event(string(d.Outcome))
	log := c.config.Log.With("work", spec.Name, "id", spec.ResourceID, "version", spec.Version, "revision", spec.Revision)
	switch {
	case d.Outcome == desired.Foreign:
		log.WarnContext(ctx, "work of another source: the name or the id belongs to a work of somebody else", "source", spec.Source)
	case problem != "":
		log.WarnContext(ctx, "work that cannot be used as a whole", "outcome", d.Outcome, "problem", problem)
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

// accept lets a spec count, once it is on the journal. repeat says that whoever
// sent it does not know the status.
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
		d.Names = append(d.Names, spec.Name) // it is wanted after all
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

// Drifted is told that an object tracked by a key is not as expected. It
// returns how long to wait before Reconcile: a moment, in which more of the
// same may arrive, or longer if somebody else keeps changing the objects.
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

// RulesChanged is told that the owner of the cluster says something else about what works
// may have.
func (c *Core) RulesChanged() {
	c.mu.Lock()
	names := c.set.Names()
	c.mu.Unlock()
	for _, name := range names {
		c.config.Wake(c.keyOf(name), true)
	}
}

// Limit has the Core do nothing but correct and delete admission configurations, for the cause
// that is given, or all again if that is nil.
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

// TakesLong is told that the agent has been bringing the works of a key in line since that time,
// and what request it waits for. What was said of them last stays, with a condition that says so.
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
		status, deleted := c.outbox.Last(w.ResourceID)
		if deleted {
			continue
		}
		is, err := c.outbox.Put(w, conditions.Late(status, w.Generation, since, waits), false)
		if err != nil {
			c.config.Log.Error("status that cannot be made", "work", w.Name, "error", err)
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

// NextReport returns the status to publish for an id; ok is false if there is
// none, or nobody to publish it to.
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
			c.config.Log.Error("status that cannot be sent", "id", id, "error", err)
			return l, false
		}
	}
	c.mu.Unlock()
	return l, ok
}

// ReportDone tells what became of a status from NextReport; receipt is what the
// broker said if err is nil. again says that there is more to send for the id,
// after a back-off if err is not nil.
func (c *Core) ReportDone(l outbox.OutgoingStatus, receipt transport.Receipt, err error) (again bool) {
	if err != nil && !transport.Retryable(err) {
		c.config.Log.Error("status refused: the hub does not see how this work is", "work", l.Work.Name, "id", l.Work.ResourceID, "error", err)
	}
	c.mu.Lock()
	again = c.outbox.Done(l, receipt, err)
	// The deletion may have come once more, or a source may have asked, while
	// the report was under way: whoever did does not know it yet.
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
		c.config.Wake(c.keyOf(l.Work.Name), true) // to forget the rest
	}
	return again
}

// Counts says what a Core holds.
type Counts struct {
	// Live works, those of them whose latest spec cannot be used, and works that
	// are being deleted.
	Live, Unusable, Deleting int
	// Statuses that the broker has not accepted yet.
	ReportsDue int
	// Works that nobody has confirmed since the agent was started, and works that
	// are not in the state directory as they should be.
	Unconfirmed, Unsaved int
	// AppliedManifestWorks whose grace period runs, and those that no work claims
	// and that do not say whose they are.
	Evicting, UnownedOrphans int
	// AppliedManifestWorks of other hubs that have objects of this one's works.
	Shared int
	// Contested are objects that are changed after each repair.
	Contested int
	// InSync: the broker's latest checkpoint found that exactly what it has is
	// held, works aside that it knows nothing of.
	InSync bool
}

// Counts returns what is held at this moment.
func (c *Core) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := Counts{ReportsDue: c.outbox.Due(), Unsaved: len(c.persister.unsaved), Evicting: len(c.orphans.graces), Shared: len(c.orphans.shared()), InSync: c.subscription.inSync}
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

// Save does what is to be done on disk. It says when to call it next, 0 if there is
// nothing to come back for. It is called by one goroutine at a time.
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

// Stop saves what is only saved now and then. Nothing of the Core is used after
// it.
func (c *Core) Stop(context.Context) {
	if c.config.Journal != nil {
		c.persister.stop()
	}
}
