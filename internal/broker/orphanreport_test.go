package broker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/testkit/admincall"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestOrphanReport_IsListedAndResolved checks that the orphans that an agent reports are listed while it is
// connected, and that an operator's decision reaches that agent.
func TestOrphanReport_IsListedAndResolved(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		resolve := func(cluster, uid string, adopt bool) error {
			_, err := w.ResolveOrphan(admincall.By(w.Context(), olga), &hawserv1.ResolveOrphanRequest{Cluster: cluster, Uid: uid, Adopt: adopt})
			return err
		}
		list := func(cluster string) (got []string) {
			w.Helper()
			err := w.ListDiscrepancies(&hawserv1.ListDiscrepanciesRequest{Cluster: cluster}, admincall.To(w.Context(), func(o *hawserv1.ListDiscrepanciesResponse) error {
				got = append(got, o.GetCluster()+" "+o.GetCause().String()+" "+o.GetResourceId()+" "+o.GetDetail())
				return nil
			}))
			if err != nil {
				w.Fatal(err)
			}
			return got
		}
		w.wantCode(resolve("c1", "u1", false), transport.CodeUnavailable)
		agent, source := w.open(w.agent("c1"), hawser), w.open(w.source("src"), hawser)
		send := func(s *tap, u codec.OrphanReport) error {
			e, err := codec.NewOrphanReport(s.params(), u)
			return s.send(marshal(s.w, e, err))
		}
		u := codec.OrphanReport{More: 7, Records: []codec.OrphanRecord{
			{UID: "u1", Name: "h-web", Objects: 3, Created: time.Now().Add(-2 * time.Hour)}, {UID: "u2", Name: "o-web", Objects: 1, Shared: true, Outcome: "no"},
		}}
		if err := send(agent, u); err != nil {
			t.Fatal(err)
		}
		if send(source, u) == nil {
			t.Error("the broker accepts an orphan report of a source")
		}
		got := list("c1")
		if len(got) != 3 || !strings.Contains(got[0], "UNOWNED u1 ") || !strings.Contains(got[0], "3 objects, 2h0m0s old") ||
			!strings.Contains(got[1], "SHARED u2 ") || !strings.HasSuffix(got[1], "; no") || !strings.Contains(got[2], "7 more") {
			t.Errorf("got %q", got)
		}
		if got := list("c2"); len(got) != 0 {
			t.Errorf("c2 has %q", got)
		}
		w.wantCode(resolve("c1", "u2", false), transport.CodeConflict)
		w.wantCode(resolve("c1", "u3", false), transport.CodeNotFound)
		w.wantCode(resolve("c2", "u1", false), transport.CodeUnavailable)
		if err := resolve("c1", "u1", true); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		orders := agent.takeSync(codec.TypeResolveOrphan)
		if len(orders) != 1 {
			t.Fatalf("the agent got %d orders", len(orders))
		}
		if got, err := codec.ParseResolveOrphan(orders[0]); err != nil || got != (codec.ResolveOrphan{UID: "u1", Name: "h-web", Adopt: true}) {
			t.Errorf("the agent got %+v, %v", got, err)
		}
		if err := send(agent, codec.OrphanReport{}); err != nil || len(list("")) != 0 {
			t.Errorf("got %q, %v", list(""), err)
		}
		if err := send(agent, u); err != nil {
			t.Fatal(err)
		}
		agent.cancel()
		pass(time.Second)
		if got := list(""); len(got) != 0 {
			t.Errorf("after the agent disconnected: %q", got)
		}
	})
}
