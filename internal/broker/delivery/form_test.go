package delivery

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/request"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

var (
	deletedAt   = time.Date(2026, 5, 6, 7, 8, 9, 10, time.UTC)
	confirmedAt = time.Date(2026, 5, 6, 8, 0, 0, 0, time.UTC)
)

// stored returns the normalised bytes of an event, as a store has them.
func stored(t *testing.T, kind codec.EventType, extensions map[string]any, data string) []byte {
	t.Helper()
	all := map[string]any{
		codec.ExtResourceID: "w1", codec.ExtResourceVersion: int32(4),
		codec.ExtMetadata: `{"name":"work","namespace":"c1"}`, codec.ExtLogTracing: "{}",
	}
	for k, v := range extensions {
		all[k] = v
	}
	e, err := codec.Builder{
		ID: "1", Time: time.Unix(7, 0), Source: "s", Type: kind.String(), Cluster: "c1",
		Extensions: all, ContentType: codec.ContentTypeJSON, Data: []byte(data),
	}.Event()
	if err != nil {
		t.Fatal(err)
	}
	b, err := codec.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	b, err = codec.Normalize(b)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func specType(a codec.Action) codec.EventType {
	return codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: a}
}

func statusType(a codec.Action) codec.EventType {
	return codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Status, Action: a}
}

func record(t *testing.T, edit func(*store.Record)) *store.Record {
	t.Helper()
	r := &store.Record{
		Meta: store.Meta{
			Key:   store.Key{DataType: codec.ManifestBundles, Cluster: "c1", ResourceID: "w1"},
			State: store.Live, Owner: "s", Name: "work", Version: 4, Tag: codec.Tag{0xab}, SpecRevision: 17,
		},
		Spec: stored(t, specType(codec.UpdateRequest), nil, `{"manifests":[]}`),
	}
	edit(r)
	return r
}

// want has the expected attributes of a received event. A zero field means an absent attribute.
type want struct {
	action     codec.Action
	version    int64
	deletedAt  time.Time
	revision   uint64
	hasTag     bool
	data       string
	sequence   string
	originally string
}

func check(t *testing.T, name string, parts [][]byte, err error, w want) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	whole := bytes.Join(parts, nil)
	env, err := codec.ParseEnvelope(whole)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if _, err := codec.Unmarshal(whole); err != nil {
		t.Errorf("%s: cannot be unmarshalled: %v", name, err)
	}
	got := want{
		action: env.Type.Action, version: env.Version, deletedAt: env.DeletedAt, revision: env.Revision,
		hasTag: env.HasTag, data: string(env.Data), sequence: env.SequenceID, originally: env.OriginalSource,
	}
	if diff := cmp.Diff(w, got, cmp.AllowUnexported(want{})); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
	if env.Cluster != "c1" || env.ResourceID != "w1" || env.ObjectName != "work" || !env.HasVersion {
		t.Errorf("%s: envelope %+v", name, env)
	}
}

func TestForm_Spec(t *testing.T) {
	const data = `{"manifests":[]}`
	for name, c := range map[string]struct {
		edit           func(*store.Record)
		hawser, resync bool
		want           want
	}{
		"OCM":             {func(*store.Record) {}, false, false, want{action: codec.UpdateRequest, version: 4, data: data}},
		"OCM, resync":     {func(*store.Record) {}, false, true, want{action: codec.ResyncResponse, version: 4, data: data}},
		"hawser":          {func(*store.Record) {}, true, false, want{action: codec.UpdateRequest, version: 4, data: data, revision: 17, hasTag: true}},
		"hawser, resync":  {func(*store.Record) {}, true, true, want{action: codec.ResyncResponse, version: 4, data: data, revision: 17, hasTag: true}},
		"OCM, superseded": {func(r *store.Record) { r.SpecSupersedes = true }, false, false, want{action: codec.UpdateRequest, data: data}},
		"hawser, superseded": {func(r *store.Record) { r.SpecSupersedes = true }, true, false,
			want{action: codec.UpdateRequest, data: data, revision: 17, hasTag: true}},
	} {
		parts, err := form{record: record(t, c.edit), hawser: c.hawser, resync: c.resync}.spec()
		check(t, name, parts, err, c.want)
	}
	parts, err := form{record: record(t, func(*store.Record) {})}.spec()
	if err != nil || len(parts) != 1 {
		t.Errorf("an OCM agent gets %d parts, %v; want the stored bytes alone", len(parts), err)
	}
}

