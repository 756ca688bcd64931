package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/agentstatus"
	"github.com/hawser-io/hawser/internal/broker/changefeed"
	"github.com/hawser-io/hawser/internal/broker/delivery"
	"github.com/hawser-io/hawser/internal/broker/denylist"
	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/syncstate"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

var (
	noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	olga = identity.Identity{Role: identity.Operator, Name: "olga"}
)

// syncFake is an admin over a store in memory, with fakes of the other components. The test sets the agents,
// and commits are immediate.
type syncFake struct {
	*testing.T
	*Admin
	agents  []delivery.Agent
	closing error
	failing error // error of the next commits
	orders  []string
	// followed is the revision up to which await has followed the store.
	followed uint64
}

func newSyncFake(t *testing.T) *syncFake {
	t.Helper()
	ids := 0
	s := mem.Open(mem.Options{NewID: func() string { ids++; return fmt.Sprint("store-", ids) }})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := &settings.Config{
		Store: s, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Now: func() time.Time { return noon },
		QueueBytes: 1 << 20, Comparisons: 1, NewID: func() string { ids++; return fmt.Sprint("id-", ids) },
	}
	cfg.Replicas = settings.NewReplicas(cfg)
	d := &syncFake{T: t}
	c := syncstate.New(cfg)
	c.Connect(d, d, d.await)
	known := agentstatus.New(cfg)
	denied, err := denylist.New(s, changefeed.New(s))
	if err != nil {
		t.Fatal(err)
	}
	d.Admin = New(cfg, Parts{Sync: c, Agents: d, Writer: d, Peers: known, Denials: denied})
	known.Connect(d)
	return d
}

func (d *syncFake) Agents(cluster string) []delivery.Agent {
	return slices.DeleteFunc(slices.Clone(d.agents), func(a delivery.Agent) bool { return cluster != "" && a.Scope.Cluster != cluster })
}

func (d *syncFake) ConnectionOf(scope store.Scope, head store.ClusterHead) agentstatus.Connection {
	agents := slices.DeleteFunc(d.Agents(scope.Cluster), func(a delivery.Agent) bool { return a.Scope != scope })
	return delivery.Summarize(agents, head)
}

func (*syncFake) EndFormer(store.Scope, []string) {}

func (d *syncFake) StateOf(scope store.Scope, head store.ClusterHead) (worst agentstatus.State) {
	for _, a := range d.Agents(scope.Cluster) {
		worst = max(worst, a.State(head))
	}
	return worst
}

func (d *syncFake) ResolveOrphan(cluster, uid string, adopt bool) (string, error) {
	d.orders = append(d.orders, fmt.Sprint(cluster, " ", uid, " ", adopt))
	return "work-of-" + uid, nil
}

func (d *syncFake) Closing() error                          { return d.closing }
func (*syncFake) Sources() []string                         { return nil }
func (*syncFake) Recheck(syncstate.Change)                  {}
func (*syncFake) End(store.Scope, string, *transport.Error) {}

// await follows the store.
func (d *syncFake) await(ctx context.Context, revision uint64) error {
	for d.followed < revision {
		changes, err := d.cfg.Store.Changes(ctx, d.followed, 1)
		if err != nil {
			return err
		}
		d.followed = changes[0].Revision
		d.sync.Changed(&changes[0])
	}
	return nil
}

