package core

import (
	"math"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/resync"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Queue separates what may run at the same time for one work: events to the
// broker, and requests to the hub. A broker that is slow does not hold up status,
// nor a hub that is slow specs of other works.
type Queue uint8

// The lanes.
const (
	// BrokerQueue: finalizer, publish, release.
	BrokerQueue Queue = iota
	// HubQueue: questions, status patches and the removal of the finalizer.
	HubQueue
)

// NumQueues is the number of lanes.
const NumQueues = 2

// String returns the name of the lane, for logs and metrics.
func (l Queue) String() string { return [NumQueues]string{"spec", "hub"}[l] }

// Key is a unit of scheduling: a work (UID is set, and says which) or a cluster (only
// Cluster is set). The zero Key is the source as a whole; to wake it in the spec lane
// also makes a worker take more of the sweep. Clusters take turns, by what was done for
// each.
type Key struct {
	UID     types.UID
	Cluster string
}

// Waker is how [Core] asks to be called again: Next(lane, key) after the delay,
// 0 is at once. It is called from within the methods of Core, must not call
// back and must not block. Waking a key that has nothing to do is harmless.
type Waker interface {
	Wake(on Queue, key Key, after time.Duration)
	// Hurry has a key go before the others of its cluster, the next time that it is
	// woken or if it is waiting then. It must not block either.
	Hurry(queue Queue, key Key)
}

// Effect is one thing to do outside. Its result belongs to the life of the hub, and
// the subscription, in which Next returned it.
type Effect interface {
	// Operation is what logs and metrics call it.
	Operation() string
}

// ForBroker is an effect that is carried out by publishing events, in this order and
// on the subscription in which Next returned it. The result says in Sent how many were
// sent, accepted or not.
type ForBroker interface {
	Effect
	// Events returns the events. newID and now are for them, source is the source id.
	Events(newID func() string, now time.Time, source string) ([]codec.Event, error)
}

// todo is an effect, and what its result means.
type todo struct {
	Effect
	done func(Result)
}

// OfWork is a write of a work on the hub.
type OfWork struct{ Work *workv1.ManifestWork }

// Object is the work as it was before.
func (o OfWork) Object() *workv1.ManifestWork { return o.Work }

// AddFinalizer puts the cleanup finalizer on the work. The result carries the
// work as the hub returned it.
type AddFinalizer struct{ OfWork }

// Publish sends the work's spec, or its deletion, to the broker.
type Publish struct {
	Work   *workv1.ManifestWork
	Action codec.Action
	// Unversioned: the deletion counts whatever version the broker holds.
	Unversioned bool
	// Slim: the work is too large to be sent; a deletion goes out without its
	// manifests, its delete option still counts.
	Slim bool
	// Supersedes is the revision of the record that the work replaces although
	// that looks newer, 0 for none.
	Supersedes uint64
	// RequireConfirmation: the cluster may have the work although the broker never heard so.
	RequireConfirmation bool
	// Fence is the number of the event, 0 for a broker that knows none.
	Fence uint64
	// Stamp is the place of the event where no broker keeps anything, First what goes out
	// before it.
	Stamp sessionfence.Stamp
	First Before
}

// Before is what an agent that orders by version has to have before a spec or a deletion.
type Before uint8

// What may go first.
const (
	// Nothing goes first.
	Nothing Before = iota
	// Unversioned: the same spec without a version, which is never older than another.
	Unversioned
	// LastSpec: the spec that is deleted, which says what deletion means. It goes out alone.
	LastSpec
)

// Release tells the broker that this source no longer serves a cluster.
type Release struct {
	Cluster string
	Fence   uint64 // as in [Publish]
}

// RequestStatuses requests the statuses of a cluster that differ from what the hub holds.
type RequestStatuses struct {
	Cluster string
	// Held is never empty: that would ask for everything.
	Held  []StatusRef
	Stamp sessionfence.Stamp // as in [Publish]
	// Limit is the largest event that fits, 0 if nobody knows.
	Limit int
}

// StatusRef is what the hub holds of a work's status. Exactly one of Hash (of a
// report that waits for its patch) and Work is set.
type StatusRef struct {
	UID  types.UID
	Hash string
	Work *workv1.ManifestWork
}

// PatchStatus replaces the status of the work. The result carries the work as
// the hub returned it.
type PatchStatus struct {
	OfWork
	Status workv1.ManifestWorkStatus
}

// RemoveFinalizer takes the cleanup finalizer off the work, whose deletion is
// confirmed. The result carries the work as the hub returned it.
type RemoveFinalizer struct{ OfWork }

// DeleteCompleted deletes a work whose time has passed since it completed. It is
// refused with a conflict when the work is not what it was then.
type DeleteCompleted struct{ OfWork }

// Get asks the hub for a work. The result carries the work if there is one under
// that name, else an error for which apierrors.IsNotFound is true.
type Get struct {
	UID             types.UID
	Namespace, Name string
}

// List asks the hub which works of a namespace there are. The result carries them
// in Present.
type List struct{ Namespace string }

// Present are the resource versions of works by uid, at one moment.
type Present map[types.UID]string

// Tag computes the tags of works. It asks nobody, but takes time: the result
// carries what [Tag.Tags] returns, in the same order.
type Tag struct{ Works []*workv1.ManifestWork }

// RequestInventory requests a page of the broker's inventory; the page comes as an
// event of the subscription, for [Core.Inventory].
type RequestInventory struct {
	// ID is the id of the event.
	ID      string
	Request codec.InventoryRequest
}

// Delete tells the broker that a work is deleted of which the hub has nothing
// left, not even what it was.
type Delete struct {
	Record codec.InventoryRecord
	Fence  uint64             // as in [Publish]
	Stamp  sessionfence.Stamp // as in [Publish]
}

// Withhold tells somebody of deletions that are left to a person: works that an agent has and that
// the hub lacks. There is no revision in it.
type Withhold struct{ codec.ClusterSyncReport }

// SendSyncReport tells the broker the outcome of comparisons.
type SendSyncReport struct {
	Report codec.SyncReport
	Fence  uint64 // as in [Publish]
}

// SendAck tells the broker up to where statuses are on the hub.
type SendAck struct{ Cursor codec.Cursor }

// EndSubscription ends the subscription with this id, as if the connection had
// broken: what is under way on it counts no longer.
type EndSubscription struct{ ID string }

// ReadHubPosition asks the hub which one it is and how far its history has come: the
// uid of the namespace kube-system, and the resource version of a list of works
// that no cache answered. The result carries them in Position, and in Kept the
// resource version of the [SavedState] there.
type ReadHubPosition struct{}

// Save keeps State on the hub, for the next process. The result carries its resource
// version in Kept, as far as the hub counts them.
type Save struct{ State SavedState }

// BeginHubEpoch begins another life of the hub: the subscription is ended, and informers
// are made anew that begin with a list which no cache answered. What they show belongs
// to the life that the effect names; until all of the list is shown nothing is
// subscribed.
type BeginHubEpoch struct {
	Epoch  int
	Reason string
}

// Result is what came of an [Effect]. Err is a Kubernetes API error for effects
// on the hub and a *transport.Error for effects on the broker.
type Result struct {
	Work    *workv1.ManifestWork
	Receipt transport.Receipt
	Err     error
	// The rest belongs to the effects whose comments name it.
	Sent     int
	Tags     []codec.Tag
	Position *codec.HubPosition
	Present  Present
	Kept     string
}

// isAbsent reports whether the hub has no work with a uid, by the answer to [Get].
func (r Result) isAbsent(uid types.UID) bool {
	return apierrors.IsNotFound(r.Err) || r.Err == nil && r.Work.UID != uid
}

// Operation implements [Effect].
func (AddFinalizer) Operation() string { return "add_finalizer" }

// Operation implements [Effect].
func (RemoveFinalizer) Operation() string { return "remove_finalizer" }

// Operation implements [Effect].
func (PatchStatus) Operation() string { return "patch_status" }

// Operation implements [Effect].
func (DeleteCompleted) Operation() string { return "delete_completed" }

// Operation implements [Effect].
func (Get) Operation() string { return "get" }

// Operation implements [Effect].
func (List) Operation() string { return "list" }

// Operation implements [Effect].
func (ReadHubPosition) Operation() string { return "read_position" }

// Operation implements [Effect].
func (Save) Operation() string { return "save" }

// Operation implements [Effect].
func (Tag) Operation() string { return "tag" }

// Operation implements [Effect].
func (Publish) Operation() string { return "publish" }

// Operation implements [Effect].
func (Delete) Operation() string { return "delete" }

// Operation implements [Effect].
func (Withhold) Operation() string { return "withhold" }

// Operation implements [Effect].
func (Release) Operation() string { return "release" }

// Operation implements [Effect].
func (RequestStatuses) Operation() string { return "request_statuses" }

// Operation implements [Effect].
func (RequestInventory) Operation() string { return "inventory" }

// Operation implements [Effect].
func (SendSyncReport) Operation() string { return "sync_report" }

// Operation implements [Effect].
func (SendAck) Operation() string { return "ack" }

// Operation implements [Effect].
func (EndSubscription) Operation() string { return "end_subscription" }

// Operation implements [Effect].
func (BeginHubEpoch) Operation() string { return "begin_epoch" }

// Events implements [ForBroker].
func (p Publish) Events(newID func() string, now time.Time, source string) ([]codec.Event, error) {
	o := p.Work
	if p.Slim || p.Unversioned {
		copied := *o
		if p.Slim {
			copied.Spec.Workload.Manifests = nil
		}
		if p.Unversioned {
			copied.Generation = 0
		}
		o = &copied
	}
	action := p.Action
	if p.First == LastSpec {
		o, action = o.DeepCopy(), codec.UpdateRequest
		o.DeletionTimestamp = nil
	}
	e, err := manifestwork.EncodeSpec(o, manifestwork.SpecParams{
		ID: newID(), Now: now, Source: source, Action: action, DeletionWithData: action == codec.DeleteRequest,
		Reported: p.RequireConfirmation || isReported(o.Status),
	})
	if err == nil && p.Supersedes != 0 {
		e.SetExtension(codec.ExtSupersedes, codec.FormatRevision(p.Supersedes))
	}
	events, err := one(e, err, p.Fence)
	if err != nil || p.Stamp == (sessionfence.Stamp{}) {
		return events, err
	}
	return p.withStamp(events[0], newID())
}

// withStamp gives an event its place, behind the one that goes first.
func (p Publish) withStamp(e codec.Event, id string) ([]codec.Event, error) {
	if p.First != Unversioned {
		p.Stamp.Put(&e)
		return []codec.Event{e}, nil
	}
	before := e.Clone()
	before.SetID(id)
	before.SetExtension(codec.ExtResourceVersion, 0)
	p.Stamp.Put(&before)
	p.Stamp.Second().Put(&e)
	return []codec.Event{before, e}, nil
}

// one returns one event, with its number if it has one.
func one(e codec.Event, err error, order uint64) ([]codec.Event, error) {
	if err != nil {
		return nil, err
	}
	if order != 0 {
		e.SetExtension(codec.ExtFence, codec.FormatRevision(order))
	}
	return []codec.Event{e}, nil
}

// isReported reports whether an agent made a status.
func isReported(s workv1.ManifestWorkStatus) bool {
	return len(s.ResourceStatus.Manifests) > 0 ||
		slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return !isDelivered(c) })
}

