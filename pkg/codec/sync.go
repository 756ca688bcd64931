package codec

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// SyncParams is the envelope of a sync event. A sync event belongs to one subscription. A broker sends it on
// its stream; a client publishes it with the subscription's id in HeaderSubscriptionID. The data type is that
// of the subscription.
type SyncParams struct {
	ID   string
	Time time.Time
	// Source is the sender: the broker's name, an agent id or a source id.
	Source string
	// Cluster is the cluster of an agent's subscription, Owner the source of a source's subscription. The other
	// field is empty.
	Cluster, Owner string
}

// Checkpoint states that the broker has sent all changes up to Cursor to the client.
type Checkpoint struct {
	Cursor Cursor
	// Digest is the digest of the records that the client holds after all these changes. It is nil if more was left
	// to send.
	Digest *Digest
	// HighestSequenceID is the highest sequence id that the broker accepted from this agent, "" if none.
	HighestSequenceID string
	// SyncedSources are the sources that have finished the comparison for this cluster since the store was made.
	// Sorted.
	SyncedSources []string
	// ListAnswered: the broker has answered the agent's version list on this subscription.
	ListAnswered bool
	// Orphans are the listed ids without a record; the digest excludes them. Sorted.
	Orphans []string
	// AnsweredStatusRequests counts the status lists that this source published on this subscription and that were
	// answered before this checkpoint. A source must not keep the cursor of a checkpoint with a lower count than it
	// published. The missing answers do not follow that cursor.
	AnsweredStatusRequests uint64
}

// Ack states that the client has all changes up to Cursor on disk.
type Ack struct {
	Cursor Cursor
	Digest *Digest // of the records that the client holds; nil if the checkpoint had none
}

// InventoryRequest requests one page of a source's records. Without clusters the page has a digest per cluster,
// otherwise the records of these clusters.
type InventoryRequest struct {
	Clusters  []string
	PageToken string // the end of the previous page; "" for the first page
}

// Inventory is one page of the answer.
type Inventory struct {
	Clusters []ClusterDigest
	Records  []InventoryRecord
	// Revision is the revision of the store before the first page was read.
	Revision uint64
	// NextPageToken is empty on the last page.
	NextPageToken string
	// RequestID is the id of the requesting event.
	RequestID string
	// LastPosition is the hub position that the source reported with its last finished comparison, nil if none. It
	// is on the first page only.
	LastPosition *HubPosition
}

// DisconnectedClusters lists clusters of the source that have had no agent for some time. The broker sends them
// without a request, sorted by name, in one or more events.
type DisconnectedClusters struct {
	Clusters []DisconnectedCluster
	More     bool // more events follow
}

// DisconnectedCluster is a cluster without a connected agent.
type DisconnectedCluster struct {
	Cluster string
	// Since is the time of the last connection, at the earliest the start of the broker.
	Since time.Time
	// NeverConnected: no agent of the cluster ever connected.
	NeverConnected bool
	// Reason is the reason and the remedy, if the broker knows it: an agent was rejected, or its certificate
	// expired.
	Reason string
}

// HubPosition identifies the hub of a source and a position in its history.
type HubPosition struct {
	UID             string // of the namespace kube-system
	ResourceVersion string // of the list of works
}

// SyncReport reports that all records of the source on these clusters are as wanted, except for withheld
// deletions.
type SyncReport struct {
	Clusters []ClusterSyncReport
	// Position is set if the whole comparison is finished and no deletion is withheld.
	Position *HubPosition
	// AllClusters: the source serves all clusters and has finished all comparisons.
	AllClusters bool
}

// ClusterSyncReport is the outcome for one cluster. A cluster with withheld deletions does not count as synced.
type ClusterSyncReport struct {
	Cluster  string
	Withheld []WithheldDeletion
	Reason   string // one sentence for display; only with Withheld
}

// WithheldDeletion is a record that its source no longer has; its deletion needs approval.
type WithheldDeletion struct {
	ResourceID string
	Name       string
	Revision   uint64 // of the record's spec at the comparison
}

// ClusterDigest is the digest of a source's records on one cluster.
type ClusterDigest struct {
	Cluster string
	Digest  Digest
}

// InventoryRecord is one record of the requesting source.
type InventoryRecord struct {
	Cluster    string
	ResourceID string
	Name       string
	Version    int64
	Tag        Tag
	Revision   uint64
	Tombstone  bool
}

// NewCheckpoint builds the event of a checkpoint.
func NewCheckpoint(p SyncParams, c Checkpoint) (Event, error) {
	return p.event(TypeCheckpoint, c.proto())
}

