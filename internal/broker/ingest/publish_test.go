package ingest

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/settings"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// TestPutStatus_RepeatedNeedsNoCommit checks that a status which is stored already is answered while the queue
// accepts nothing. Any other status needs a commit.
func TestPutStatus_RepeatedNeedsNoCommit(t *testing.T) {
	s := mem.Open(mem.Options{NewID: func() string { return "id" }})
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	key := store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "w1"}
	for _, op := range []store.Op{
		{Kind: store.PutSpec, Key: key, Owner: "hub", Version: 1, Event: []byte("spec"), At: time.Now()},
		{Kind: store.PutStatus, Key: key, Version: 1, Sequence: "4198400", StatusHash: "h", Event: []byte("status"), At: time.Now()},
	} {
		if o, err := s.Commit(t.Context(), []store.Op{op}); err != nil || o[0].Result != store.Accepted {
			t.Fatalf("got %+v, %v", o, err)
		}
	}
	i := New(&settings.Config{
		Store: s, Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Now: time.Now, QueueBytes: 1 << 20, MaxEventBytes: 1 << 20,
	}, nil)
	i.commits.finish()
	for name, c := range map[string]struct {
		sequence, hash, data, subscription string
		version                            int64
		repeated                           bool
	}{
		"repeated":             {"4198400", "h", `{}`, "", 1, true},
		"another hash":         {"4198400", "i", `{}`, "", 1, false},
		"no hash":              {"4198400", "", `{}`, "", 1, false},
		"another version":      {"4198400", "h", `{}`, "", 2, false},
		"a later one":          {"8392704", "h", `{}`, "", 1, false},
		"of a deletion":        {"4198400", "h", `{"conditions":[{"type":"Deleted","status":"True"}]}`, "", 1, false},
		"ended subscription":   {"4198400", "h", `{}`, "gone", 1, false},
		"an earlier one, late": {"4194304", "h", `{}`, "", 1, false},
	} {
		event, err := codec.Builder{
			ID: "1", Time: time.Now(), Source: "c1-agent", Cluster: "c1", OriginalSource: "hub",
			Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: codec.UpdateRequest}.String(),
			ContentType: codec.ContentTypeJSON, Data: []byte(c.data),
			Extensions: map[string]any{
				codec.ExtResourceID: "w1", codec.ExtResourceVersion: int32(c.version), codec.ExtSequenceID: c.sequence, codec.ExtStatusHash: c.hash,
			},
		}.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		env, incoming, err := codec.Ingest(event)
		if err != nil {
			t.Fatal(err)
		}
		r, err := i.PutStatus(t.Context(), &request.Event{
			From: identity.Identity{Role: identity.Agent, Name: "c1"}, Subscription: c.subscription, Size: len(event), Env: env, Incoming: incoming,
		})
		if c.repeated != (err == nil) || err != nil && transport.CodeOf(err) != transport.CodeUnavailable {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if want := (transport.Receipt{Outcome: codec.OutcomeUnchanged, Revision: 2}); err == nil && r != want {
			t.Errorf("%s: %+v, want %+v", name, r, want)
		}
	}
}
