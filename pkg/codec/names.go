package codec

import "github.com/cloudevents/sdk-go/v2/event"

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

	ExtRevision     = "hawserrevision"     // decimal text, set by the broker on events to Hawser parties
	ExtTag          = "hawsertag"          // 32 lower-case hex digits, set by the broker on events to Hawser parties
	ExtSupersedes   = "hawsersupersedes"   // decimal text, set by a source: replace exactly this revision, whatever the versions
	ExtIfRevision   = "hawserifrevision"   // decimal text, set by a source: delete only if this is the record's revision
	ExtNeedsConfirm = "hawserneedsconfirm" // "true", set by a source in a deletion: the cluster has reported on the work
	ExtFence        = "hawserfence"        // decimal text, set by a source in what must not be taken behind a later event of the same subscription, or session
	ExtSession      = "hawsersession"      // "<number>.<id>", set by a party behind a broker that keeps nothing: its session
	ExtPeerSession  = "hawserpeersession"  // the same of the receiver, as far as the sender has heard of it
)

// hawserPrefix begins the names of all attributes that are Hawser's own.
const hawserPrefix = "hawser"

// Headers and trailers (gRPC metadata keys, MQTT user properties) of the
// negotiation; all lower case.
const (
	HeaderSubscriptionID = "subscription-id"        // answer of Subscribe; echoed by Hawser parties in Publish
	HeaderProtocol       = "hawser-protocol"        // both ways: the version of the Hawser extensions, decimal; see transport.Protocol
	HeaderCursor         = "hawser-cursor"          // Subscribe: "<store-id>/<incarnation>/<revision>"
	HeaderClusterUID     = "hawser-cluster-uid"     // Subscribe of an agent: uid of the cluster's kube-system namespace
	HeaderVersion        = "hawser-version"         // Subscribe: which release the party is, for people
	HeaderResync         = "hawser-resync"          // answer: ResyncCursor or ResyncList
	HeaderStoreID        = "hawser-store-id"        // answer: identity of the broker's store
	HeaderMaxEventBytes  = "hawser-max-event-bytes" // answer: largest event the broker takes or sends, bytes, decimal
	HeaderOutcome        = "hawser-outcome"         // trailer of Publish: "accepted", "unchanged", "stale", ...
	HeaderRevision       = "hawser-revision"        // trailer of Publish: of the store when it decided, decimal, also of a refusal
)

// How a broker resumes a subscription: the values of [HeaderResync].
const (
	ResyncCursor = "cursor" // it continues from the party's cursor
	ResyncList   = "list"   // the party lists what it holds
)

// SpecVersion is the only CloudEvents version spoken.
const SpecVersion = event.CloudEventsVersionV1

// Content types of event data.
const (
	ContentTypeJSON     = "application/json"     // works, statuses, resync requests
	ContentTypeProtobuf = "application/protobuf" // sync events
)

// MaxAttributes is the largest number of context attributes an event may have.
// Parties of this protocol use about a dozen.
const MaxAttributes = 128