// Events implements [ForBroker].
func (r Release) Events(newID func() string, now time.Time, source string) ([]codec.Event, error) {
	e, err := codec.NewRelease(newID(), now, source, r.Cluster)
	return one(e, err, r.Fence)
}

// Events implements [ForBroker]. The hashes are computed here: they are of what the
// agent said, without the condition Delivered.
func (a RequestStatuses) Events(newID func() string, now time.Time, source string) ([]codec.Event, error) {
	hashes := make([]codec.StatusHash, 0, len(a.Held))
	for _, h := range a.Held {
		hash := h.Hash
		if h.Work != nil {
			status := h.Work.Status
			status.Conditions = slices.DeleteFunc(slices.Clone(status.Conditions), isDelivered)
			var err error
			if hash, err = manifestwork.StatusHash(status); err != nil {
				return nil, err
			}
		}
		hashes = append(hashes, codec.StatusHash{ResourceID: string(h.UID), StatusHash: hash})
	}
	var events []codec.Event
	for chunk := range resync.ChunksOf(hashes, a.Limit) {
		e, err := codec.NewStatusResyncRequest(codec.ResyncParams{
			ID: newID(), Time: now, Source: source, Cluster: a.Cluster, DataType: codec.ManifestBundles,
		}, chunk)
		if err != nil {
			return nil, err
		}
		a.Stamp.Put(&e)
		events = append(events, e)
	}
	return events, nil
}

