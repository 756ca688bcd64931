package broker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestPublish_Refuses checks that each invalid event gets a code, names the attribute, and has no effect (C47,
// I8).
func TestPublish_Refuses(t *testing.T) {
	without := func(name string) []byte { return work{version: 1, extensions: map[string]any{name: nil}}.event() }
	status := func(w *world, r report) []byte { return w.event(r) }
	other := codec.DataType{Group: "g", Version: "v1", Resource: "r"}
	for name, c := range map[string]struct {
		role, peer string
		event      func(w *world) []byte
		code       transport.Code
		attribute  string
	}{
		"no event": {"source", "src", func(*world) []byte { return nil }, transport.CodeInvalid, ""},
		"garbage":  {"source", "src", func(*world) []byte { return []byte{0xff, 1, 2} }, transport.CodeInvalid, ""},
		"unknown data type": {"source", "src", func(*world) []byte {
			return build("src", "c1", codec.EventType{DataType: other, Subresource: codec.Spec, Action: codec.CreateRequest}, map[string]any{}, nil, "{}")
		}, transport.CodeInvalid, "type"},
		"heartbeat": {"source", "src", func(*world) []byte { return codec.Heartbeat("1") }, transport.CodeInvalid, ""},
		"no cluster": {"source", "src", func(*world) []byte {
			return build("src", "", specType(codec.CreateRequest), map[string]any{codec.ExtResourceID: "w", codec.ExtResourceVersion: 1, codec.ExtMetadata: `{"name":"n"}`}, nil, "{}")
		}, transport.CodeInvalid, codec.ExtClusterName},
		"no id":                    {"source", "src", func(*world) []byte { return without(codec.ExtResourceID) }, transport.CodeInvalid, codec.ExtResourceID},
		"no version":               {"source", "src", func(*world) []byte { return without(codec.ExtResourceVersion) }, transport.CodeInvalid, codec.ExtResourceVersion},
		"no metadata":              {"source", "src", func(*world) []byte { return without(codec.ExtMetadata) }, transport.CodeInvalid, codec.ExtMetadata},
		"no name":                  {"source", "src", func(*world) []byte { return work{version: 1, metadata: `{}`}.event() }, transport.CodeInvalid, codec.ExtMetadata},
		"metadata is no object":    {"source", "src", func(*world) []byte { return work{version: 1, metadata: `[`}.event() }, transport.CodeInvalid, codec.ExtMetadata},
		"delete without timestamp": {"source", "src", func(*world) []byte { return work{version: 1, action: codec.DeleteRequest}.event() }, transport.CodeInvalid, codec.ExtDeletionTimestamp},
		"spec without data": {"source", "src", func(*world) []byte {
			return build("src", "c1", specType(codec.CreateRequest), map[string]any{codec.ExtResourceID: "w", codec.ExtResourceVersion: 1, codec.ExtMetadata: `{"name":"n"}`}, nil, "")
		}, transport.CodeInvalid, "data"},
		"too large": {"source", "src", func(*world) []byte { return work{version: 1, data: `"` + strings.Repeat("x", 20<<10) + `"`}.event() }, transport.CodeTooLarge, ""},

		"anonymous":                      {"", "", func(*world) []byte { return work{version: 1}.event() }, transport.CodeUnauthenticated, ""},
		"source as another source":       {"source", "other", func(*world) []byte { return work{version: 1}.event() }, transport.CodeDenied, "source"},
		"agent publishes a spec":         {"agent", "c1", func(*world) []byte { return work{version: 1}.event() }, transport.CodeDenied, "type"},
		"operator publishes a spec":      {"operator", "src", func(*world) []byte { return work{version: 1}.event() }, transport.CodeDenied, ""},
		"viewer publishes a status":      {"viewer", "c1", func(w *world) []byte { return status(w, report{}) }, transport.CodeDenied, ""},
		"namespace of another cluster":   {"source", "src", func(*world) []byte { return work{version: 1, metadata: `{"name":"n","namespace":"c2"}`}.event() }, transport.CodeDenied, codec.ExtMetadata},
		"source publishes a status":      {"source", "src", func(w *world) []byte { return status(w, report{}) }, transport.CodeDenied, "type"},
		"agent of another cluster":       {"agent", "c2", func(w *world) []byte { return status(w, report{}) }, transport.CodeDenied, codec.ExtClusterName},
		"agent lists another cluster":    {"agent", "c2", func(*world) []byte { return versions("c1") }, transport.CodeDenied, codec.ExtClusterName},
		"agent lists no cluster":         {"agent", "c2", func(*world) []byte { return versions("") }, transport.CodeDenied, codec.ExtClusterName},
		"source lists as another source": {"source", "src", func(*world) []byte { return hashes("other", "") }, transport.CodeDenied, "source"},
		"source lists versions": {"source", "src", func(*world) []byte {
			return build("src", "c1", specType(codec.ResyncRequest), map[string]any{}, nil, "{}")
		}, transport.CodeDenied, "type"},
		"agent lists hashes": {"agent", "c1", func(*world) []byte {
			return build("src", "c1", statusType(codec.ResyncRequest), map[string]any{}, nil, "{}")
		}, transport.CodeDenied, "type"},

		"status without id": {"agent", "c1", func(w *world) []byte { return status(w, report{extensions: map[string]any{codec.ExtResourceID: nil}}) }, transport.CodeInvalid, codec.ExtResourceID},
		"status without version": {"agent", "c1", func(w *world) []byte {
			return status(w, report{extensions: map[string]any{codec.ExtResourceVersion: nil}})
		}, transport.CodeInvalid, codec.ExtResourceVersion},
		"status without sequence":  {"agent", "c1", func(w *world) []byte { return status(w, report{extensions: map[string]any{codec.ExtSequenceID: nil}}) }, transport.CodeInvalid, codec.ExtSequenceID},
		"status with a bad number": {"agent", "c1", func(w *world) []byte { return status(w, report{sequence: "seven"}) }, transport.CodeInvalid, codec.ExtSequenceID},
		"list without body":        {"agent", "c1", func(*world) []byte { return build("a", "c1", specType(codec.ResyncRequest), map[string]any{}, nil, "") }, transport.CodeInvalid, "data"},
		"list that is none": {"agent", "c1", func(*world) []byte {
			return build("a", "c1", specType(codec.ResyncRequest), map[string]any{}, nil, "[]")
		}, transport.CodeInvalid, "data"},
		"hashes that are none": {"source", "src", func(*world) []byte {
			return build("src", "", statusType(codec.ResyncRequest), map[string]any{}, nil, "7")
		}, transport.CodeInvalid, "data"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, broker.Config{MaxEventBytes: 16 << 10}, func(w *world) {
				agent := w.subscribe(w.agent("c1"))
				source := w.subscribe(w.source("src"))
				before := w.Store.Head().Revision
				_, err := w.Publish(w.Context(), w.peer(c.role, c.peer), c.event(w), "")
				e := w.refused(err, c.code)
				if e.Attribute != c.attribute {
					t.Errorf("attribute %q, want %q: %v", e.Attribute, c.attribute, e)
				}
				if e.Next == transport.NextUnspecified || e.Message == "" {
					t.Errorf("an error without a hint: %+v", e)
				}
				if r := w.Store.Head().Revision; r != before {
					t.Errorf("the store is at revision %d, before at %d", r, before)
				}
				agent.expect()
				source.expect()
			})
		})
	}
}

