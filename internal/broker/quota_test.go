package broker_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// ruled returns a configuration in which source "src" has a quota and allowed clusters.
func ruled(q identity.Limits, each identity.Limits, clusters ...string) broker.Config {
	return broker.Config{Quotas: quota.NewTable(identity.Mapping{
		{CommonName: "x", Role: identity.Source, Name: "src", Quota: q, Clusters: clusters},
	}, each)}
}

// try publishes and returns the outcome, or the code and the attribute of the error.
func (w *world) try(p transport.Peer, event []byte) string {
	w.Helper()
	r, err := w.Publish(w.Context(), p, event, "")
	if err == nil {
		return r.Outcome
	}
	e := w.refused(err, transport.CodeOf(err))
	if e.Message == "" || e.Code == transport.CodeOverloaded && (e.Next != transport.NextBackOff || e.Delay != time.Minute || e.Hint == "") {
		w.Errorf("the refusal is %+v", e)
	}
	return e.Code.String() + " " + e.Attribute
}

func (w *world) tries(what, want string, p transport.Peer, event []byte) {
	w.Helper()
	if got := w.try(p, event); got != want {
		w.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestQuota_DeletionsFreeQuota checks that a deletion needs no quota, and frees quota once it is confirmed.
func TestQuota_DeletionsFreeQuota(t *testing.T) {
	inWorld(t, ruled(identity.Limits{Works: 2, Clusters: 1}, identity.Limits{}), func(w *world) {
		agent, source := w.subscribe(w.agent("c1")), w.source("src")
		w.put(source, work{id: "w1", version: 1}.event())
		w.put(source, work{id: "w2", version: 1}.event())
		w.tries("one too many", "overloaded resourceid", source, work{id: "w3", version: 1}.event())
		w.tries("one cluster too many", "overloaded resourceid", source, work{id: "w3", cluster: "c2", version: 1}.event())
		w.tries("an update", "accepted", source, work{id: "w1", version: 2, action: codec.UpdateRequest}.event())
		w.tries("the same again", "unchanged", source, work{id: "w2", version: 1}.event())
		w.tries("a deletion of what is not there", "accepted", source, work{id: "w9", version: 1, deleting: true}.event())
		w.tries("a deletion", "accepted", source, work{id: "w1", version: 2, deleting: true}.event())
		w.tries("before it is confirmed", "overloaded resourceid", source, work{id: "w3", version: 1}.event())
		for _, id := range []string{"w1", "w9"} {
			w.put(agent.peer, w.event(report{id: id, version: 2, deleted: true}))
		}
		w.tries("on another cluster, afterwards", "overloaded clustername", source, work{id: "w3", cluster: "c2", version: 1}.event())
		w.tries("afterwards", "accepted", source, work{id: "w3", version: 1}.event())
		w.tries("of another source", "accepted", w.source("other"), work{source: "other", id: "w4", version: 1}.event())
	})
}

// TestQuota_OfBytes checks the quota of bytes, also of a cluster that several sources use.
func TestQuota_OfBytes(t *testing.T) {
	large := fmt.Sprintf(`{"manifests":[],"x":%q}`, strings.Repeat("x", 4000))
	inWorld(t, ruled(identity.Limits{Bytes: 10_000}, identity.Limits{Works: 3, Bytes: 6_000}), func(w *world) {
		source := w.source("src")
		w.put(source, work{id: "w1", version: 1, data: large}.event())
		w.tries("too much for the cluster", "overloaded data", source, work{id: "w2", version: 1, data: large}.event())
		w.tries("on another one", "accepted", source, work{id: "w3", cluster: "c2", version: 1, data: large}.event())
		w.tries("too much for the source", "overloaded data", source, work{id: "w4", cluster: "c3", version: 1, data: large}.event())
		w.tries("a work that becomes smaller", "accepted", source, work{id: "w1", version: 2, action: codec.UpdateRequest}.event())
		w.tries("then there is room", "accepted", source, work{id: "w4", cluster: "c3", version: 1, data: large}.event())
		w.put(w.source("other"), work{source: "other", id: "o1", version: 1}.event())
		w.put(w.source("other"), work{source: "other", id: "o2", version: 1}.event())
		w.tries("as many works as a cluster may have", "overloaded resourceid", source, work{id: "w5", version: 1}.event())
	})
}

// TestQuota_OfStatuses checks that an agent cannot fill the store with statuses, and can always confirm
// deletions.
func TestQuota_OfStatuses(t *testing.T) {
	inWorld(t, ruled(identity.Limits{}, identity.Limits{Bytes: 2_000}), func(w *world) {
		agent, source := w.subscribe(w.agent("c1")), w.source("src")
		w.put(source, work{id: "w1", version: 1}.event())
		large := report{id: "w1", version: 1, hash: strings.Repeat("h", 900)}
		w.tries("a status", "accepted", agent.peer, w.event(large))
		large.hash = strings.Repeat("g", 1000)
		w.put(source, work{id: "w2", version: 1}.event())
		large.id = "w2"
		w.tries("one that has no room", "overloaded data", agent.peer, w.event(large))
		w.put(source, work{id: "w2", version: 2, deleting: true}.event())
		large.version, large.deleted = 2, true
		w.tries("the last one", "confirmed", agent.peer, w.event(large))
	})
}

// TestQuota_IsNotOvershot checks that concurrent publishes cannot exceed a quota, on any engine, also after a
// restart.
func TestQuota_IsNotOvershot(t *testing.T) {
	for name, open := range map[string]func(dir string) (store.Store, error){
		"pebble": func(dir string) (store.Store, error) { return pebble.Open(pebble.Options{Dir: dir}) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			const most = 40
			for range 2 {
				s, err := open(dir)
				if err != nil {
					t.Fatal(err)
				}
				cfg := ruled(identity.Limits{Works: most, Clusters: 2}, identity.Limits{})
				cfg.Store = s
				b := testkit.StartBroker(t, testkit.Options{Broker: cfg})
				var wg sync.WaitGroup
				var refused atomic.Int64
				for i := range 3 * most {
					wg.Go(func() {
						e := work{id: fmt.Sprint("w", i), cluster: fmt.Sprint("c", i%3), version: 1}.event()
						_, err := b.Publish(t.Context(), transport.Peer{Role: "source", Name: "src"}, e, "")
						if err != nil && transport.CodeOf(err) != transport.CodeOverloaded {
							t.Error(err)
						}
						if err != nil {
							refused.Add(1)
						}
					})
				}
				wg.Wait()
				rows := s.Rows(quota.Source, "", 10)
				if len(rows) != 1 || rows[0].Works != most || rows[0].Clusters != 2 || refused.Load() != 2*most {
					t.Errorf("%+v, %d refused", rows, refused.Load())
				}
				b.Stop()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestQuotas_ReportNothingOfOthers checks that outside of its allowed clusters a source always gets the same
// error, for any record there. It can delete its own earlier works there.
func TestQuotas_ReportNothingOfOthers(t *testing.T) {
	ids := testkit.NewIDs("store")
	var s *mem.Store
	var backup *mem.Backup
	inWrapped(t, broker.Config{}, func(store.Store) store.Store { s = mem.Open(mem.Options{NewID: ids}); return s }, func(w *world) {
		w.subscribe(w.agent("c2"))
		w.put(w.source("src"), work{id: "mine", cluster: "c2", version: 1}.event())
		w.put(w.source("other"), work{source: "other", id: "theirs", cluster: "c2", version: 1}.event())
		backup = s.Backup()
	})
	inWrapped(t, ruled(identity.Limits{}, identity.Limits{}, "c1"), func(store.Store) store.Store {
		return mem.Open(mem.Options{NewID: ids, From: backup})
	}, func(w *world) {
		agent, source := w.subscribe(w.agent("c2")), w.source("src")
		agent.take()
		for _, id := range []string{"mine", "theirs", "nobodys"} {
			w.tries("a spec of "+id, "denied clustername", source, work{id: id, cluster: "c2", version: 2}.event())
		}
		for _, id := range []string{"theirs", "nobodys"} {
			w.tries("a deletion of "+id, "confirmed", source, work{id: id, cluster: "c2", version: 2, deleting: true}.event())
			conditional := work{id: id, cluster: "c2", version: 2, deleting: true, extensions: map[string]any{codec.ExtIfRevision: "2"}}
			w.tries("a deletion of "+id+" on a condition", "confirmed", source, conditional.event())
		}
		agent.expect()
		w.tries("a deletion of mine", "accepted", source, work{id: "mine", cluster: "c2", version: 2, deleting: true}.event())
		agent.expect("spec delete_request mine v2 deleting")
		w.tries("a work within reach", "accepted", source, work{id: "w1", version: 1}.event())
	})
}

// TestForeignWork_GetsErrorOfMissingWork checks that a conditional publish to a foreign work gets the same error
// and receipt as one to a work that does not exist.
func TestForeignWork_GetsErrorOfMissingWork(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		w.subscribe(w.agent("c1"))
		source := w.source("src")
		w.put(w.source("other"), work{source: "other", id: "theirs", version: 7}.event())
		for name, k := range map[string]work{
			"supersedes": {version: 8, extensions: map[string]any{codec.ExtSupersedes: "1"}},
			"deletes":    {version: 8, deleting: true, extensions: map[string]any{codec.ExtIfRevision: "1"}},
		} {
			var output [2]string
			for i, id := range []string{"theirs", "nobodys"} {
				k.id, k.name = id, "some-name"
				r, err := w.Publish(w.Context(), source, k.event(), "")
				output[i] = fmt.Sprintf("%+v %v", r, w.refused(err, transport.CodeConflict))
			}
			if output[0] != output[1] {
				t.Errorf("%s: the answer for another's work is %s, for an unknown work %s", name, output[0], output[1])
			}
		}
	})
}

// TestClusterName_MustBeNamespaceName checks cluster names of publishes and of subscriptions.
func TestClusterName_MustBeNamespaceName(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		source := w.source("src")
		for _, name := range []string{"C1", "a.b", "-a", "a-", "a_b", "a/b", "ü", strings.Repeat("a", 64), "a b"} {
			w.tries(name, "invalid clustername", source, work{cluster: name, version: 1}.event())
			raw := transport.RawSubscription{Cluster: name, DataType: codec.ManifestBundles.String()}
			err := w.Subscribe(w.Context(), w.agent(name), raw, nil)
			if e := w.refused(err, transport.CodeInvalid); e.Attribute != codec.ExtClusterName {
				t.Errorf("an agent of %q: %v", name, e)
			}
		}
		for _, name := range []string{"c", "1", "a-b", "a--b", strings.Repeat("a", 63)} {
			w.tries(name, "accepted", source, work{id: "of-" + name, cluster: name, version: 1}.event())
		}
	})
}
