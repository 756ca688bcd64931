package core

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// FuzzStateOf: any data of the ConfigMap with the saved state means the same after it is written again, and a
// source starts with it.
func FuzzStateOf(f *testing.F) {
	f.Add("e/t/42", "cluster1 cluster2", "hub\n42")
	f.Add("", everywhere, "")
	f.Add("nonsense", "\x00 \u2003x", "\n\n")
	f.Fuzz(func(t *testing.T, cursor, withheld, trusted string) {
		s := StateOf(map[string]string{keyCursor: cursor, keyWithheld: withheld, keyClearedPosition: trusted})
		again := StateOf(s.Data())
		if diff := cmp.Diff(s, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q, %q, %q (-first +again):\n%s", cursor, withheld, trusted, diff)
		}
		if !s.equal(again) {
			t.Fatalf("%+v differs from itself", s)
		}
	})
}

// FuzzReportOf: for any report of an agent, the finalizer of a live work stays, and the next report of another
// work is written.
func FuzzReportOf(f *testing.F) {
	w := newWork("w", 1)
	for _, deleted := range []bool{false, true} {
		e, err := manifestwork.EncodeStatus(
			manifestwork.Ref{ResourceID: string(w.UID), Name: w.Name, Cluster: w.Namespace, Generation: 1}, applied(1),
			manifestwork.StatusParams{ID: "e", Now: time.Unix(1_700_000_000, 0), Source: "agent", OriginalSource: "hub", Action: codec.UpdateRequest, SequenceID: sequence(7), Deleted: deleted})
		if err != nil {
			f.Fatal(err)
		}
		b, err := codec.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := codec.Unmarshal(b)
		if err != nil {
			return // the transport drops it
		}
		fx := newFixture(t, true)
		other := newWork("other", 1)
		fx.seen(newWork("w", 1))
		fx.seen(other)
		fx.connect()
		if r, err := ReportOf(e); err == nil && r.UID != other.UID {
			fx.core.Report(r)
		}
		if e, ok := fx.core.Next(HubQueue, Key{UID: "uid-w"}).(RemoveFinalizer); ok {
			t.Fatalf("the finalizer of a live work goes: %+v", e)
		}
		if v := fx.core.Report(report(other, 1, applied(1))); v != Taken {
			t.Fatalf("the report about another work is %s", v)
		}
		next[PatchStatus](fx, HubQueue, other.UID)
	})
}

// FuzzParseAgentList: any list of an agent behind a stateless broker deletes nothing by itself, and the work on the
// hub is delivered.
func FuzzParseAgentList(f *testing.F) {
	w := newWork("w", 3)
	for _, list := range [][]codec.ResourceVersion{nil, {{ResourceID: "uid-w", ResourceVersion: 2}}, {{ResourceID: "uid-x", ResourceVersion: 7, Tag: codec.Tag{1}.String()}}} {
		e, err := codec.NewSpecResyncRequest(codec.ResyncParams{ID: "e", Time: time.Unix(1_700_000_000, 0), Source: "agent", Cluster: "cluster1", DataType: codec.ManifestBundles}, list)
		if err != nil {
			f.Fatal(err)
		}
		b, err := codec.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := codec.Unmarshal(b)
		if err != nil {
			return
		}
		l, err := ParseAgentList(e)
		if err != nil {
			return
		}
		c := statelessFixture(t, w)
		c.deliver(w.UID)
		c.core.AgentList(l)
		for range 20 {
			switch e := c.core.Next(BrokerQueue, Key{Cluster: "cluster1"}).(type) {
			case List:
				c.done(e, Result{Present: present(w)})
			case RequestStatuses:
				c.done(e, Result{Sent: 1})
			case Delete:
				t.Fatalf("deletes %+v", e)
			case Tag:
				c.done(e, Result{Tags: e.Tags()})
			}
		}
	})
}