func TestPublish_Outcomes(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent := w.subscribe(w.agent("c1"))
		source, other := w.source("src"), w.source("other")
		for i, c := range []struct {
			peer  transport.Peer
			event []byte
			want  string
		}{
			{source, work{version: 5}.event(), codec.OutcomeAccepted},
			{source, work{version: 5}.event(), codec.OutcomeUnchanged},
			{source, work{version: 4}.event(), codec.OutcomeStale},
			{source, work{version: 5, data: `{"manifests":[],"other":1}`}.event(), codec.OutcomeAccepted},
			{source, work{version: 0, data: `{"manifests":[],"other":2}`}.event(), codec.OutcomeAccepted},
			{source, work{version: 6, action: codec.UpdateRequest}.event(), codec.OutcomeAccepted},
			{agent.peer, w.event(report{version: 6, sequence: fmt.Sprint(9<<22 | 1<<12)}), codec.OutcomeAccepted},
			{agent.peer, w.event(report{version: 6, sequence: fmt.Sprint(9<<22 | 1<<12)}), codec.OutcomeStale},
			{agent.peer, w.event(report{version: 6, sequence: fmt.Sprint(8<<22 | 1<<12)}), codec.OutcomeStale},
			{agent.peer, w.event(report{id: "unknown", version: 6}), codec.OutcomeIgnored},
			{agent.peer, w.event(report{id: "unknown", version: 6, deleted: true}), codec.OutcomeIgnored},
			{source, work{version: 7, deleting: true}.event(), codec.OutcomeAccepted},
			{source, work{version: 8, action: codec.UpdateRequest}.event(), codec.OutcomeStale},
			{source, work{version: 8, action: codec.CreateRequest}.event(), codec.OutcomeQueued},
			{source, work{cluster: "never-seen", id: "w2", version: 1}.event(), codec.OutcomeAccepted},
			{source, work{cluster: "never-seen", id: "w2", version: 2, deleting: true}.event(), codec.OutcomeConfirmed},
		} {
			if got := w.put(c.peer, c.event); got != c.want {
				t.Errorf("publish %d: %q, want %q", i, got, c.want)
			}
		}
		_, err := w.Publish(w.Context(), other, work{source: "other", version: 9}.event(), "")
		if e := w.refused(err, transport.CodeDenied); e.Hint == "" {
			t.Errorf("%v has no hint", e)
		}
		_, err = w.Publish(w.Context(), other, work{source: "other", id: "w9", name: "name-of-w1", version: 1}.event(), "")
		if e := w.refused(err, transport.CodeAlreadyExists); e.Hint == "" || !strings.Contains(e.Message, "name-of-w1") {
			t.Errorf("%v", e)
		}
		_, err = w.Publish(w.Context(), source, work{version: 9, extensions: map[string]any{codec.ExtSupersedes: "999"}}.event(), "")
		if e := w.refused(err, transport.CodeConflict); e.Next != transport.NextResync {
			t.Errorf("%v: next step %v", e, e.Next)
		}
	})
}

