package codec

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec/internal/codectest"
)

func golden(t *testing.T, name string, e Event, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	codectest.Golden(t, name, b)
}

func TestResyncRequests_Golden(t *testing.T) {
	agent := ResyncParams{ID: "e1", Time: testTime, Source: "agent1", Cluster: "cluster1", DataType: ManifestBundles}
	e, err := NewSpecResyncRequest(agent, nil)
	golden(t, "spec_resync_empty.txt", e, err)
	e, err = NewSpecResyncRequest(agent, []ResourceVersion{
		{ResourceID: "u1", ResourceVersion: 3},
		{ResourceID: "u2", ResourceVersion: 1 << 33, Tag: "000102030405060708090a0b0c0d0e0f"},
	})
	golden(t, "spec_resync.txt", e, err)

	source := ResyncParams{ID: "e1", Time: testTime, Source: "src1", DataType: ManifestBundles}
	e, err = NewStatusResyncRequest(source, nil)
	golden(t, "status_resync_empty.txt", e, err)
	source.Cluster = "cluster1"
	e, err = NewStatusResyncRequest(source, []StatusHash{{ResourceID: "u1", StatusHash: "3a4b"}, {ResourceID: "u2"}})
	golden(t, "status_resync.txt", e, err)
}

func TestHeartbeat_Golden(t *testing.T) {
	codectest.Golden(t, "heartbeat.txt", Heartbeat("0d1f5b8e-5a0b-4c59-9d5f-6b4f2c8a7e10"))
}

