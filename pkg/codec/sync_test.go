package codec

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

func TestParseCursor(t *testing.T) {
	for _, want := range []Cursor{{"epoch", "term", 0}, {"e", "t", 1<<64 - 1}} {
		if got, err := ParseCursor(want.String()); err != nil || got != want {
			t.Errorf("%s: %v, %v", want, got, err)
		}
	}
	if s := (Cursor{}).String(); s != "" {
		t.Errorf("the zero cursor is %q", s)
	}
	for _, bad := range []string{"", "/", "//", "e/t", "e/t/", "/t/1", "e//1", "e/t/1/", "e/t/x", "e/t/-1", "e/t/18446744073709551616", strings.Repeat("x", 1000)} {
		got, err := ParseCursor(bad)
		if err == nil || !strings.Contains(err.Error(), HeaderCursor) || len(err.Error()) > 200 {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}

var (
	syncAgent  = SyncParams{ID: "e1", Time: testTime, Source: "hawser", Cluster: "cluster1"}
	syncSource = SyncParams{ID: "e1", Time: testTime, Source: "src1", Owner: "src1"}
	someCursor = Cursor{StoreID: "epoch", Incarnation: "term", Revision: 1 << 40}
	someDigest = &Digest{Count: 2, Sum: DigestSum(RecordHash("u1", Tag{})).Add(RecordHash("u2", Tag{}))}
)

func TestSyncEvents_Golden(t *testing.T) {
	e, err := NewCheckpoint(syncAgent, Checkpoint{Cursor: someCursor, Digest: someDigest, HighestSequenceID: "2123694259314888704"})
	golden(t, "checkpoint.txt", e, err)
	e, err = NewCheckpoint(syncAgent, Checkpoint{
		Cursor: someCursor, Digest: someDigest, SyncedSources: []string{"src1", "src2"}, ListAnswered: true, Orphans: []string{"u9"}, AnsweredStatusRequests: 3,
	})
	golden(t, "checkpoint_listed.txt", e, err)
	e, err = NewSyncReport(syncSource, SyncReport{
		Clusters: []ClusterSyncReport{
			{Cluster: "cluster1"},
			{Cluster: "cluster2", Withheld: []WithheldDeletion{{ResourceID: "u1", Name: "w1", Revision: 9}}, Reason: "the hub went back in time"},
		},
		Position:    &HubPosition{UID: "hub-uid", ResourceVersion: "17"},
		AllClusters: true,
	})
	golden(t, "sync_report.txt", e, err)
	e, err = NewAck(syncAgent, Ack{Cursor: someCursor, Digest: someDigest})
	golden(t, "ack.txt", e, err)
	e, err = NewKeepalive(syncAgent, *someDigest)
	golden(t, "keepalive.txt", e, err)
	e, err = NewGoodbye(syncAgent)
	golden(t, "goodbye.txt", e, err)
	e, err = NewDisconnectedClusters(syncSource, DisconnectedClusters{
		Clusters: []DisconnectedCluster{{Cluster: "cluster1", Since: testTime, Reason: "its agent was rejected"}, {Cluster: "cluster2", Since: testTime, NeverConnected: true}},
		More:     true,
	})
	golden(t, "disconnected_clusters.txt", e, err)
	e, err = NewInventoryRequest(syncSource, InventoryRequest{})
	golden(t, "inventory_request_digests.txt", e, err)
	e, err = NewInventoryRequest(syncSource, InventoryRequest{Clusters: []string{"cluster1"}, PageToken: "page"})
	golden(t, "inventory_request.txt", e, err)
	e, err = NewInventory(syncSource, Inventory{
		Clusters: []ClusterDigest{{Cluster: "cluster1", Digest: *someDigest}},
		Records: []InventoryRecord{{
			Cluster: "cluster1", ResourceID: "u1", Name: "w1", Version: 3, Tag: TagOf(false, 3, "", nil), Revision: 9, Tombstone: true,
		}},
		Revision:      10,
		NextPageToken: "page",
		RequestID:     "e0",
		LastPosition:  &HubPosition{UID: "hub-uid", ResourceVersion: "17"},
	})
	golden(t, "inventory.txt", e, err)
}

func drawDigest(t *rapid.T) *Digest {
	if rapid.Bool().Draw(t, "no digest") {
		return nil
	}
	return &Digest{Count: rapid.Uint64().Draw(t, "count"), Sum: DigestSum(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "sum"))}
}

func drawPosition(t *rapid.T) *HubPosition {
	if rapid.Bool().Draw(t, "no position") {
		return nil
	}
	return &HubPosition{UID: names.Draw(t, "hub"), ResourceVersion: names.Draw(t, "resource version")}
}

// names generates names, also the empty one.
var names = rapid.StringMatching(`[a-zA-Z0-9 äö.-]{0,12}`)

func drawCursor(t *rapid.T) Cursor {
	token := rapid.StringMatching(`[a-z0-9-]{1,10}`)
	return Cursor{StoreID: token.Draw(t, "epoch"), Incarnation: token.Draw(t, "term"), Revision: rapid.Uint64().Draw(t, "revision")}
}

// Every sync event survives the wire.
func TestSyncEvents_RoundTrip(t *testing.T) {
	wire := func(t *rapid.T, e Event, err error) Event {
		if err != nil {
			t.Fatal(err)
		}
		b, err := Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if e, err = Unmarshal(b); err != nil {
			t.Fatal(err)
		}
		return e
	}
	same := func(t *rapid.T, want, got any, err error) {
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Fatalf("%v (-want +got):\n%s", err, d)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		c := Checkpoint{Cursor: drawCursor(t), Digest: drawDigest(t), HighestSequenceID: rapid.StringMatching(`([1-9][0-9]{0,17})?`).Draw(t, "sequence"), ListAnswered: rapid.Bool().Draw(t, "listed"), SyncedSources: rapid.SliceOfN(rapid.String(), 1, 2).Draw(t, "sources"), Orphans: rapid.SliceOfN(rapid.String(), 1, 2).Draw(t, "orphans"), AnsweredStatusRequests: rapid.Uint64().Draw(t, "answered")}
		e, err := NewCheckpoint(syncAgent, c)
		gotC, err := ParseCheckpoint(wire(t, e, err))
		same(t, c, gotC, err)

		a := Ack{Cursor: drawCursor(t), Digest: drawDigest(t)}
		e, err = NewAck(syncAgent, a)
		gotA, err := ParseAck(wire(t, e, err))
		same(t, a, gotA, err)

		r := InventoryRequest{Clusters: rapid.SliceOfN(names, 1, 3).Draw(t, "clusters"), PageToken: rapid.String().Draw(t, "page")}
		e, err = NewInventoryRequest(syncSource, r)
		gotR, err := ParseInventoryRequest(wire(t, e, err))
		same(t, r, gotR, err)

		inv := Inventory{
			Clusters: []ClusterDigest{{Cluster: rapid.String().Draw(t, "cluster"), Digest: *someDigest}},
			Records: []InventoryRecord{{
				Cluster: "c", ResourceID: "u", Name: rapid.String().Draw(t, "name"), Version: rapid.Int64().Draw(t, "version"),
				Tag: TagOf(true, 0, "", nil), Revision: rapid.Uint64().Draw(t, "record revision"), Tombstone: rapid.Bool().Draw(t, "tombstone"),
			}},
			Revision: rapid.Uint64().Draw(t, "revision"), NextPageToken: rapid.String().Draw(t, "next"),
			RequestID: rapid.String().Draw(t, "request"), LastPosition: drawPosition(t),
		}
		e, err = NewInventory(syncSource, inv)
		gotI, err := ParseInventory(wire(t, e, err))
		same(t, inv, gotI, err)

		compared := SyncReport{
			Clusters: []ClusterSyncReport{{
				Cluster: "c" + names.Draw(t, "compared cluster"), Reason: names.Draw(t, "reason"),
				Withheld: []WithheldDeletion{{ResourceID: "u", Name: names.Draw(t, "withheld"), Revision: rapid.Uint64Min(1).Draw(t, "of")}},
			}},
			Position: drawPosition(t), AllClusters: rapid.Bool().Draw(t, "all"),
		}
		e, err = NewSyncReport(syncSource, compared)
		gotE, err := ParseSyncReport(wire(t, e, err))
		same(t, compared, gotE, err)
	})
}

