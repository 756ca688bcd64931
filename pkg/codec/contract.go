package codec

import (
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
)

// Event is one CloudEvent as sources and agents see it.
type Event = event.Event

// Names of the extension attributes, without the "ce-" prefix of the wire.
// Those of OCM first, then Hawser's own (see docs/protocol.md).
const (
	ExtClusterName       = "clustername"
	ExtOriginalSource    = "originalsource"
	ExtResourceID        = "resourceid"
	ExtResourceVersion   = "resourceversion"
	ExtDeletionTimestamp = "deletiontimestamp"
	ExtMetadata          = "metadata"
	ExtSequenceID        = "sequenceid"
	ExtStatusHash        = "statushash"
	ExtLogTracing        = "logtracing"

	ExtRevision   = "hawserrevision"   // decimal text, set by the broker on events to Hawser parties
	ExtTag        = "hawsertag"        // 32 lower-case hex digits, set by the broker on events to Hawser parties
	ExtSupersedes = "hawsersupersedes" // decimal text, set by a source: replace exactly this revision, whatever the versions
	ExtIfRevision = "hawserifrevision" // decimal text, set by a source: delete only if this is the record's revision
)

// Headers and trailers (gRPC metadata keys, MQTT user properties) of the
// negotiation; all lower case.
const (
	HeaderSubscriptionID = "subscription-id"        // answer of Subscribe; echoed by Hawser parties in Publish
	HeaderProtocol       = "hawser-protocol"        // both ways: "1"
	HeaderCursor         = "hawser-cursor"          // Subscribe: "<epoch>/<term>/<revision>"
	HeaderClusterUID     = "hawser-cluster-uid"     // Subscribe of an agent: uid of the cluster's kube-system namespace
	HeaderResync         = "hawser-resync"          // answer: "cursor" or "list"
	HeaderMaxEventBytes  = "hawser-max-event-bytes" // answer: largest event the broker takes or sends, bytes, decimal
	HeaderOutcome        = "hawser-outcome"         // trailer of Publish: "accepted", "unchanged", "stale", ...
)

// Subresource says which half of a resource an event carries.
type Subresource string

// The two subresources of the type grammar.
const (
	Spec   Subresource = "spec"
	Status Subresource = "status"
)

// Action is the last element of an event type. The grammar allows any token
// without a dot; these are the ones with a meaning.
type Action string

// The actions of the OCM protocol.
const (
	CreateRequest  Action = "create_request"
	UpdateRequest  Action = "update_request"
	DeleteRequest  Action = "delete_request"
	ResyncRequest  Action = "resync_request"
	ResyncResponse Action = "resync_response"
)

// DataType names a kind of resource: <group>.<version>.<resource>, the group
// may contain dots.
type DataType struct {
	Group, Version, Resource string
}

// EventType is the parsed CloudEvents type attribute.
type EventType struct {
	DataType    DataType
	Subresource Subresource
	Action      Action
}

// ManifestBundles is the data type of ManifestWorks.
var ManifestBundles = DataType{Group: "io.open-cluster-management.works", Version: "v1alpha1", Resource: "manifestbundles"}

// Types outside the grammar.
const (
	TypeHeartbeat        = "io.open-cluster-management.cloudevents.heartbeat"
	TypeCheckpoint       = "dev.hawser.sync.v1.checkpoint"
	TypeAck              = "dev.hawser.sync.v1.ack"
	TypeInventoryRequest = "dev.hawser.sync.v1.inventory_request"
	TypeInventory        = "dev.hawser.sync.v1.inventory"
)

// Tag says whether two specs are the same: the first 16 bytes of SHA-256 over
// deletion bit, version, metadata and data as published.
type Tag [16]byte

// Envelope is everything a broker reads from an event. Byte slices alias the
// input of ParseEnvelope.
type Envelope struct {
	ID     string
	Source string
	// Raw type attribute; Type is its parsed form, zero for types outside the
	// grammar (heartbeat and the sync events).
	RawType string
	Type    EventType
	Time    time.Time

	Cluster        string // clustername; "" when absent or empty
	OriginalSource string // originalsource; "" when absent or empty
	ResourceID     string
	Version        int64 // resourceversion; see HasVersion
	HasVersion     bool
	Deleting       bool // deletiontimestamp is present
	DeletedAt      time.Time
	SequenceID     string
	StatusHash     string

	// From the metadata extension; zero when it is absent.
	HasMetadata bool
	RawMetadata string
	ObjectName  string
	ObjectNS    string
	ObjectUID   string
	ObjectGen   int64 // generation, the true one when Version is 0 because it did not fit

	Revision   uint64 // hawserrevision, 0 when absent
	Tag        Tag    // hawsertag, zero when absent
	HasTag     bool
	Supersedes uint64 // hawsersupersedes, 0 when absent
	IfRevision uint64 // hawserifrevision, 0 when absent

	ContentType string
	Data        []byte
}

// ResourceVersion is one entry of a spec resync request: what an agent holds.
type ResourceVersion struct {
	ResourceID      string `json:"resourceID"`
	ResourceVersion int64  `json:"resourceVersion"`
	// Tag (32 hex digits) is added by Hawser agents, so that a change that did
	// not raise the version is found too. Stock parties ignore it.
	Tag string `json:"hawserTag,omitempty"`
}

// ResourceVersionList is the payload of a spec resync request.
type ResourceVersionList struct {
	Versions []ResourceVersion `json:"resourceVersions"`
}

// StatusHash is one entry of a status resync request: what a source holds.
type StatusHash struct {
	ResourceID string `json:"resourceID"`
	StatusHash string `json:"statusHash"`
}

// StatusHashList is the payload of a status resync request.
type StatusHashList struct {
	Hashes []StatusHash `json:"statusHashes"`
}
