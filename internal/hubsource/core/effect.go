package core

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Lane separates what may run at the same time for one work: events to the
// broker, and requests to the hub. A broker that is slow does not hold up status,
// nor a hub that is slow specs of other works.
type Lane uint8

// The lanes.
const (
	// SpecLane: finalizer, publish, release.
	SpecLane Lane = iota
	// HubLane: questions, status patches and the removal of the finalizer.
	HubLane
)

// Lanes is the number of lanes.
const Lanes = 2

// String returns the name of the lane, for logs and metrics.
func (l Lane) String() string {
	if l == SpecLane {
		return "spec"
	}
	return "hub"
}

// Key is a unit of scheduling: a work (UID is set) or a cluster (only Cluster
// is set). The zero Key is the source as a whole; to wake it in the spec lane
// also makes a worker take more of the sweep.
type Key struct {
	UID     types.UID
	Cluster string
}

// Waker is how [Core] asks to be called again: Next(lane, key) after the delay,
// 0 is at once. It is called from within the methods of Core, must not call
// back and must not block. Waking a key that has nothing to do is harmless.
type Waker interface {
	Wake(lane Lane, key Key, after time.Duration)
}

// Effect is one thing to do outside. Its result belongs to the life of the hub, and
// the subscription, in which Next returned it.
type Effect interface{ effect() }

// AddFinalizer puts the cleanup finalizer on the work. The result carries the
// work as the hub returned it.
type AddFinalizer struct {
	Work  *workv1.ManifestWork
	asked int
}

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
	// Held: the cluster may have the work although the broker never heard so.
	Held bool
	// Order is the number of the event, 0 for a broker that knows none.
	Order uint64
	mark  mark
}

// Release tells the broker that this source no longer serves a cluster.
type Release struct {
	Cluster string
	Order   uint64 // as in [Publish]
}

// Ask requests the statuses of a cluster that differ from what the hub holds.
// The result says in Lists how many events were sent, accepted or not.
type Ask struct {
	Cluster string
	// Held is never empty: that would ask for everything.
	Held            []Held
	listed, attempt int
}

// Held is what the hub holds of a work's status. Exactly one of Hash (of a
// report that waits for its patch) and Work is set.
type Held struct {
	UID  types.UID
	Hash string
	Work *workv1.ManifestWork
}

// PatchStatus replaces the status of the work. The result carries the work as
// the hub returned it.
type PatchStatus struct {
	Work   *workv1.ManifestWork
	Status workv1.ManifestWorkStatus
	// report is the one in the patch, nil when only the condition Delivered
	// changes.
	report *Report
	asked  int
}

// RemoveFinalizer takes the cleanup finalizer off the work, whose deletion is
// confirmed. The result carries the work as the hub returned it.
type RemoveFinalizer struct {
	Work  *workv1.ManifestWork
	asked int
}

// Tag computes the tags of works. It asks nobody, but takes time: the result
// carries what [Tag.Tags] returns, in the same order.
type Tag struct {
	Works   []*workv1.ManifestWork
	cluster string
}

// AskInventory requests a page of the broker's inventory; the page comes as an
// event of the subscription, for [Core.Inventory].
type AskInventory struct {
	// ID is the id of the event.
	ID      string
	Request codec.InventoryRequest
}

// Delete tells the broker that a work is deleted of which the hub has nothing
// left, not even what it was.
type Delete struct {
	Record  codec.InventoryRecord
	Order   uint64 // as in [Publish]
	attempt int
}

// SendCompared tells the broker the outcome of comparisons.
type SendCompared struct {
	Compared codec.Compared
	Order    uint64 // as in [Publish]
	all      bool   // nothing else was to be told
}

// SendAck tells the broker up to where statuses are on the hub.
type SendAck struct {
	Cursor codec.Cursor
}

// EndSubscription ends the subscription with this id, as if the connection had
// broken: what is under way on it counts no longer.
type EndSubscription struct {
	ID string
}

// Locate asks the hub which one it is and how far its history has come: the
// uid of the namespace kube-system, and the resource version of a list of works
// that no cache answered. The result carries them in Position, and in Kept the
// resource version of the [State] there.
type Locate struct {
	newest  string // of what the hub had shown before
	attempt int
}

// Save keeps State on the hub, for the next process. The result carries its resource
// version in Kept, as far as the hub counts them.
type Save struct {
	State State
	over  bool // the life has ended
}

// BeginLife begins another life of the hub: the subscription is ended, and informers
// are made anew that begin with a list which no cache answered. What they show belongs
// to the life that the effect names; until all of the list is shown nothing is
// subscribed.
type BeginLife struct {
	Life   int
	Reason string
}

// Result is what came of an [Effect]. Err is a Kubernetes API error for effects
// on the hub and a *transport.Error for effects on the broker.
type Result struct {
	Work    *workv1.ManifestWork
	Receipt transport.Receipt
	Err     error
	// The rest belongs to the effects whose comments name it.
	Lists    int
	Tags     []codec.Tag
	Position *codec.HubPosition
	Present  Present
	Kept     string
}

func (AddFinalizer) effect()    {}
func (Publish) effect()         {}
func (Release) effect()         {}
func (Ask) effect()             {}
func (PatchStatus) effect()     {}
func (RemoveFinalizer) effect() {}
func (Tag) effect()             {}
func (AskInventory) effect()    {}
func (Delete) effect()          {}
func (SendCompared) effect()    {}
func (SendAck) effect()         {}
func (EndSubscription) effect() {}
func (Locate) effect()          {}
func (Save) effect()            {}
func (BeginLife) effect()       {}