// MarshalCheckpoint returns the protobuf bytes of the event of a checkpoint. A broker sends one after most
// deliveries.
func MarshalCheckpoint(p SyncParams, c Checkpoint) ([]byte, error) {
	b, err := p.builder(TypeCheckpoint, c.proto())
	if err != nil {
		return nil, err
	}
	return b.Marshal()
}

func (c *Checkpoint) proto() *hawserv1.Checkpoint {
	return &hawserv1.Checkpoint{
		Cursor:                 protoCursor(c.Cursor),
		Digest:                 protoDigest(c.Digest),
		HighestSequenceId:      c.HighestSequenceID,
		SyncedSources:          c.SyncedSources,
		ListAnswered:           c.ListAnswered,
		Orphans:                c.Orphans,
		AnsweredStatusRequests: c.AnsweredStatusRequests,
	}
}

// ParseCheckpoint reads the event of a checkpoint. The error is an
// *AttributeError about "type", "data" or "datacontenttype".
func ParseCheckpoint(e Event) (Checkpoint, error) {
	var m hawserv1.Checkpoint
	if err := syncPayload(e, TypeCheckpoint, &m); err != nil {
		return Checkpoint{}, err
	}
	c := Checkpoint{
		HighestSequenceID: m.GetHighestSequenceId(), SyncedSources: m.GetSyncedSources(),
		ListAnswered: m.GetListAnswered(), Orphans: m.GetOrphans(), AnsweredStatusRequests: m.GetAnsweredStatusRequests(),
	}
	if c.HighestSequenceID != "" {
		if _, err := parseSequence(c.HighestSequenceID); err != nil {
			return Checkpoint{}, attributeError("data", c.HighestSequenceID, "highest_sequence_id must be a decimal number")
		}
	}
	var err error
	if c.Cursor, err = cursorOf(m.GetCursor()); err != nil {
		return Checkpoint{}, err
	}
	c.Digest, err = digestOf(m.GetDigest())
	return c, err
}

// NewAck builds the event of an ack.
func NewAck(p SyncParams, a Ack) (Event, error) {
	return p.event(TypeAck, &hawserv1.Ack{Cursor: protoCursor(a.Cursor), Digest: protoDigest(a.Digest)})
}

// ParseAck reads the event of an ack; see ParseCheckpoint.
func ParseAck(e Event) (a Ack, err error) {
	var m hawserv1.Ack
	if err = syncPayload(e, TypeAck, &m); err != nil {
		return Ack{}, err
	}
	if a.Cursor, err = cursorOf(m.GetCursor()); err != nil {
		return Ack{}, err
	}
	a.Digest, err = digestOf(m.GetDigest())
	return a, err
}

// NewKeepalive builds the event by which an agent behind a stateless broker reports that it is connected.
// d is the digest of the works of one source that it holds.
func NewKeepalive(p SyncParams, d Digest) (Event, error) {
	return p.event(TypeKeepalive, &hawserv1.Keepalive{Digest: protoDigest(&d)})
}

// NewGoodbye builds the event that reports that such an agent is disconnected. It has no data.
func NewGoodbye(p SyncParams) (Event, error) {
	return p.event(TypeGoodbye, &hawserv1.Goodbye{})
}

// ParseKeepalive reads the event of a keepalive or a goodbye; see ParseCheckpoint. A goodbye has no digest.
func ParseKeepalive(e Event) (d Digest, goodbye bool, err error) {
	if e.Type() == TypeGoodbye {
		return Digest{}, true, nil
	}
	var m hawserv1.Keepalive
	if err := syncPayload(e, TypeKeepalive, &m); err != nil {
		return Digest{}, false, err
	}
	held, err := digestOf(m.GetDigest())
	if err == nil && held == nil {
		err = attributeError("data", "", "needs a digest")
	}
	if err != nil {
		return Digest{}, false, err
	}
	return *held, false, nil
}

// NewInventoryRequest builds the event of an inventory request.
func NewInventoryRequest(p SyncParams, r InventoryRequest) (Event, error) {
	return p.event(TypeInventoryRequest, &hawserv1.InventoryRequest{Clusters: r.Clusters, PageToken: r.PageToken})
}

// ParseInventoryRequest reads the event of an inventory request; see
// ParseCheckpoint.
func ParseInventoryRequest(e Event) (InventoryRequest, error) {
	var m hawserv1.InventoryRequest
	if err := syncPayload(e, TypeInventoryRequest, &m); err != nil {
		return InventoryRequest{}, err
	}
	if err := checkNames(m.GetClusters()...); err != nil {
		return InventoryRequest{}, err
	}
	return InventoryRequest{Clusters: m.GetClusters(), PageToken: m.GetPageToken()}, nil
}