// ReportOf reads a status event. The error is an *codec.AttributeError.
func ReportOf(e codec.Event) (*Report, error) {
	s, err := manifestwork.DecodeStatus(e)
	if err != nil {
		return nil, err
	}
	stamp, err := sessionfence.StampOf(e)
	if err != nil {
		return nil, err
	}
	version, _, err := codec.VersionExtension(e)
	if err != nil {
		return nil, err
	}
	return &Report{
		Unversioned: version == 0 && s.Version <= math.MaxInt32, Stamp: stamp, Source: s.OriginalSource,
		UID: types.UID(s.ResourceID), Cluster: s.Cluster, Name: s.Name,
		Version: s.Version, Sequence: s.SequenceID, Hash: s.Hash, Deleted: s.Deleted, Status: s.Status, Revision: s.Revision, Size: len(e.Data()),
	}, nil
}

// Tags returns the tags of the works. One that cannot be encoded has the zero
// tag: it is published, and the broker's answer says what is wrong.
func (t Tag) Tags() []codec.Tag {
	tags := make([]codec.Tag, len(t.Works))
	for i, o := range t.Works {
		if tag, err := manifestwork.SpecTag(o); err == nil {
			tags[i] = tag
		}
	}
	return tags
}

// Events implements [ForBroker]; the id of the event is known already.
func (a RequestInventory) Events(_ func() string, now time.Time, source string) ([]codec.Event, error) {
	e, err := codec.NewInventoryRequest(syncParams(a.ID, now, source), a.Request)
	return one(e, err, 0)
}

