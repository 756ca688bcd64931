package broker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// formerStore and formerBackup were written by the broker of commit 0647681f. TestFormer_Write of that commit
// contains the events. The store has every kind of value. The backup has the same state as the store.
const (
	formerStore  = "store/pebble/testdata/format-3"
	formerBackup = "store/pebble/testdata/format-3-backup"
)

// onFiles runs a broker over a store in a directory, in a bubble of virtual time.
func onFiles(t *testing.T, dir string, test func(w *world)) {
	t.Helper()
	s, err := pebble.Open(pebble.Options{Dir: dir, NewID: testkit.NewIDs("now")})
	if err != nil {
		t.Fatal(err)
	}
	cfg := ruled(identity.Limits{Works: 20, Clusters: 9}, identity.Limits{})
	cfg.Registration, cfg.Store, cfg.NewID = "hub", s, testkit.NewIDs("id")
	w := &world{T: t, Broker: testkit.StartBroker(t, testkit.Options{Broker: cfg})}
	test(w)
	w.Stop()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// hello subscribes an agent that reports the uid of its cluster.
func (w *world) hello(cluster, uid string, c codec.Cursor) *tap {
	w.Helper()
	return w.open(w.agent(cluster), func(raw *transport.RawSubscription, _ *tap) {
		raw.Hello = transport.Hello{Protocol: transport.Protocol, ClusterUID: uid, Cursor: c.String()}
	})
}

var (
	formerTime   = time.Date(2026, 5, 1, 8, 30, 0, 0, time.UTC)
	formerIssue  = time.Date(1999, 4, 2, 1, 2, 3, 0, time.UTC)
	formerDenied = []denylist.Denial{
		{Subject: denylist.Subject{Serial: "a1b"}, By: "olga", At: formerTime},
		{Subject: denylist.Subject{Identity: identity.Identity{Role: identity.Agent, Name: "c9"}}, By: "olga", At: formerTime, Reason: "stolen"},
	}
	formerPosition = codec.HubPosition{UID: "hub-uid", ResourceVersion: "4711"}
)

// former runs test with a broker over an unchanged copy of a directory.
func former(t *testing.T, from string, test func(w *world)) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { onFiles(t, dir, test) })
}

// formerWorks are the listed works: cluster, id, source, state, version, queued id, reported version, health.
var formerWorks = []string{
	"c1 again src 2 v1 again v1 2", "c1 back src 1 v5  v0 0", "c1 behind src 1 v2  v1 2", "c1 doubly src 2 v1 doubly-2 v1 2",
	"c1 fails src 1 v1  v1 4", "c1 forced src 3 v1  v1 0", "c1 goes src 2 v1  v1 2", "c1 gone src 3 v1  v1 0", "c1 live src 1 v3  v3 2",
	"c1 other ci 1 v1  v0 0", "c1 renamed src 2 v1 renamed-2 v1 2", "c1 unversioned src 1 v0  v0 0",
	"c2 handed src 1 v4  v4 2", "c2 late ci 1 v1  v0 0",
}

// TestFormer_Broker: a broker serves the store of an earlier release, and the backup that this release sent.
func TestFormer_Broker(t *testing.T) {
	for _, from := range []string{formerStore, formerBackup} {
		for what, test := range map[string]func(w *world){
			"operator": asOperator, "agent": asAgent, "source": asSource, "registration": asRegistration, "quota": asQuota,
		} {
			t.Run(filepath.Base(from)+"/"+what, func(t *testing.T) { former(t, from, test) })
		}
	}
}

// asOperator lists works, denials and earliest issue times.
func asOperator(w *world) {
	var got []string
	for _, m := range w.works(&hawserv1.ListWorksRequest{}) {
		got = append(got, fmt.Sprint(m.GetCluster(), " ", m.GetResourceId(), " ", m.GetSource(), " ", m.GetState().Number(), " v", m.GetVersion(),
			" ", m.GetQueuedResourceId(), " v", m.GetReportedVersion(), " ", m.GetHealth().Number()))
	}
	w.differs("works", formerWorks, got)
	if d := cmp.Diff(formerDenied, w.Denials().All()); d != "" {
		w.Errorf("denials (-want +got):\n%s", d)
	}
	for cluster, want := range map[string]time.Time{"c1": {}, "c2": formerIssue} {
		if got := w.Denials().Earliest(cluster); !got.Equal(want) {
			w.Errorf("earliest issue time of %s: %v, want %v", cluster, got, want)
		}
	}
}