func TestSyncEvents_AnEmptyRequestHasNoData(t *testing.T) {
	e, err := NewInventoryRequest(syncSource, InventoryRequest{})
	if err != nil || len(e.Data()) != 0 || e.DataContentType() != "" {
		t.Fatalf("%v, %v", e, err)
	}
	if got, err := ParseInventoryRequest(e); err != nil || len(got.Clusters) != 0 || got.PageToken != "" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseSync_ErrorNamesField(t *testing.T) {
	build := func(typ string, m proto.Message) Event {
		e, err := syncAgent.event(typ, m)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	cursor := protoCursor(someCursor)
	badDigest := &hawserv1.Digest{Sum: []byte("short")}
	garbage := build(TypeCheckpoint, &hawserv1.Checkpoint{Cursor: cursor})
	garbage.DataEncoded = []byte{0xff}
	asJSON := build(TypeCheckpoint, &hawserv1.Checkpoint{Cursor: cursor})
	asJSON.SetDataContentType(ContentTypeJSON)

	checkpoint := func(e Event) error { _, err := ParseCheckpoint(e); return err }
	ack := func(e Event) error { _, err := ParseAck(e); return err }
	inventory := func(e Event) error { _, err := ParseInventory(e); return err }
	request := func(e Event) error { _, err := ParseInventoryRequest(e); return err }
	compared := func(e Event) error { _, err := ParseSyncReport(e); return err }
	orphans := func(e Event) error { _, err := ParseOrphanReport(e); return err }
	long := strings.Repeat("l", MaxNameBytes+1)
	of := func(c *hawserv1.ClusterSyncReport) Event {
		return build(TypeSyncReport, &hawserv1.SyncReport{Clusters: []*hawserv1.ClusterSyncReport{c}})
	}
	for _, c := range []struct {
		name, attribute string
		parse           func(Event) error
		event           Event
	}{
		{"other type", "type", checkpoint, build(TypeAck, &hawserv1.Ack{Cursor: cursor})},
		{"other type", "type", ack, build(TypeCheckpoint, &hawserv1.Checkpoint{Cursor: cursor})},
		{"other type", "type", request, build(TypeInventory, &hawserv1.Inventory{})},
		{"other type", "type", inventory, build(TypeInventoryRequest, &hawserv1.InventoryRequest{})},
		{"garbage", "data", checkpoint, garbage},
		{"JSON", "datacontenttype", checkpoint, asJSON},
		{"no cursor", "data", checkpoint, build(TypeCheckpoint, &hawserv1.Checkpoint{})},
		{"no cursor", "data", ack, build(TypeAck, &hawserv1.Ack{})},
		{"cursor with a slash", "data", ack, build(TypeAck, &hawserv1.Ack{Cursor: &hawserv1.Cursor{StoreId: "a/b", Incarnation: "t"}})},
		{"digest", "data", checkpoint, build(TypeCheckpoint, &hawserv1.Checkpoint{Cursor: cursor, Digest: badDigest})},
		{"digest", "data", ack, build(TypeAck, &hawserv1.Ack{Cursor: cursor, Digest: badDigest})},
		{"sequence id", "data", checkpoint, build(TypeCheckpoint, &hawserv1.Checkpoint{Cursor: cursor, HighestSequenceId: "x"})},
		{"digest", "data", inventory, build(TypeInventory, &hawserv1.Inventory{Clusters: []*hawserv1.ClusterDigest{{Digest: badDigest}}})},
		{"other type", "type", compared, build(TypeAck, &hawserv1.Ack{Cursor: cursor})},
		{"cluster without a name", "data", compared, of(&hawserv1.ClusterSyncReport{})},
		{"withheld without an id", "data", compared, of(&hawserv1.ClusterSyncReport{Cluster: "c", Withheld: []*hawserv1.WithheldDeletion{{Revision: 1}}})},
		{"withheld without a revision", "data", compared, of(&hawserv1.ClusterSyncReport{Cluster: "c", Withheld: []*hawserv1.WithheldDeletion{{ResourceId: "u"}}})},
		{"cluster that cannot be printed", "data", compared, of(&hawserv1.ClusterSyncReport{Cluster: "c\x1b[2J"})},
		{"withheld with a long id", "data", compared, of(&hawserv1.ClusterSyncReport{Cluster: "c", Withheld: []*hawserv1.WithheldDeletion{{ResourceId: long, Revision: 1}}})},
		{"position that is long", "data", compared, build(TypeSyncReport, &hawserv1.SyncReport{Position: &hawserv1.HubPosition{Uid: long}})},
		{"cluster with a long name", "data", request, build(TypeInventoryRequest, &hawserv1.InventoryRequest{Clusters: []string{long}})},
		{"name that cannot be printed", "data", orphans, build(TypeOrphanReport, &hawserv1.OrphanReport{Records: []*hawserv1.OrphanRecord{{Uid: "u", Name: "\u202e"}}})},
		{"tag", "data", inventory, build(TypeInventory, &hawserv1.Inventory{Records: []*hawserv1.InventoryRecord{{Tag: []byte("short")}}})},
	} {
		err := c.parse(c.event)
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != c.attribute {
			t.Errorf("%s in %s: %v does not name %q", c.name, c.event.Type(), err, c.attribute)
		}
	}
}

// TestParseSync_TextsForPeopleAreShown: texts for display are cut and cleaned instead of rejected.
func TestParseSync_TextsForPeopleAreShown(t *testing.T) {
	reason := "two lines\nand \x1b[2J" + strings.Repeat("ä", MaxNameBytes)
	e, err := NewSyncReport(syncSource, SyncReport{Clusters: []ClusterSyncReport{{Cluster: "c", Reason: reason}}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseSyncReport(e)
	if err != nil {
		t.Fatal(err)
	}
	got := c.Clusters[0].Reason
	if !strings.HasPrefix(got, "two lines and  [2Jää") || CheckName("reason", got) != nil || len(got) < MaxNameBytes-2 {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// TestMarshalCheckpoint checks that the direct form has the same bytes as the event.
func TestMarshalCheckpoint(t *testing.T) {
	for name, c := range map[string]Checkpoint{
		"complete": {Cursor: someCursor, Digest: someDigest, HighestSequenceID: "1", SyncedSources: []string{"a"}, ListAnswered: true},
		"partial":  {Cursor: someCursor},
	} {
		e, err := NewCheckpoint(syncAgent, c)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := MarshalCheckpoint(syncAgent, c); err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := MarshalCheckpoint(SyncParams{}, Checkpoint{}); err == nil {
		t.Error("no error for an event without a time")
	}
}
