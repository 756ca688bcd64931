package hubsource

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Lane separates what may run at the same time for one work: events to the
// broker, and writes of the agent's report to the hub. A broker that is slow
// does not hold up status, nor a hub that is slow specs of other works.
type Lane uint8

// The lanes.
const (
	// SpecLane: finalizer, publish, release.
	SpecLane Lane = iota
	// HubLane: status patches and the removal of the finalizer.
	HubLane
)

// lanes is the number of lanes.
const lanes = 2

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

// Effect is one thing to do outside: exactly one of the types here and in
// effect_compare.go.
type Effect interface{ effect() }

// AddFinalizer puts the cleanup finalizer on the work. The result carries the
// work as the hub returned it.
type AddFinalizer struct{ Work *workv1.ManifestWork }

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
	conn  int
	backs int
}

// CheckGone asks the hub for the live object of a work whose informer reported
// it gone. The result carries the work if there is one under that name, else an
// error for which apierrors.IsNotFound is true.
type CheckGone struct{ Work *workv1.ManifestWork }

// Release tells the broker that this source no longer serves a cluster.
type Release struct {
	Cluster string
	Order   uint64 // as in [Publish]
	conn    int
}

// Ask requests the statuses of a cluster that differ from what the hub holds.
// The result says in Lists how many events were sent, accepted or not.
type Ask struct {
	Cluster string
	// Held is never empty: that would ask for everything.
	Held   []Held
	listed int
	round  int
	conn   int
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
}

// RemoveFinalizer takes the cleanup finalizer off the work, whose deletion is
// confirmed. The result carries the work as the hub returned it.
type RemoveFinalizer struct{ Work *workv1.ManifestWork }

// Lookup asks the hub for a work that a report is about and that the informer
// does not know, or not in the version that the report is about. The result is
// as for [CheckGone].
type Lookup struct {
	UID             types.UID
	Namespace, Name string
	about           *Report
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
	Alive    Alive
}

func (AddFinalizer) effect()    {}
func (Publish) effect()         {}
func (CheckGone) effect()       {}
func (Release) effect()         {}
func (Ask) effect()             {}
func (PatchStatus) effect()     {}
func (RemoveFinalizer) effect() {}
func (Lookup) effect()          {}
func (Tag) effect()             {}
func (AskInventory) effect()    {}
func (CheckBehind) effect()     {}
func (CheckMissing) effect()    {}
func (Delete) effect()          {}
func (SendCompared) effect()    {}
func (SendAck) effect()         {}
func (Locate) effect()          {}
func (Save) effect()            {}
