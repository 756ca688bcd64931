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

// Queue separates the effects that may run at the same time for one work: events to the broker, and requests to
// the hub. A slow broker does not delay statuses, and a slow hub does not delay specs of other works.
type Queue uint8

// The queues.
const (
	// BrokerQueue: finalizer, publish, release.
	BrokerQueue Queue = iota
	// HubQueue: queries, status patches and the removal of the finalizer.
	HubQueue
)

// NumQueues is the number of queues.
const NumQueues = 2

// String returns the name of the queue, for logs and metrics.
func (l Queue) String() string { return [NumQueues]string{"spec", "hub"}[l] }

// Key is a unit of scheduling: a work (UID is set and identifies it) or a cluster (only Cluster is set). The
// zero Key is the source as a whole. Waking it in the broker queue also makes a worker continue the initial
// sync. Clusters share the workers fairly, by the effects done for each.
type Key struct {
	UID     types.UID
	Cluster string
}

// Waker schedules calls of [Core.Next]: Next(queue, key) after the delay, 0 means at once. Methods of Core call
// it, so it must not call back and must not block. It is harmless to wake a key that has nothing to do.
type Waker interface {
	Wake(on Queue, key Key, after time.Duration)
	// Prioritize moves a key before the others of its cluster if it is queued, or the next time that it is woken. It
	// must not block either.
	Prioritize(queue Queue, key Key)
}

// Effect is one action outside of the core. Its result belongs to the hub epoch, and the subscription, in which
// Next returned it.
type Effect interface {
	// Operation returns the name of the effect in logs and metrics.
	Operation() string
}

// ForBroker is an effect that publishes events, in this order and on the subscription in which Next returned
// it. The result has the number of sent events in Sent, accepted or not.
type ForBroker interface {
	Effect
	// Events returns the events. newID returns their ids, now is their time, source the source id.
	Events(newID func() string, now time.Time, source string) ([]codec.Event, error)
}

// todo is an effect, and the function that handles its result.
type todo struct {
	Effect
	done func(Result)
}

// OfWork is a write of a work on the hub.
type OfWork struct{ Work *workv1.ManifestWork }

// Object returns the work as it was before the write.
func (o OfWork) Object() *workv1.ManifestWork { return o.Work }

// AddFinalizer adds the cleanup finalizer to the work. The result carries the work as the hub returned it.
type AddFinalizer struct{ OfWork }

// Publish sends the work's spec, or its deletion, to the broker.
type Publish struct {
	Work   *workv1.ManifestWork
	Action codec.Action
	// Unversioned: the deletion applies to every version that the broker may hold.
	Unversioned bool
	// Slim: the work is too large to send. Its deletion is sent without manifests; the delete option still applies.
	Slim bool
	// Supersedes is the revision of the record that the work replaces although the record looks newer, 0 for none.
	Supersedes uint64
	// RequireConfirmation: the cluster may have the work although the broker never received it.
	RequireConfirmation bool
	// Fence is the fencing token of the event, 0 for a broker that does not support it.
	Fence uint64
	// Stamp is the session stamp of the event behind a stateless broker; First is the event that goes out before
	// it.
	Stamp sessionfence.Stamp
	First PriorEvent
}

// PriorEvent is the event that an agent which orders by version needs before a spec or a deletion.
type PriorEvent uint8

// Values of PriorEvent.
const (
	// PriorNone: nothing is sent first.
	PriorNone PriorEvent = iota
	// PriorUnversioned: the same spec without a version is sent first; no agent treats it as older.
	PriorUnversioned
	// PriorLastSpec: the spec of the deleted work is sent alone, because it carries the delete option.
	PriorLastSpec
)

// Release drops the broker's records of a cluster that this source no longer serves.
type Release struct {
	Cluster string
	Fence   uint64 // as in [Publish]
}

// RequestStatuses requests the statuses of a cluster that differ from what the hub holds.
type RequestStatuses struct {
	Cluster string
	// Statuses is never empty: an empty list would request all statuses.
	Statuses []StatusRef
	Stamp    sessionfence.Stamp // as in [Publish]
	// Limit is the size of the largest event in bytes, 0 if it is unknown.
	Limit int
}

// StatusRef refers to the status of a work that the hub holds. Exactly one of Hash (of a report that waits for
// its patch) and Work is set.
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

// RemoveFinalizer removes the cleanup finalizer from the work, whose deletion is confirmed. The result carries
// the work as the hub returned it.
type RemoveFinalizer struct{ OfWork }

// DeleteCompleted deletes a completed work after its time to live. The hub returns a conflict if the work has
// changed since.
type DeleteCompleted struct{ OfWork }