// TestPublish_GenerationsAboveInt32 checks events with version 0 and the real generation in the metadata: they
// are ordered by the generation (Q20).
func TestPublish_GenerationsAboveInt32(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent := w.subscribe(w.agent("c1"))
		source := w.source("src")
		big := func(generation int) work {
			return work{metadata: fmt.Sprintf(`{"name":"n","namespace":"c1","generation":%d}`, generation), data: fmt.Sprintf(`{"g":%d}`, generation)}
		}
		w.put(source, big(1<<31+5).event())
		if got := w.put(source, big(1<<31+4).event()); got != codec.OutcomeStale {
			t.Errorf("an older generation: %q", got)
		}
		agent.expect("spec create_request w1 v0")
		w.put(agent.peer, w.event(report{}))
		gone := big(1<<31 + 6)
		gone.deleting, gone.data = true, ""
		w.put(source, gone.event())
		agent.expect("spec delete_request w1 v0 deleting")
		if got := w.put(agent.peer, w.event(report{deleted: true})); got != codec.OutcomeConfirmed {
			t.Errorf("confirmation of a deletion sent as version 0: %q", got)
		}
	})
}

// TestPublish_DeletedStatusOfALiveWork checks that a Deleted status of a live work is dropped, and the spec is
// sent again.
func TestPublish_DeletedStatusOfALiveWork(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent, source := w.subscribe(w.agent("c1")), w.subscribe(w.source("src"))
		w.put(source.peer, work{version: 3}.event())
		agent.expect("spec create_request w1 v3")
		if got := w.put(agent.peer, w.event(report{version: 3, deleted: true})); got != codec.OutcomeIgnored {
			t.Errorf("outcome %q", got)
		}
		source.expect()
		agent.expect() // the agent forgets the work when it gets the answer
		pass(broker.DefaultRest)
		agent.expect("spec resync_response w1 v3")
	})
}