// NewInventory builds the event of an inventory page.
func NewInventory(p SyncParams, inv Inventory) (Event, error) {
	m := &hawserv1.Inventory{
		Revision: inv.Revision, NextPageToken: inv.NextPageToken,
		RequestId: inv.RequestID, LastPosition: protoPosition(inv.LastPosition),
	}
	for i := range inv.Clusters {
		m.Clusters = append(m.Clusters, &hawserv1.ClusterDigest{
			Cluster: inv.Clusters[i].Cluster,
			Digest:  protoDigest(&inv.Clusters[i].Digest),
		})
	}
	for i := range inv.Records {
		r := &inv.Records[i]
		m.Records = append(m.Records, &hawserv1.InventoryRecord{
			Cluster:    r.Cluster,
			ResourceId: r.ResourceID,
			Name:       r.Name,
			Version:    r.Version,
			Tag:        r.Tag[:],
			Revision:   r.Revision,
			Tombstone:  r.Tombstone,
		})
	}
	return p.event(TypeInventory, m)
}

// ParseInventory reads the event of an inventory page; see ParseCheckpoint.
func ParseInventory(e Event) (Inventory, error) {
	var m hawserv1.Inventory
	if err := syncPayload(e, TypeInventory, &m); err != nil {
		return Inventory{}, err
	}
	inv := Inventory{
		Revision: m.GetRevision(), NextPageToken: m.GetNextPageToken(),
		RequestID: m.GetRequestId(), LastPosition: positionOf(m.GetLastPosition()),
	}
	for _, c := range m.GetClusters() {
		d, err := digestOf(c.GetDigest())
		if err != nil {
			return Inventory{}, err
		}
		if d == nil {
			d = &Digest{}
		}
		inv.Clusters = append(inv.Clusters, ClusterDigest{Cluster: c.GetCluster(), Digest: *d})
	}
	for _, r := range m.GetRecords() {
		if len(r.GetTag()) != len(Tag{}) {
			return Inventory{}, attributeError("data", "", "a tag in the inventory is not 16 bytes long")
		}
		inv.Records = append(inv.Records, InventoryRecord{
			Cluster:    r.GetCluster(),
			ResourceID: r.GetResourceId(),
			Name:       r.GetName(),
			Version:    r.GetVersion(),
			Tag:        Tag(r.GetTag()),
			Revision:   r.GetRevision(),
			Tombstone:  r.GetTombstone(),
		})
	}
	return inv, nil
}

// NewDisconnectedClusters builds the event of disconnected clusters.
func NewDisconnectedClusters(p SyncParams, d DisconnectedClusters) (Event, error) {
	m := &hawserv1.DisconnectedClusters{More: d.More}
	for _, c := range d.Clusters {
		m.Clusters = append(m.Clusters, &hawserv1.DisconnectedCluster{
			Cluster: c.Cluster, Since: timestamppb.New(c.Since), NeverConnected: c.NeverConnected, Reason: c.Reason,
		})
	}
	return p.event(TypeDisconnectedClusters, m)
}

// ParseDisconnectedClusters reads the event of disconnected clusters; see ParseCheckpoint.
func ParseDisconnectedClusters(e Event) (DisconnectedClusters, error) {
	var m hawserv1.DisconnectedClusters
	if err := syncPayload(e, TypeDisconnectedClusters, &m); err != nil {
		return DisconnectedClusters{}, err
	}
	d := DisconnectedClusters{More: m.GetMore()}
	for _, c := range m.GetClusters() {
		if err := checkNames(c.GetCluster()); err != nil {
			return DisconnectedClusters{}, err
		}
		d.Clusters = append(d.Clusters, DisconnectedCluster{
			Cluster: c.GetCluster(), Since: c.GetSince().AsTime(), NeverConnected: c.GetNeverConnected(), Reason: c.GetReason(),
		})
	}
	return d, nil
}

// NewSyncReport builds the event of a SyncReport.
func NewSyncReport(p SyncParams, c SyncReport) (Event, error) {
	m := &hawserv1.SyncReport{Position: protoPosition(c.Position), AllClusters: c.AllClusters}
	for _, cl := range c.Clusters {
		pc := &hawserv1.ClusterSyncReport{Cluster: cl.Cluster, Reason: cl.Reason}
		for _, w := range cl.Withheld {
			pc.Withheld = append(pc.Withheld, &hawserv1.WithheldDeletion{ResourceId: w.ResourceID, Name: w.Name, Revision: w.Revision})
		}
		m.Clusters = append(m.Clusters, pc)
	}
	return p.event(TypeSyncReport, m)
}

