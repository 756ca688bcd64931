package hubsource

import (
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Tag computes the tags of works. It asks nobody, but takes time: the result
// carries what [Tag.Tags] returns, in the same order.
type Tag struct {
	Works   []*workv1.ManifestWork
	cluster string
	conn    int
	backs   int
}

// AskInventory requests a page of the broker's inventory; the page comes as an
// event of the subscription, for [Core.Inventory].
type AskInventory struct {
	// ID is the id of the event.
	ID      string
	Request codec.InventoryRequest
	conn    int
}

// CheckBehind asks the hub for a work that looks older than its record at the
// broker. The result is as for [CheckGone].
type CheckBehind struct{ Work *workv1.ManifestWork }

// CheckMissing asks the hub for a work that the broker has and the informer
// has not. The result is as for [CheckGone].
type CheckMissing struct {
	UID             types.UID
	Namespace, Name string
	round           int
}

// Delete tells the broker that a work is deleted of which the hub has nothing
// left, not even what it was.
type Delete struct {
	Record codec.InventoryRecord
	Order  uint64 // as in [Publish]
	round  int
}

// SendCompared tells the broker the outcome of comparisons.
type SendCompared struct {
	Compared codec.Compared
	Order    uint64 // as in [Publish]
	all      bool   // nothing else was to be told
	conn     int
}

// SendAck tells the broker up to where statuses are on the hub.
type SendAck struct {
	Cursor codec.Cursor
	conn   int
}

// Locate asks the hub which one it is and how far its history has come: the
// uid of the namespace kube-system, and the resource version of a list of works
// that no cache answered. The result carries them in Position.
type Locate struct {
	newest string // of what the hub had shown before
	round  int
	conn   int
}

// Save keeps State on the hub, for the next process.
type Save struct{ State State }