// TestPublish_DelaysRecreatedWork checks that an OCM agent gets a recreated work only after the agent has
// forgotten the deleted one.
func TestPublish_DelaysRecreatedWork(t *testing.T) {
	for name, again := range map[string]work{
		"same id":   {version: 1, data: `{"again":1}`},
		"same name": {id: "w2", name: "name-of-w1", version: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, broker.Config{}, func(w *world) {
				ocm, source := w.subscribe(w.agent("c1")), w.source("src")
				ours := w.open(w.agent("c1"), hawser)
				w.request(ours)
				w.put(source, work{version: 3}.event())
				w.put(source, work{version: 3, deleting: true}.event())
				if got := w.put(source, again.event()); got != codec.OutcomeQueued {
					t.Errorf("outcome of the new work: %q", got)
				}
				ocm.take()
				ours.take()
				w.put(ocm.peer, w.event(report{version: 3, deleted: true, extensions: map[string]any{codec.ExtMetadata: `{"name":"name-of-w1"}`}}))
				want := fmt.Sprintf("spec create_request %s v1", or(again.id, "w1"))
				ours.expect(want)
				ocm.expect()
				w.put(source, work{id: "other", version: 1}.event())
				ocm.expect("spec create_request other v1")
				pass(broker.DefaultRest - time.Millisecond)
				ocm.expect()
				pass(time.Millisecond)
				ocm.expect(want)
			})
		})
	}
}

// TestPublish_DelaysRepeatedDeletion checks a deletion of a newer version, which the report does not confirm. It
// is sent to an OCM agent after the agent has forgotten the work, so that the agent reports again.
func TestPublish_DelaysRepeatedDeletion(t *testing.T) {
	deletion := "spec delete_request w1 v4 deleting"
	for name, tc := range map[string]struct {
		reported int32
		want     []string
	}{
		"confirmed before":  {3, []string{deletion}},
		"reported too late": {2, []string{"spec resync_response w1 v2", "spec resync_response w1 v4 deleting"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, broker.Config{}, func(w *world) {
				ocm, source := w.subscribe(w.agent("c1")), w.source("src")
				w.put(source, work{version: 2}.event())
				w.put(source, work{version: 3, deleting: true}.event())
				ocm.take()
				w.put(ocm.peer, w.event(report{version: tc.reported, deleted: true}))
				ocm.expect()
				w.put(source, work{version: 4, deleting: true}.event())
				ocm.expect()
				pass(broker.DefaultRest)
				ocm.expect(tc.want...)
			})
		})
	}
}

// TestPublish_DelayEndsWithAnswer checks the pause of deliveries after a confirmation. It begins before the
// commit, so that the spec cannot overtake the answer, and ends with the answer.
func TestPublish_DelayEndsWithAnswer(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		agent, source := w.open(w.agentOf(s, "c1"), nil), w.source("src")
		publish := func(p transport.Peer, event []byte) {
			done := w.begin(w.Context(), p, event)
			s.tokens <- nil
			if r := <-done; r.err != nil {
				t.Fatal(r.err)
			}
		}
		publish(source, work{version: 3}.event())
		publish(source, work{version: 3, deleting: true}.event())
		publish(source, work{version: 1, data: `{"again":1}`}.event())
		agent.take()
		confirmed := w.begin(w.Context(), agent.peer, w.event(report{version: 3, deleted: true}))
		late := w.begin(w.Context(), source, work{version: 2, data: `{"again":2}`}.event())
		pass(5 * time.Second) // the commit takes 5 seconds
		s.tokens <- nil
		<-confirmed
		s.tokens <- nil
		<-late
		pass(broker.DefaultRest - time.Millisecond)
		agent.expect()
		pass(time.Millisecond)
		agent.expect("spec create_request w1 v2")
	})
}