// ParseSyncReport reads the event of a SyncReport; see ParseCheckpoint.
func ParseSyncReport(e Event) (SyncReport, error) {
	var m hawserv1.SyncReport
	if err := syncPayload(e, TypeSyncReport, &m); err != nil {
		return SyncReport{}, err
	}
	c := SyncReport{Position: positionOf(m.GetPosition()), AllClusters: m.GetAllClusters()}
	if p := m.GetPosition(); p != nil {
		if err := checkNames(p.GetUid(), p.GetResourceVersion()); err != nil {
			return SyncReport{}, err
		}
	}
	for _, pc := range m.GetClusters() {
		cl, err := comparisonOf(pc)
		if err != nil {
			return SyncReport{}, err
		}
		c.Clusters = append(c.Clusters, cl)
	}
	return c, nil
}

func comparisonOf(m *hawserv1.ClusterSyncReport) (c ClusterSyncReport, err error) {
	c = ClusterSyncReport{Cluster: m.GetCluster(), Reason: shown(m.GetReason())}
	if c.Cluster == "" {
		return c, attributeError("data", "", "a compared cluster has no name")
	}
	err = checkNames(c.Cluster)
	for _, w := range m.GetWithheld() {
		if w.GetResourceId() == "" || w.GetRevision() == 0 {
			return c, attributeError("data", "", "a withheld deletion needs resource_id and revision")
		}
		err = cmp.Or(err, checkNames(w.GetResourceId(), w.GetName()))
		c.Withheld = append(c.Withheld, WithheldDeletion{ResourceID: w.GetResourceId(), Name: w.GetName(), Revision: w.GetRevision()})
	}
	return c, err
}

func protoPosition(p *HubPosition) *hawserv1.HubPosition {
	if p == nil {
		return nil
	}
	return &hawserv1.HubPosition{Uid: p.UID, ResourceVersion: p.ResourceVersion}
}

// positionOf returns nil for an absent position.
func positionOf(m *hawserv1.HubPosition) *HubPosition {
	if m == nil {
		return nil
	}
	return &HubPosition{UID: m.GetUid(), ResourceVersion: m.GetResourceVersion()}
}

func (p *SyncParams) event(eventType string, payload proto.Message) (Event, error) {
	b, err := p.builder(eventType, payload)
	if err != nil {
		return Event{}, err
	}
	return b.Event()
}

func (p *SyncParams) builder(eventType string, payload proto.Message) (Builder, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(payload)
	if err != nil {
		return Builder{}, attributeError("data", "", "cannot be encoded: "+err.Error())
	}
	return Builder{
		ID:             p.ID,
		Time:           p.Time,
		Source:         p.Source,
		Type:           eventType,
		Cluster:        p.Cluster,
		OriginalSource: p.Owner,
		ContentType:    ContentTypeProtobuf,
		Data:           data,
	}, nil
}

// syncPayload decodes the data of a sync event. An empty message has no data, and therefore no content type.
func syncPayload(e Event, eventType string, into proto.Message) error {
	if e.Type() != eventType {
		return attributeError("type", e.Type(), "must be "+eventType)
	}
	if len(e.Data()) == 0 {
		return nil
	}
	if ct := e.DataContentType(); mediaType([]byte(ct)) != ContentTypeProtobuf {
		return attributeError("datacontenttype", ct, "must be "+ContentTypeProtobuf)
	}
	if err := proto.Unmarshal(e.Data(), into); err != nil {
		return attributeError("data", "", "is not the protobuf message of "+eventType)
	}
	return nil
}

func protoCursor(c Cursor) *hawserv1.Cursor {
	return &hawserv1.Cursor{StoreId: c.StoreID, Incarnation: c.Incarnation, Revision: c.Revision}
}

func cursorOf(m *hawserv1.Cursor) (Cursor, error) {
	c := Cursor{StoreID: m.GetStoreId(), Incarnation: m.GetIncarnation(), Revision: m.GetRevision()}
	if _, err := ParseCursor(c.String()); err != nil {
		return Cursor{}, attributeError("data", c.String(), "the cursor needs store_id and incarnation, neither with a slash")
	}
	return c, nil
}

func protoDigest(d *Digest) *hawserv1.Digest {
	if d == nil {
		return nil
	}
	return &hawserv1.Digest{Count: d.Count, Sum: d.Sum[:]}
}

// digestOf returns nil for an absent digest.
func digestOf(m *hawserv1.Digest) (*Digest, error) {
	if m == nil {
		return nil, nil //nolint:nilnil // absent is a value here
	}
	d := &Digest{Count: m.GetCount()}
	if len(m.GetSum()) != len(d.Sum) {
		return nil, attributeError("data", "", "the sum of a digest must be 16 bytes long")
	}
	d.Sum = DigestSum(m.GetSum())
	return d, nil
}