// Get reads a work from the hub. The result carries the work that has this name. If there is none,
// apierrors.IsNotFound is true for the error.
type Get struct {
	UID             types.UID
	Namespace, Name string
}

// List reads the works of a namespace from the hub. The result carries them in Present.
type List struct{ Namespace string }

// Present maps the uids of works to their resource versions, at one moment.
type Present map[types.UID]string

// Tag computes the tags of works. It needs no request, but takes time: the result carries the return value of
// [Tag.Tags], in the same order.
type Tag struct{ Works []*workv1.ManifestWork }

// RequestInventory requests a page of the broker's inventory. The page comes as an event of the subscription,
// for [Core.Inventory].
type RequestInventory struct {
	// ID is the id of the event.
	ID      string
	Request codec.InventoryRequest
}

// Delete publishes the deletion of a work of which the hub has nothing left.
type Delete struct {
	Record codec.InventoryRecord
	Fence  uint64             // as in [Publish]
	Stamp  sessionfence.Stamp // as in [Publish]
}

// Withhold reports withheld deletions to the operator: works that an agent has and the hub lacks. It carries no
// revision.
type Withhold struct{ codec.ClusterSyncReport }

// SendSyncReport sends the outcome of comparisons to the broker.
type SendSyncReport struct {
	Report codec.SyncReport
	Fence  uint64 // as in [Publish]
}

// SendAck sends the cursor up to which statuses are on the hub to the broker.
type SendAck struct{ Cursor codec.Cursor }

// EndSubscription ends the subscription with this id, as if the connection had broken. Events in flight on it
// are rejected from then on.
type EndSubscription struct{ ID string }

// ReadHubPosition reads the identity of the hub and the progress of its history. These are the uid of the
// namespace kube-system, and the resource version of a list of works that no cache answered. The result carries
// both in Position, and in Kept the resource version of the [SavedState] there.
type ReadHubPosition struct{}

// Save writes State to the hub, for the next process. The result carries its resource version in Kept, if the
// hub has one.
type Save struct{ State SavedState }

// BeginHubEpoch begins another hub epoch. The subscription ends, and new informers begin with a list that no
// cache answered. Their objects belong to the epoch in this effect. The next subscription waits until the whole
// list is shown.
type BeginHubEpoch struct {
	Epoch  int
	Reason string
}

// Result is the result of an [Effect]. Err is a Kubernetes API error for effects on the hub and a
// *transport.Error for effects on the broker.
type Result struct {
	Work    *workv1.ManifestWork
	Receipt transport.Receipt
	Err     error
	// Each of the other fields belongs to the effects whose comments name it.
	Sent     int
	Tags     []codec.Tag
	Position *codec.HubPosition
	Present  Present
	Kept     string
}

// isAbsent reports whether the answer to [Get] shows that the hub has no work with this uid.
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
	if p.First == PriorLastSpec {
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

// withStamp stamps an event, and puts the event that goes first before it.
func (p Publish) withStamp(e codec.Event, id string) ([]codec.Event, error) {
	if p.First != PriorUnversioned {
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

// one returns one event, with its fencing token if it has one.
func one(e codec.Event, err error, order uint64) ([]codec.Event, error) {
	if err != nil {
		return nil, err
	}
	if order != 0 {
		e.SetExtension(codec.ExtFence, codec.FormatRevision(order))
	}
	return []codec.Event{e}, nil
}

// isReported reports whether an agent has written this status.
func isReported(s workv1.ManifestWorkStatus) bool {
	return len(s.ResourceStatus.Manifests) > 0 ||
		slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool { return !isDelivered(c) })
}

// Events implements [ForBroker].
func (r Release) Events(newID func() string, now time.Time, source string) ([]codec.Event, error) {
	e, err := codec.NewRelease(newID(), now, source, r.Cluster)
	return one(e, err, r.Fence)
}

// Events implements [ForBroker]. The hashes computed here cover the agent's status without the condition
// Delivered.
func (a RequestStatuses) Events(newID func() string, now time.Time, source string) ([]codec.Event, error) {
	hashes := make([]codec.StatusHash, 0, len(a.Statuses))
	for _, h := range a.Statuses {
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

// Tags returns the tags of the works. A work that cannot be encoded has the zero tag: it is published, and the
// broker's answer contains the error.
func (t Tag) Tags() []codec.Tag {
	tags := make([]codec.Tag, len(t.Works))
	for i, o := range t.Works {
		if tag, err := manifestwork.SpecTag(o); err == nil {
			tags[i] = tag
		}
	}
	return tags
}

// Events implements [ForBroker]. The event has the id ID.
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