// Scenario:
//
//	t1: a work is queued behind the deletion of the work with the same name.
//	t2: the cluster is released, and its records are read.
//	t3: the agent confirms the deletion, and the queued work becomes live.
//	t4: the records of t2 are dropped.
//
// Result: the read of t2 includes the queued work.
func TestPublish_ReleaseIncludesConcurrentPublishes(t *testing.T) {
	inSlowWorld(t, broker.Config{}, func(w *world, s *slowStore) {
		agent, source := w.open(w.agentOf(s, "c1"), nil), w.source("src")
		for _, k := range []work{{version: 1}, {version: 2, deleting: true}, {id: "w2", name: "name-of-w1", version: 1}} {
			done := w.begin(w.Context(), source, k.event())
			s.tokens <- nil
			if r := <-done; r.err != nil {
				t.Fatal(r.err)
			}
		}
		release := w.begin(w.Context(), source, releaseOf(t, "src", "c1"))
		confirmed := w.begin(w.Context(), agent.peer, w.event(report{version: 2, deleted: true}))
		for pending(release) || pending(confirmed) {
			s.tokens <- nil
		}
		if r := <-confirmed; r.receipt.Outcome != codec.OutcomeConfirmed {
			t.Errorf("the confirmation: %+v", r)
		}
		if r := <-release; r.err != nil {
			t.Fatal(r.err)
		}
		err := s.Scan(w.Context(), store.Scope{DataType: codec.ManifestBundles, Cluster: "c1"}, func(m store.Meta) error {
			t.Errorf("%s is left", m.ResourceID)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestPublish_Release(t *testing.T) {
	inWorld(t, broker.Config{}, func(w *world) {
		agent := w.subscribe(w.agent("c1"))
		source, other := w.source("src"), w.source("other")
		for i := range 600 {
			w.put(source, work{id: fmt.Sprint("w", i), version: 1}.event())
		}
		w.put(source, work{id: "w0", version: 2, deleting: true}.event())
		w.put(source, work{id: "elsewhere", cluster: "c2", version: 1}.event())
		w.put(other, work{source: "other", id: "foreign", version: 1}.event())
		agent.take()
		release := func(source, cluster string) []byte { return releaseOf(t, source, cluster) }
		if got := w.put(source, release("src", "c1")); got != codec.OutcomeAccepted {
			t.Errorf("outcome %q", got)
		}
		agent.expect() // the agent gets no deletion
		if got := w.put(source, release("src", "c1")); got != codec.OutcomeIgnored {
			t.Errorf("outcome of the second one: %q", got)
		}
		w.request(agent)
		agent.expect("spec resync_response foreign v1")
		_, err := w.Publish(w.Context(), w.agent("c1"), release("src", "c1"), "")
		w.wantCode(err, transport.CodeDenied)
		_, err = w.Publish(w.Context(), other, release("src", "c2"), "")
		w.wantCode(err, transport.CodeDenied)
		next := w.subscribe(w.agent("c2"))
		w.request(next)
		next.expect("spec resync_response elsewhere v1")
	})
}

func TestPublish_TrustsInsecurePeers(t *testing.T) {
	inWorld(t, broker.Config{Insecure: true}, func(w *world) {
		anonymous := w.peer("", "")
		agent := w.open(anonymous, func(raw *transport.RawSubscription, _ *tap) { raw.Cluster = "c1" })
		source := w.open(anonymous, func(raw *transport.RawSubscription, _ *tap) { raw.Source = "src" })
		w.put(anonymous, work{version: 1}.event())
		agent.expect("spec create_request w1 v1")
		w.put(anonymous, w.event(report{version: 1}))
		source.expect("status update_request w1 v1")
		w.put(anonymous, versions("c1"))
		agent.expect("spec resync_response w1 v1")
		_, err := w.Publish(w.Context(), w.source("other"), work{version: 2}.event(), "")
		w.wantCode(err, transport.CodeDenied) // a client with an identity cannot claim another one
	})
}

// TestPublish_CanceledWhileQueued:
//
// Scenario:
//
//	t1: a publish reaches the broker, and is delayed.
//	t2: its caller gives up and publishes a newer version, which is written.
//	t3: the publish of t1 continues. It is not queued yet.
//
// Result: the publish of t1 is not written, because it would replace the newer version.
func TestPublish_CanceledWhileQueued(t *testing.T) {
	over := func(ctx context.Context) context.Context {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx
	}
	for name, givenUp := range map[string]func(context.Context) context.Context{
		"before it is looked at": over,
		"before it is queued":    func(ctx context.Context) context.Context { return goneSoon{ctx, new(int)} },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, broker.Config{}, func(w *world) {
				_, err := w.Publish(givenUp(w.Context()), w.source("src"), work{version: 1}.event(), "")
				w.wantCode(err, transport.CodeUnavailable)
				if revision := w.Store.Head().Revision; revision != 0 {
					t.Errorf("revision %d, want nothing written", revision)
				}
			})
		})
	}
}