// Events implements [ForBroker].
func (d Delete) Events(newID func() string, now time.Time, source string) ([]codec.Event, error) {
	r := d.Record
	o := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{
		Namespace: r.Cluster, Name: r.Name, UID: types.UID(r.ResourceID), Generation: r.Version,
	}}
	e, err := manifestwork.EncodeSpec(o, manifestwork.SpecParams{ID: newID(), Now: now, Source: source, Action: codec.DeleteRequest})
	if err == nil && r.Revision != 0 {
		e.SetExtension(codec.ExtIfRevision, codec.FormatRevision(r.Revision))
	}
	d.Stamp.Put(&e)
	return one(e, err, d.Fence)
}

// Events implements [ForBroker].
func (s SendSyncReport) Events(newID func() string, now time.Time, source string) ([]codec.Event, error) {
	e, err := codec.NewSyncReport(syncParams(newID(), now, source), s.Report)
	return one(e, err, s.Fence)
}

// Events implements [ForBroker].
func (a SendAck) Events(newID func() string, now time.Time, source string) ([]codec.Event, error) {
	e, err := codec.NewAck(syncParams(newID(), now, source), codec.Ack{Cursor: a.Cursor})
	return one(e, err, 0)
}

func syncParams(id string, now time.Time, source string) codec.SyncParams {
	return codec.SyncParams{ID: id, Time: now, Source: source, Owner: source}
}
