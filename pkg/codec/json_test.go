package codec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Types for encoding/json with the members that the readers read.
type (
	rawStatus struct {
		Conditions []struct{ Type, Status, Message string } `json:"conditions"`
	}
	rawMetadata struct {
		Name       string `json:"name"`
		Namespace  string `json:"namespace"`
		UID        string `json:"uid"`
		Generation int64  `json:"generation"`
	}
)

// FuzzJSON compares the readers of JSON with encoding/json. Accepted input has the same meaning there. Input
// that is valid there is rejected only for a limit.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		`{"resourceVersions":[{"resourceID":"u1","resourceVersion":3},{"resourceID":"u2","hawserTag":"000102030405060708090a0b0c0d0e0f"}]}`,
		`{"statusHashes":[{"resourceID":"u1","statusHash":"3a4b"}], "x":[[{}],1e3,"\u00e4\"",true,false,null]}`,
		`{"conditions":[{"type":"Deleted","status":"True","message":"é"}],"resourceStatus":[{"conditions":null}]}`,
		`{"name":"w","namespace":"c1","uid":"u1","generation":7,"labels":{"a":"b"},"managedFields":[{"fieldsV1":{"f:spec":{}}}]}`,
		`{"NAME":"w","ſtatus":1,"conditionſ":[{"TYPE":"Deleted","\u0073tatus":"True"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		compareList(t, b, DecodeVersions, func(l ResourceVersionList) []ResourceVersion { return l.Versions })
		compareList(t, b, DecodeHashes, func(l StatusHashList) []StatusHash { return l.Hashes })
		deleted, err := ReportsDeleted(b)
		var s rawStatus
		if stdErr := json.Unmarshal(b, &s); len(b) > 0 && agree(t, b, err, stdErr) {
			i := slices.IndexFunc(s.Conditions, func(c struct{ Type, Status, Message string }) bool { return c.Type == ConditionDeleted })
			if want := i >= 0 && s.Conditions[i].Status == "True"; deleted != want {
				t.Fatalf("%s: deleted is %v", b, deleted)
			}
		}
		var env Envelope
		err = env.readMetadata(b)
		var m rawMetadata
		if bareErr := json.Unmarshal(b, &m); len(b) > 0 && agree(t, b, err, bareErr) {
			if got := (rawMetadata{env.ObjectName, env.ObjectNS, env.ObjectUID, env.ObjectGen}); got != m {
				t.Fatalf("%s: read %+v, want %+v", b, got, m)
			}
		}
		compareMembers(t, b)
	})
}

// agree reports whether both readers accept b. Only the own reader may reject it, for a limit.
func agree(t *testing.T, b []byte, err, bareErr error) bool {
	t.Helper()
	if err == nil && bareErr != nil {
		t.Fatalf("%q was taken, but %v", b, bareErr)
	}
	if err != nil && bareErr == nil && strings.Contains(err.Error(), string(errSyntax)) {
		t.Fatalf("%q: %v", b, err)
	}
	return err == nil
}

func compareList[T comparable, L any](t *testing.T, b []byte, decode func([]byte) ([]T, error), of func(L) []T) {
	t.Helper()
	list, err := decode(b)
	var l L
	if bareErr := json.Unmarshal(b, &l); len(b) > 0 && agree(t, b, err, bareErr) && !slices.Equal(list, of(l)) {
		t.Fatalf("%s: read %v, want %v", b, list, of(l))
	}
}

// compareMembers compares the readers on b as a structured event.
func compareMembers(t *testing.T, b []byte) {
	t.Helper()
	names := map[string]bool{}
	r := &jsonReader{b: b}
	err := r.members(func(raw []byte) error {
		name, ok := unquote(raw)
		if !ok {
			t.Fatalf("%q has no name", raw)
		}
		names[name] = true
		value, err := r.value()
		if err == nil && !json.Valid(value) {
			t.Fatalf("%q is no value", value)
		}
		return err
	})
	if err == nil {
		err = r.end()
	}
	var members map[string]json.RawMessage
	bareErr := json.Unmarshal(b, &members)
	if bareErr == nil && members == nil {
		bareErr = errSyntax // null is no structured event
	}
	if agree(t, b, err, bareErr) && !maps.EqualFunc(names, members, func(bool, json.RawMessage) bool { return true }) {
		t.Fatalf("%s: members %v", b, names)
	}
}

// TestJSON_HasBounds: input that needs too much memory is rejected, with the reason.
func TestJSON_HasBounds(t *testing.T) {
	many := func(open, one string, n int, end string) []byte {
		return []byte(open + strings.Repeat(one+",", n-1) + one + end)
	}
	deep := strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth)
	long := strings.Repeat("i", MaxNameBytes+1)
	versions := func(b []byte) error { _, err := DecodeVersions(b); return err }
	hashes := func(b []byte) error { _, err := DecodeHashes(b); return err }
	reports := func(b []byte) error { _, err := ReportsDeleted(b); return err }
	metadata := func(b []byte) error { return new(Envelope).readMetadata(b) }
	for name, c := range map[string]struct {
		read func([]byte) error
		data []byte
		want string
	}{
		"entries of nothing":   {versions, many(`{"resourceVersions":[`, "{}", 10, "]}"), "has an entry without resourceID"},
		"too many versions":    {versions, many(`{"resourceVersions":[`, `{"resourceID":"u"}`, MaxListed+1, "]}"), "has more than 131072 entries"},
		"too many hashes":      {hashes, many(`{"statusHashes":[`, `{"resourceID":"u"}`, MaxListed+1, "]}"), "has more than 131072 entries"},
		"a long id":            {versions, []byte(`{"resourceVersions":[{"resourceID":"` + long + `"}]}`), "has a resourceID that must not be longer than 1024 bytes"},
		"an id that is none":   {versions, []byte(`{"resourceVersions":[{"resourceID":"a\u001b[2J"}]}`), "must be printable"},
		"a list twice":         {versions, []byte(`{"resourceVersions":[],"resourceversions":[]}`), "has the member resourceVersions twice"},
		"a deep list":          {versions, []byte(`{"x":` + deep + `}`), "is nested deeper than 128 levels"},
		"too many conditions":  {reports, many(`{"conditions":[`, "{}", MaxConditions+1, "]}"), "has more than 1000 conditions"},
		"a deep status":        {reports, []byte(`{"conditions":[{"x":` + deep + `}]}`), "is nested deeper than 128 levels"},
		"a long name":          {metadata, []byte(`{"name":"` + long + `"}`), "has a name that must not be longer than 1024 bytes"},
		"two names":            {metadata, []byte(`{"name":"a","Name":"b"}`), "has the member name twice"},
		"deep metadata":        {metadata, []byte(`{"annotations":` + deep + `}`), "is nested deeper than 128 levels"},
		"a name that hides":    {metadata, []byte(`{"name":"a\u202eb"}`), "must be printable"},
		"a number as a name":   {metadata, []byte(`{"name":5}`), string(errSyntax)},
		"something behind it":  {metadata, []byte(`{} {}`), string(errSyntax)},
		"a number with a zero": {metadata, []byte(`{"generation":07}`), string(errSyntax)},
	} {
		err := c.read(c.data)
		var a *AttributeError
		if !errors.As(err, &a) || !strings.Contains(a.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestJSON_RefusesAtNextToNoCost: 16 MiB of empty entries, conditions or members are rejected almost without
// memory.
func TestJSON_RefusesAtNextToNoCost(t *testing.T) {
	fill := func(open, one, end string) []byte {
		return []byte(open + strings.TrimSuffix(strings.Repeat(one, 16<<20/len(one)), ",") + end)
	}
	lists, statuses := fill(`{"resourceVersions":[`, "{},", "]}"), fill(`{"conditions":[`, "{},", "]}")
	hidden := fill(`{"x":[`, "{},", `],"conditions":[]}x`)
	members := &wireEvent{hasAttributes: true, data: fill("{", `"a":1,`, "}")}
	compared := &Envelope{RawType: TypeSyncReport, Data: bytes.Repeat([]byte{1<<3 | 2, 0}, 8<<20)}
	for name, read := range map[string]func() error{
		"list":     func() error { _, err := DecodeVersions(lists); return err },
		"status":   func() error { _, err := ReportsDeleted(statuses); return err },
		"metadata": func() error { return new(Envelope).readMetadata(hidden) },
		"event":    func() error { return members.readStructured() },
		"compared": func() error {
			n, err := compared.PayloadBytes()
			if n > 1<<30 {
				err = errSyntax // the broker would reject the payload
			}
			return err
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := read()
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > 17<<20 { // metadata copies its input
			t.Errorf("%s: took %d KiB, %v", name, took>>10, err)
		}
	}
}

// TestParseEnvelope_NamesAreShortAndPrintable: long or unprintable names are rejected before they are stored or
// shown. The error shows them cut and quoted.
func TestParseEnvelope_NamesAreShortAndPrintable(t *testing.T) {
	good, err := ParseEnvelope(marshalProto(t, specProto()))
	if err != nil || good.ResourceID == "" {
		t.Fatal(err)
	}
	for attribute, set := range map[string]func(p *protoEvent, s string){
		"id":              func(p *protoEvent, s string) { p.Id = s },
		"type":            func(p *protoEvent, s string) { p.Type += s },
		ExtClusterName:    func(p *protoEvent, s string) { p.Attributes["ce-clustername"] = pString(s) },
		ExtOriginalSource: func(p *protoEvent, s string) { p.Attributes["ce-originalsource"] = pString(s) },
		ExtResourceID:     func(p *protoEvent, s string) { p.Attributes["ce-resourceid"] = pString(s) },
		ExtStatusHash:     func(p *protoEvent, s string) { p.Attributes["ce-statushash"] = pString(s) },
	} {
		for _, bad := range []string{strings.Repeat("a", 1_600_000), "\x1b[2J", "a\nlevel=ERROR", "\u202egnp.exe"} {
			p := specProto()
			set(p, bad)
			_, err := ParseEnvelope(marshalProto(t, p))
			var a *AttributeError
			if !errors.As(err, &a) || a.Attribute != attribute || len(err.Error()) > 300 || strings.ContainsAny(err.Error(), "\x1b\n\u202e") {
				t.Errorf("%s: %.400v", attribute, err)
			}
		}
	}
	p := specProto()
	p.Attributes["ce-"+strings.Repeat("x", maxAttributeName+1)] = pString("")
	if _, err := Unmarshal(marshalProto(t, p)); err == nil || len(err.Error()) > 300 {
		t.Errorf("a long name of an attribute: %.400v", err)
	}
}

// TestParseEnvelope_AcceptsEventsOfOCMClients: events of OCM clients are far below all limits.
func TestParseEnvelope_AcceptsEventsOfOCMClients(t *testing.T) {
	for _, name := range []string{"w", strings.Repeat("n", 253), "größe"} {
		p := specProto()
		p.Attributes["ce-metadata"] = pString(fmt.Sprintf(`{"name":%q,"managedFields":[{"fieldsV1":{"f:metadata":{"f:annotations":{".":{}}}}}],"creationTimestamp":null}`, name))
		if env, err := ParseEnvelope(marshalProto(t, p)); err != nil || env.ObjectName != name {
			t.Errorf("%q: %q, %v", name, env.ObjectName, err)
		}
	}
}