func (d *syncFake) Commit(ctx context.Context, _ identity.Identity, ops ...store.Op) ([]store.Outcome, error) {
	if d.failing != nil {
		return nil, d.failing
	}
	return d.cfg.Store.Commit(ctx, ops)
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func placed(cluster string) store.Scope {
	return store.Scope{DataType: codec.ManifestBundles, Cluster: cluster}
}

func recordKey(cluster, id string) store.Key {
	return store.Key{DataType: codec.ManifestBundles, Cluster: cluster, ResourceID: id}
}

func (d *syncFake) isSynced(cluster, owner string) bool {
	return d.sync.Sources.IsSynced(placed(cluster), owner)
}

// put makes live records of source "src". The order of the names is the reverse of the order of the ids.
func (d *syncFake) put(cluster string, ids ...string) {
	d.Helper()
	for _, id := range ids {
		must(d.cfg.Store.Commit(d.Context(), []store.Op{{
			Kind: store.PutSpec, Key: recordKey(cluster, id), Owner: "src", Name: fmt.Sprint(string('z'-id[len(id)-1]+'0'), id),
			Action: codec.CreateRequest, Version: 1, Tag: codec.TagOf(false, 1, id, nil), Event: []byte(id), At: noon,
		}}))(d.T)
	}
}

// source is the subscription of source "src".
type source struct{}

func (source) Scope() store.Scope               { return store.Scope{DataType: codec.ManifestBundles, Owner: "src"} }
func (source) Compares(uint64) *transport.Error { return nil }
func (source) Shared() store.Fence              { return store.Fence{} }

// compare sends the sync report of source "src" about a cluster. The source withholds the deletions of the
// missing works.
func (d *syncFake) compare(cluster string, missing ...string) (withheld []*hawserv1.WithheldDeletion) {
	d.Helper()
	c := codec.ClusterSyncReport{Cluster: cluster, Reason: "the hub lacks them"}
	for _, id := range missing {
		r := must(d.cfg.Store.Get(d.Context(), recordKey(cluster, id)))(d.T)
		c.Withheld = append(c.Withheld, codec.WithheldDeletion{ResourceID: id, Name: r.Name, Revision: r.SpecRevision})
		withheld = append(withheld, &hawserv1.WithheldDeletion{ResourceId: id, Revision: r.SpecRevision})
	}
	p := codec.SyncParams{ID: "1", Source: "src", Time: noon}
	e := must(codec.NewSyncReport(p, codec.SyncReport{Clusters: []codec.ClusterSyncReport{c}}))(d.T)
	if err := d.sync.Sources.SyncReport(d.Context(), &request.Event{Subscription: "1", Env: &codec.Envelope{RawType: e.Type(), ContentType: e.DataContentType(), Data: e.Data()}}, source{}); err != nil {
		d.Fatal(err)
	}
	return withheld
}

func (d *syncFake) wantCode(what string, err error, code transport.Code) {
	d.Helper()
	var e *transport.Error
	if !errors.As(err, &e) || e.Code != code || e.Message == "" {
		d.Errorf("%s: %v, want code %v", what, err, code)
	}
}

// TestListClusters_OfSeveralAgentsTheWorstCounts checks that an agent in sync does not hide one that is out of
// sync.
func TestListClusters_OfSeveralAgentsTheWorstCounts(t *testing.T) {
	d := newSyncFake(t)
	d.put("c1", "w1", "w2")
	inSync := delivery.Agent{Scope: placed("c1"), Since: noon, Acked: 2, Sync: delivery.InSync}
	behind := delivery.Agent{Scope: placed("c1"), Since: noon, Acked: 1, Sync: delivery.InSync, Pending: 3}
	muted := delivery.Agent{Scope: placed("c1"), Since: noon}
	differs := delivery.Agent{Scope: placed("c1"), Since: noon, Acked: 2, Sync: delivery.OutOfSync}
	for _, c := range []struct {
		agents  []delivery.Agent
		sync    hawserv1.SyncState
		pending uint64
		acked   uint64
	}{
		{[]delivery.Agent{inSync}, hawserv1.SyncState_SYNC_STATE_IN_SYNC, 0, 2},
		{[]delivery.Agent{inSync, behind}, hawserv1.SyncState_SYNC_STATE_SYNCING, 3, 1},
		{[]delivery.Agent{behind, inSync, muted}, hawserv1.SyncState_SYNC_STATE_UNSPECIFIED, 3, 0},
		{[]delivery.Agent{differs, behind, muted}, hawserv1.SyncState_SYNC_STATE_OUT_OF_SYNC, 3, 0},
	} {
		d.agents = c.agents
		var got []*hawserv1.ListClustersResponse
		err := d.ListClusters(&hawserv1.ListClustersRequest{}, admincall.To(t.Context(), func(r *hawserv1.ListClustersResponse) error {
			got = append(got, r)
			return nil
		}))
		if err != nil || len(got) != 1 || got[0].GetSync() != c.sync || got[0].GetPending() != c.pending || got[0].GetAckedRevision() != c.acked || int(got[0].GetSubscriptions()) != len(c.agents) {
			t.Errorf("%+v, %v; want %v, %d pending, %d acknowledged", got, err, c.sync, c.pending, c.acked)
		}
	}
}

// TestListWorks_ByClusterThenID checks the order of the list, the filter by cluster, and its end when the
// caller leaves.
func TestListWorks_ByClusterThenID(t *testing.T) {
	d := newSyncFake(t)
	d.put("c2", "w1")
	d.put("c1", "w1", "w2", "w3")
	list := func(ctx context.Context, cluster, source string, most int) (ids []string, err error) {
		err = d.ListWorks(&hawserv1.ListWorksRequest{Cluster: cluster, Source: source}, admincall.To(ctx, func(w *hawserv1.ListWorksResponse) error {
			if ids = append(ids, w.GetCluster()+w.GetResourceId()); len(ids) == most {
				return errors.New("it has left")
			}
			return nil
		}))
		return ids, err
	}
	if got, err := list(t.Context(), "", "", 0); err != nil || !slices.Equal(got, []string{"c1w1", "c1w2", "c1w3", "c2w1"}) {
		t.Errorf("all are %q, %v", got, err)
	}
	if got, err := list(t.Context(), "c2", "src", 0); err != nil || !slices.Equal(got, []string{"c2w1"}) {
		t.Errorf("those of c2 are %q, %v", got, err)
	}
	if got, err := list(t.Context(), "", "another", 0); err != nil || len(got) != 0 {
		t.Errorf("those of another source are %q, %v", got, err)
	}
	if got, err := list(t.Context(), "", "", 2); err == nil || len(got) != 2 {
		t.Errorf("a caller that leaves gets %q, %v", got, err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if got, err := list(gone, "", "", 0); !errors.Is(err, context.Canceled) || len(got) != 0 {
		t.Errorf("a caller that has left gets %q, %v", got, err)
	}
}

// TestApprove_AllOrNothing checks that nothing is deleted if one of the works is not withheld. If the commit
// fails, the works stay withheld.
func TestApprove_AllOrNothing(t *testing.T) {
	d := newSyncFake(t)
	d.put("c1", "w1", "w2", "w3")
	withheld := d.compare("c1", "w1", "w2")
	approve := func(works ...*hawserv1.WithheldDeletion) error {
		_, err := d.Approve(admincall.By(t.Context(), olga), &hawserv1.ApproveRequest{Source: "src", Cluster: "c1", Works: works})
		return err
	}
	state := func(id string) store.State { return must(d.cfg.Store.Get(t.Context(), recordKey("c1", id)))(t).State }
	d.wantCode("with one that is wanted", approve(withheld[0], &hawserv1.WithheldDeletion{ResourceId: "w3", Revision: 3}), transport.CodeConflict)
	d.failing = store.ErrReadOnly
	d.wantCode("on a disk that fails", approve(withheld...), transport.CodeUnavailable)
	d.failing = nil
	if state("w1") != store.Live || d.isSynced("c1", "src") {
		t.Error("something was decided")
	}
	if err := approve(withheld[0]); err != nil || state("w1") == store.Live || d.isSynced("c1", "src") {
		t.Errorf("of two withheld one is approved: %v, %v", state("w1"), err)
	}
	if err := approve(withheld[1]); err != nil || state("w2") == store.Live || state("w3") != store.Live || !d.isSynced("c1", "src") {
		t.Errorf("both are approved: %v, %v", state("w2"), err)
	}
}

// TestForceDeleteWork_IsNoSourceReport checks that after an operator removes a work, its source is not synced
// for the cluster until it has compared again. The removal is no report of the source.
func TestForceDeleteWork_IsNoSourceReport(t *testing.T) {
	for name, do := range map[string]func(d *syncFake) error{
		"forget": func(d *syncFake) error {
			_, err := d.ForceDeleteWork(admincall.By(d.Context(), olga), &hawserv1.ForceDeleteWorkRequest{Cluster: "c1", ResourceId: "w1"})
			return err
		},
		"adopt": func(d *syncFake) error {
			_, err := d.TransferWork(admincall.By(d.Context(), olga), &hawserv1.TransferWorkRequest{Cluster: "c1", ResourceId: "w1", Source: "heir"})
			return err
		},
		"forget the cluster": func(d *syncFake) error {
			r, err := d.UnbindCluster(admincall.By(d.Context(), olga), &hawserv1.UnbindClusterRequest{Cluster: "c1", Works: true})
			if r.GetWorks() != 2 {
				d.Errorf("%d works are forgotten", r.GetWorks())
			}
			return err
		},
	} {
		d := newSyncFake(t)
		d.put("c1", "w1", "w2")
		d.put("c2", "w3")
		d.compare("c1")
		d.compare("c2")
		if err := do(d); err != nil || d.isSynced("c1", "src") || !d.isSynced("c2", "src") {
			t.Errorf("%s: %v; synced for c1: %t, for c2: %t", name, err, d.isSynced("c1", "src"), d.isSynced("c2", "src"))
		}
	}
}

// TestOperations_AreRefused checks requests with an empty name, with an unknown name, and during a drain.
func TestOperations_AreRefused(t *testing.T) {
	d := newSyncFake(t)
	d.put("c1", "w1")
	forget := func(cluster, id string) error {
		_, err := d.ForceDeleteWork(admincall.By(t.Context(), olga), &hawserv1.ForceDeleteWorkRequest{Cluster: cluster, ResourceId: id})
		return err
	}
	d.wantCode("no cluster", forget("", "w1"), transport.CodeInvalid)
	d.wantCode("no id", forget("c1", ""), transport.CodeInvalid)
	d.wantCode("no such work", forget("c1", "w9"), transport.CodeNotFound)
	_, err := d.UnbindCluster(admincall.By(t.Context(), olga), &hawserv1.UnbindClusterRequest{Cluster: "c9", Works: true})
	d.wantCode("no such cluster", err, transport.CodeNotFound)
	_, err = d.Admin.ResolveOrphan(admincall.By(t.Context(), olga), &hawserv1.ResolveOrphanRequest{Cluster: "c1"})
	d.wantCode("no uid", err, transport.CodeInvalid)
	d.closing = request.ErrDraining()
	d.wantCode("at the end", forget("c1", "w1"), transport.CodeUnavailable)
	d.closing = nil
	d.failing = store.ErrClosed
	_, err = d.UnbindCluster(admincall.By(t.Context(), olga), &hawserv1.UnbindClusterRequest{Cluster: "c1", Works: true})
	d.wantCode("on a store that is closed", err, transport.CodeUnavailable)
	if r := must(d.cfg.Store.Get(t.Context(), recordKey("c1", "w1")))(t); r.State != store.Live || len(d.orders) != 0 {
		t.Errorf("the work is %v, orders: %q", r.State, d.orders)
	}
}

// TestListDiscrepancies_NamesOrphansOnce checks AppliedManifestWorks that two agents of a cluster report. Each
// is listed once, and the number of omitted ones is shown.
func TestListDiscrepancies_NamesOrphansOnce(t *testing.T) {
	d := newSyncFake(t)
	lost := codec.OrphanRecord{UID: "u1", Name: "lost", Objects: 2, Created: noon.Add(-time.Hour), Outcome: "the API server is away"}
	shared := codec.OrphanRecord{UID: "u2", Name: "shared", Objects: 1, Shared: true}
	d.agents = []delivery.Agent{
		{Scope: placed("c1"), Applied: codec.OrphanReport{Records: []codec.OrphanRecord{lost, shared}}},
		{Scope: placed("c1"), Applied: codec.OrphanReport{Records: []codec.OrphanRecord{lost}, More: 7}},
		{Scope: placed("c2"), Applied: codec.OrphanReport{Records: []codec.OrphanRecord{lost}}},
	}
	list := func(cluster string) (lines []string) {
		err := d.ListDiscrepancies(&hawserv1.ListDiscrepanciesRequest{Cluster: cluster}, admincall.To(t.Context(), func(o *hawserv1.ListDiscrepanciesResponse) error {
			lines = append(lines, strings.TrimPrefix(o.GetCause().String(), "DISCREPANCY_CAUSE_")+" "+o.GetCluster()+" "+o.GetName()+": "+o.GetDetail())
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	want := []string{
		"UNOWNED c1 lost: AppliedManifestWork with 2 objects, 1h0m0s old, and no work; the API server is away",
		"SHARED c1 shared: AppliedManifestWork of another hub with 1 objects, an unknown age old",
		"UNOWNED c1 : and 7 more AppliedManifestWorks, which are counted and not named",
	}
	if got := list("c1"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := list(""); len(got) != len(want)+1 {
		t.Errorf("%q", got)
	}
	if r, err := d.Admin.ResolveOrphan(admincall.By(t.Context(), olga), &hawserv1.ResolveOrphanRequest{Cluster: "c1", Uid: "u1", Adopt: true}); err != nil || r.GetName() != "work-of-u1" || !slices.Equal(d.orders, []string{"c1 u1 true"}) {
		t.Errorf("%+v, %v; orders: %q", r, err, d.orders)
	}
}

// copying is a store that sends two files.
type copying struct{ store.Store }

func (copying) Backup(_ context.Context, send func(string, []byte) error) error {
	return errors.Join(send("a", []byte("1")), send("b", []byte("2")))
}

// TestBackup_ReportsFailedReceiverOrStore checks that the error states whether the receiver or the store failed.
func TestBackup_ReportsFailedReceiverOrStore(t *testing.T) {
	d := newSyncFake(t)
	backup := func(ctx context.Context, fails error) (paths []string, err error) {
		err = d.Backup(nil, admincall.To(ctx, func(r *hawserv1.BackupResponse) error {
			paths = append(paths, r.GetPath())
			return fails
		}))
		return paths, err
	}
	_, err := backup(t.Context(), nil)
	d.wantCode("a store without files", err, transport.CodeInvalid)
	d.cfg.Store = copying{d.cfg.Store}
	if paths, err := backup(t.Context(), nil); err != nil || !slices.Equal(paths, []string{"a", "b"}) {
		t.Errorf("%q, %v", paths, err)
	}
	_, err = backup(t.Context(), errors.New("broken pipe"))
	d.wantCode("a stream that breaks", err, transport.CodeUnavailable)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = backup(gone, errors.New("broken pipe"))
	d.wantCode("a caller that has left", err, transport.CodeUnavailable)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left: %v", err)
	}
}
