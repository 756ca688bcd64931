package codec

import "github.com/cloudevents/sdk-go/v2/event"

// Event is one CloudEvent, in the view of sources and agents.
type Event = event.Event

// Names of the extension attributes, without the "ce-" prefix of the wire: first those of OCM, then Hawser's
// own (see docs/protocol/README.md).
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

	ExtRevision     = "hawserrevision"     // decimal text, set by the broker on events to Hawser clients
	ExtTag          = "hawsertag"          // 32 lower-case hex digits, set by the broker on events to Hawser clients
	ExtSupersedes   = "hawsersupersedes"   // decimal text, set by a source: replace exactly this revision, regardless of versions
	ExtIfRevision   = "hawserifrevision"   // decimal text, set by a source: delete only if this is the record's revision
	ExtNeedsConfirm = "hawserneedsconfirm" // "true", set by a source in a deletion: the cluster has reported on the work
	ExtFence        = "hawserfence"        // decimal text: fencing token; a higher accepted one of the same subscription or session makes the event stale
	ExtSession      = "hawsersession"      // "<number>.<id>", set by a client behind a stateless broker: its session
	ExtPeerSession  = "hawserpeersession"  // the session of the receiver, as last seen by the sender
)

// hawserPrefix begins the names of all attributes that are Hawser's own.
const hawserPrefix = "hawser"

// Headers and trailers of the negotiation (gRPC metadata keys, MQTT user properties), all lower case.
const (
	HeaderSubscriptionID = "subscription-id"        // answer of Subscribe; echoed by Hawser clients in Publish
	HeaderProtocol       = "hawser-protocol"        // both ways: the version of the Hawser extensions, decimal; see transport.Protocol
	HeaderCursor         = "hawser-cursor"          // Subscribe: "<store-id>/<incarnation>/<revision>"
	HeaderClusterUID     = "hawser-cluster-uid"     // Subscribe of an agent: uid of the cluster's kube-system namespace
	HeaderVersion        = "hawser-version"         // Subscribe: release of the client, for display
	HeaderHeartbeat      = "hawser-heartbeat"       // Subscribe: interval of heartbeats that the client asks for, seconds, decimal
	HeaderFormer         = "hawser-former"          // Subscribe: id of the subscription that the client had before
	HeaderSubscribedAt   = "hawser-subscribed-at"   // Subscribe: ids of replicas at which the client is subscribed, separated by commas
	HeaderResync         = "hawser-resync"          // answer: ResyncCursor or ResyncList
	HeaderStoreID        = "hawser-store-id"        // answer: identity of the broker's store
	HeaderMaxEventBytes  = "hawser-max-event-bytes" // answer: largest event that the broker accepts or sends, bytes, decimal
	HeaderOutcome        = "hawser-outcome"         // trailer of Publish: "accepted", "unchanged", "stale", ...
	HeaderRevision       = "hawser-revision"        // trailer of Publish: store revision at the decision, decimal, also for a rejection
)

// Values of [HeaderResync]: how a broker resumes a subscription.
const (
	ResyncCursor = "cursor" // the broker continues from the client's cursor
	ResyncList   = "list"   // the client lists the records it holds
)

// SpecVersion is the only supported CloudEvents version.
const SpecVersion = event.CloudEventsVersionV1

// Content types of event data.
const (
	ContentTypeJSON     = "application/json"     // works, statuses, resync requests
	ContentTypeProtobuf = "application/protobuf" // sync events
)

// MaxAttributes is the maximum number of context attributes of an event. Clients of this protocol use about 12.
const MaxAttributes = 128