func TestIsHeartbeat_LooksAtTheTypeAlone(t *testing.T) {
	spec := marshalProto(t, specProto())
	for name, c := range map[string]struct {
		b    []byte
		want bool
	}{
		"heartbeat":            {Heartbeat("1"), true},
		"spec":                 {spec, false},
		"type set behind":      {append(Heartbeat("1"), AppendType(nil, EventType{ManifestBundles, Spec, CreateRequest})...), false},
		"nothing":              {nil, false},
		"broken":               {append(Heartbeat("1"), 0x0a), false},
		"broken tag":           {append(Heartbeat("1"), 0x80), false},
		"type of another wire": {[]byte{0x20, 0x01}, false},
	} {
		if got := IsHeartbeat(c.b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestDecodeVersions(t *testing.T) {
	want := []ResourceVersion{{ResourceID: "u1", ResourceVersion: 1 << 40, Tag: "000102030405060708090a0b0c0d0e0f"}, {ResourceID: "u1", ResourceVersion: 2}}
	b, err := EncodeVersions(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeVersions(b)
	if err != nil || !cmp.Equal(want, got) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, nothing := range []string{"{}", `{"resourceVersions":null}`, `{"resourceVersions":[]}`, `{"else":1}`} {
		if got, err := DecodeVersions([]byte(nothing)); err != nil || len(got) != 0 {
			t.Errorf("%s: %v, %v", nothing, got, err)
		}
	}
	for _, empty := range [][]byte{nil, {}} {
		if _, err := DecodeVersions(empty); !errors.Is(err, ErrNoPayload) {
			t.Errorf("empty body: %v", err)
		}
		if _, err := DecodeHashes(empty); !errors.Is(err, ErrNoPayload) {
			t.Errorf("empty body: %v", err)
		}
	}
	for _, bad := range []string{"[", "[]", `"x"`, `{"resourceVersions":{}}`, `{"resourceVersions":[{"resourceVersion":"3"}]}`, `{"resourceVersions":[{"hawserTag":"xy"}]}`} {
		_, err := DecodeVersions([]byte(bad))
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != "data" {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestDecodeHashes(t *testing.T) {
	want := []StatusHash{{ResourceID: "u1", StatusHash: "h"}, {ResourceID: "u2"}}
	b, err := EncodeHashes(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeHashes(b); err != nil || !cmp.Equal(want, got) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"[", "[]", `{"statusHashes":{}}`, `{"statusHashes":[{"statusHash":3}]}`} {
		_, err := DecodeHashes([]byte(bad))
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != "data" {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestSummaryOf: of several conditions of one type the first is used. Of those that are False, Applied comes
// before Available. The message is short and printable.
func TestSummaryOf(t *testing.T) {
	long := strings.Repeat("é", MaxSummaryBytes)
	for data, want := range map[string]StatusSummary{
		"": {},
		`{"conditions":[{"type":"Applied","status":"True","message":"fine"},{"type":"Available","status":"Unknown","message":"?"}]}`:                            {Applied: "True", Available: "Unknown"},
		`{"conditions":[{"message":"no CRD","type":"Available","status":"False"},{"type":"Applied","message":"not\u0020all\n\u001b[2J","status":"False"}]}`:     {Applied: "False", Available: "False", Message: "not all  [2J"},
		`{"conditions":[{"type":"Applied","status":"True"},{"type":"Available","status":"False","message":"not there"},{"type":"Available","status":"True"}]}`:  {Applied: "True", Available: "False", Message: "not there"},
		`{"conditions":[{"type":"Contested","status":"True","message":"rival"},{"type":"Applied","status":"True"}]}`:                                            {Applied: "True", Message: "rival"},
		`{"conditions":[{"type":"Contested","status":"True","message":"rival"},{"type":"ReconcileSlow","status":"True","message":"slow"}]}`:                     {Message: "slow"},
		`{"conditions":[{"type":"Applied","status":"False","message":null}]}`:                                                                                   {Applied: "False"},
		`{"conditions":[{"type":"Applied","status":"False","message":"` + long + `"}]}`:                                                                         {Applied: "False", Message: long[:MaxSummaryBytes]},
		`{"conditions":[{"type":"Applied","status":"False","message":"` + strings.Repeat(`\u00e9`, 1000) + `"}]}`:                                               {Applied: "False", Message: strings.Repeat("é", MaxSummaryBytes/3)},
		`{"conditions":[{"type":"Applied","status":"False","message":"` + strings.Repeat(`\"`, 1000) + `"}]}`:                                                   {Applied: "False", Message: strings.Repeat(`"`, 1000)},
		`{"conditions":[{"type":"Applied","status":"False","message":"no"},{"type":"Deleting","status":"True","message":"waits for finalizers"}]}`:              {Applied: "False", Message: "waits for finalizers"},
		`{"conditions":[{"type":"Available","status":"False","message":"gone"},{"type":"Deleting","status":"True","message":"ManifestWork is being deleted"}]}`: {Available: "False"},
	} {
		got, err := SummaryOf([]byte(data))
		if err != nil || got != want {
			t.Errorf("%.200s: %+v, %v", data, got, err)
		}
		if got.Fails() != (want.Applied == "False" || want.Available == "False") {
			t.Errorf("%.200s: fails: %t", data, got.Fails())
		}
	}
	if _, err := SummaryOf([]byte(`{"conditions":[{"type":"Applied","message":7}]}`)); err == nil {
		t.Error("a message that is a number")
	}
}

func TestReportsDeleted(t *testing.T) {
	for _, c := range []struct {
		data     string
		want, ok bool
	}{
		{"", false, true},
		{`{"conditions":null}`, false, true},
		{`{"conditions":[{"type":"Applied","status":"True"}]}`, false, true},
		{`{"conditions":[{"type":"Applied","status":"True"},{"type":"Deleted","status":"True","reason":"ManifestsDeleted"}],"resourceStatus":[]}`, true, true},
		{`{"conditions":[{"type":"Deleted","status":"False"}]}`, false, true},
		{`{"conditions":[{"type":"Deleted","status":"False"},{"type":"Deleted","status":"True"}]}`, false, true},
		{`{"conditions":[],"resourceStatus":[{"conditions":[{"type":"Deleted","status":"True"}]}]}`, false, true},
		{`{"conditions":[{"type":"\u0044eleted","status":"True"}]}`, true, true},
		{`{"conditions":{}}`, false, false},
		{`[]`, false, false},
		{`{`, false, false},
	} {
		got, err := ReportsDeleted([]byte(c.data))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %v, %v", c.data, got, err)
		}
	}
}