func TestForm_Deletion(t *testing.T) {
	const data = `{"manifests":[]}`
	tombstone := func(edit func(*store.Record)) func(*store.Record) {
		return func(r *store.Record) {
			r.State, r.Version, r.DeletedAt, r.SpecRevision = store.Tombstone, 5, deletedAt, 18
			edit(r)
		}
	}
	for name, c := range map[string]struct {
		edit           func(*store.Record)
		hawser, resync bool
		want           want
	}{
		"OCM":    {tombstone(func(*store.Record) {}), false, false, want{action: codec.DeleteRequest, version: 5, deletedAt: deletedAt, data: data}},
		"resync": {tombstone(func(*store.Record) {}), false, true, want{action: codec.ResyncResponse, version: 5, deletedAt: deletedAt, data: data}},
		"hawser": {tombstone(func(*store.Record) {}), true, false,
			want{action: codec.DeleteRequest, version: 5, deletedAt: deletedAt, data: data, revision: 18, hasTag: true}},
		"never seen live": {tombstone(func(r *store.Record) { r.Spec = nil }), false, false,
			want{action: codec.DeleteRequest, version: 5, deletedAt: deletedAt}},
		"never seen live, hawser": {tombstone(func(r *store.Record) { r.Spec = nil }), true, false,
			want{action: codec.DeleteRequest, version: 5, deletedAt: deletedAt, revision: 18, hasTag: true}},
		"version too large": {tombstone(func(r *store.Record) { r.Version = math.MaxInt32 + 1 }), false, false,
			want{action: codec.DeleteRequest, deletedAt: deletedAt, data: data}},
		"superseded": {tombstone(func(r *store.Record) { r.SpecSupersedes = true }), false, false,
			want{action: codec.DeleteRequest, deletedAt: deletedAt, data: data}},
		"confirmed tombstone": {tombstone(func(r *store.Record) { r.State, r.Spec = store.ConfirmedTombstone, nil }), false, true,
			want{action: codec.ResyncResponse, version: 5, deletedAt: deletedAt}},
	} {
		parts, err := form{record: record(t, c.edit), hawser: c.hawser, resync: c.resync}.deletion()
		check(t, name, parts, err, c.want)
	}
}

func TestForm_Status(t *testing.T) {
	reported := func(edit func(*store.Record)) func(*store.Record) {
		return func(r *store.Record) {
			r.StatusRevision, r.Sequence = 19, "77"
			r.Status = stored(t, statusType(codec.UpdateRequest), map[string]any{codec.ExtSequenceID: "77", codec.ExtOriginalSource: "wrong"}, `{"conditions":[]}`)
			edit(r)
		}
	}
	for name, c := range map[string]struct {
		edit           func(*store.Record)
		hawser, resync bool
		want           want
	}{
		"OCM":    {reported(func(*store.Record) {}), false, false, want{action: codec.UpdateRequest, version: 4, data: `{"conditions":[]}`, sequence: "77", originally: "s"}},
		"resync": {reported(func(*store.Record) {}), false, true, want{action: codec.ResyncResponse, version: 4, data: `{"conditions":[]}`, sequence: "77", originally: "s"}},
		"hawser": {reported(func(*store.Record) {}), true, false,
			want{action: codec.UpdateRequest, version: 4, data: `{"conditions":[]}`, sequence: "77", originally: "s", revision: 19, hasTag: true}},
	} {
		parts, err := form{record: record(t, c.edit), hawser: c.hawser, resync: c.resync}.status()
		check(t, name, parts, err, c.want)
	}
	none, err := form{record: record(t, func(*store.Record) {})}.status()
	if none != nil || err != nil {
		t.Errorf("a work without status: %v, %v", none, err)
	}
}

// TestForm_LastStatus: if no agent reported the deletion, the broker makes the last status.
func TestForm_LastStatus(t *testing.T) {
	for _, sequence := range []string{"", "77"} {
		r := record(t, func(r *store.Record) {
			r.State, r.DeletedAt, r.ConfirmedAt, r.StatusRevision, r.Sequence, r.Spec = store.ConfirmedTombstone, deletedAt, confirmedAt, 20, sequence, nil
		})
		parts, err := form{record: r}.status()
		if err != nil {
			t.Fatal(err)
		}
		env, err := codec.ParseEnvelope(bytes.Join(parts, nil))
		if err != nil {
			t.Fatal(err)
		}
		deleted, err := codec.ReportsDeleted(env.Data)
		if err != nil || !deleted {
			t.Errorf("data %s: reports deleted %v, %v", env.Data, deleted, err)
		}
		if newer, err := codec.CompareSequence("", env.SequenceID); err != nil || !newer {
			t.Errorf("sequence id %q: %v", env.SequenceID, err)
		}
		if env.Type != statusType(codec.UpdateRequest) || env.Source != request.BrokerSource || env.OriginalSource != "s" || env.Version != 4 ||
			env.ResourceID != "w1" || env.Cluster != "c1" || env.ObjectName != "work" || env.ObjectUID != "w1" {
			t.Errorf("envelope %+v", env)
		}
	}
}