// asAgent resumes from a cursor of an earlier incarnation, and confirms deletions. The agent then gets the
// queued specs.
func asAgent(w *world) {
	w.wantCode(<-w.hello("c1", "uid-2", codec.Cursor{}).ended, transport.CodeDenied)
	agent := w.hello("c1", "uid-1", codec.Cursor{StoreID: "former-1", Incarnation: "former-2", Revision: 30})
	if agent.accepted.Resync != codec.ResyncCursor {
		w.Errorf("resync %q", agent.accepted.Resync)
	}
	agent.expectAny(
		"spec resync_response again v1 deleting", "spec resync_response doubly v1 deleting", "spec resync_response goes v1 deleting",
		"spec resync_response renamed v1 deleting", "spec resync_response other v1",
	)
	w.seq = 100
	for id, want := range map[string]string{
		"again": "spec create_request again v2", "renamed": "spec create_request renamed-2 v1", "doubly": "spec delete_request doubly-2 v1 deleting",
	} {
		w.put(agent.peer, w.event(report{id: id, version: 1, deleted: true}))
		agent.expect(want)
	}
	w.put(w.source("src"), work{id: "live", version: 4, action: codec.UpdateRequest}.event())
	agent.expect("spec update_request live v4")

	listing := w.hello("c2", "uid-of-c2", codec.Cursor{StoreID: "former-1", Incarnation: "former-2", Revision: 39}) // beyond the last revision of that incarnation
	if listing.accepted.Resync != codec.ResyncList {
		w.Errorf("resync %q", listing.accepted.Resync)
	}
	w.request(listing)
	listing.expectAny("spec resync_response handed v4", "spec resync_response late v1")
}

// asSource resumes from a cursor of an earlier incarnation, and gets the hub position that it reported.
func asSource(w *world) {
	source := w.open(w.source("src"), from(codec.Cursor{StoreID: "former-1", Incarnation: "former-2", Revision: 22}))
	if source.accepted.Resync != codec.ResyncCursor {
		w.Errorf("resync %q", source.accepted.Resync)
	}
	source.expectAny(
		"status resync_response forced v1", "status resync_response gone v1",
		"status resync_response handed v4", "status resync_response unheard v1",
	)
	inventory := source.page(codec.InventoryRequest{})
	if inventory.LastPosition == nil || *inventory.LastPosition != formerPosition {
		w.Errorf("position %+v, want %+v", inventory.LastPosition, formerPosition)
	}
	w.tries("an older version", "stale", source.peer, work{id: "live", version: 2, action: codec.UpdateRequest}.event())
	w.tries("the same", "unchanged", source.peer, work{id: "live", version: 3}.event())
	w.tries("of another source", "denied resourceid", source.peer, work{id: "other", version: 2, action: codec.UpdateRequest}.event())
}

// asRegistration checks the accepted clusters while the source that serves registration is disconnected.
func asRegistration(w *world) {
	for _, c := range []string{"c3", "c4"} {
		w.wantCode(<-w.open(w.agent(c), nil).ended, transport.CodeDenied)
	}
	for _, c := range []string{"c1", "c2"} {
		select {
		case err := <-w.open(w.agent(c), nil).ended:
			w.Errorf("%s: %v", c, err)
		default:
		}
	}
}

// asQuota publishes works until the quota of 20 works is used up.
func asQuota(w *world) {
	source := w.source("src")
	for i := range 10 {
		w.tries("with room", "accepted", source, work{id: fmt.Sprint("more-", i), version: 1}.event())
	}
	w.tries("one too many", "overloaded resourceid", source, work{id: "more-10", version: 1}.event())
}
