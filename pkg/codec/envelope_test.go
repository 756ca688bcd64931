package codec

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseEnvelope_OfASpec(t *testing.T) {
	p := specProto()
	tag := TagOf(false, 3, "m", nil)
	p.Attributes["ce-deletiontimestamp"] = pTime(testTime.Add(time.Hour))
	p.Attributes["ce-hawserrevision"] = pString("18446744073709551615")
	p.Attributes["ce-hawsertag"] = pString(tag.String())
	p.Attributes["ce-hawsersupersedes"] = pString("7")
	p.Attributes["ce-hawserifrevision"] = pString("8")
	p.Attributes["ce-hawserneedsconfirm"] = pString("true")
	p.Attributes["ce-hawserfence"] = pString("9")
	got, err := ParseEnvelope(marshalProto(t, p))
	if err != nil {
		t.Fatal(err)
	}
	metadata := `{"name":"w1","namespace":"cluster1","uid":"u1","generation":3}`
	want := Envelope{
		ID: "e1", Source: "src1", RawType: specCreate, Time: testTime,
		Type:    EventType{DataType: ManifestBundles, Subresource: Spec, Action: CreateRequest},
		Cluster: "cluster1", ResourceID: "u1", Version: 3, HasVersion: true,
		Deleting: true, DeletedAt: testTime.Add(time.Hour),
		HasMetadata: true, RawMetadata: metadata, ObjectName: "w1", ObjectNS: "cluster1", ObjectUID: "u1", ObjectGen: 3,
		Revision: math.MaxUint64, Tag: tag, HasTag: true, Supersedes: 7, IfRevision: 8, NeedsConfirm: true, Fence: 9,
		ContentType: "application/json", Data: []byte(`{"manifests":[]}`),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("envelope (-want +got):\n%s", d)
	}
}

func TestParseEnvelope_OfAStatus(t *testing.T) {
	p := specProto()
	p.Type = "io.open-cluster-management.works.v1alpha1.manifestbundles.status.update_request"
	p.Source = "agent1"
	p.Attributes["ce-originalsource"] = pString("src1")
	p.Attributes["ce-sequenceid"] = pString("2123694259314888704")
	p.Attributes["ce-statushash"] = pString("abc")
	got, err := ParseEnvelope(marshalProto(t, p))
	if err != nil {
		t.Fatal(err)
	}
	if got.Type.Subresource != Status || got.OriginalSource != "src1" || got.SequenceID != "2123694259314888704" || got.StatusHash != "abc" || got.Deleting {
		t.Errorf("got %+v", got)
	}
}

func TestParseEnvelope_OfASyncEvent(t *testing.T) {
	p := specProto()
	p.Type = TypeAck
	got, err := ParseEnvelope(marshalProto(t, p))
	if err != nil {
		t.Fatal(err)
	}
	if got.RawType != TypeAck || got.Type != (EventType{}) || got.HasVersion {
		t.Errorf("got %+v", got)
	}
}

func TestParseEnvelope_AliasesItsInput(t *testing.T) {
	b := marshalProto(t, specProto())
	env, err := ParseEnvelope(b)
	if err != nil {
		t.Fatal(err)
	}
	i := strings.Index(string(b), `{"manifests"`)
	b[i] = '!'
	if env.Data[0] != '!' {
		t.Error("the data was copied")
	}
	if env.ID != "e1" || env.RawMetadata[0] != '{' {
		t.Error("text aliases the input")
	}
}

// Text forms of numbers and times, as clients on text-only transports send them.
func TestParseEnvelope_TextForms(t *testing.T) {
	for text, want := range map[string]int64{
		"7": 7, "7.9": 7, "7.0": 7, "0": 0, "007": 7, "+7": 7, "7e2": 700, "2147483647": math.MaxInt32, "2147483647.0": math.MaxInt32, "0.5": 0, "-0": 0, "-0.5": 0,
	} {
		p := specProto()
		p.Attributes["ce-resourceversion"] = pString(text)
		p.Attributes["ce-deletiontimestamp"] = pString("2026-01-02T04:04:05.678901234+01:00")
		p.Attributes["ce-time"] = pString("2026-01-02T03:04:05.678901234Z")
		got, err := ParseEnvelope(marshalProto(t, p))
		if err != nil || got.Version != want || !got.HasVersion || !got.Deleting || !got.DeletedAt.Equal(testTime) || !got.Time.Equal(testTime) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestParseEnvelope_VersionZeroLeavesTheTrueOneInMetadata(t *testing.T) {
	p := specProto()
	p.Attributes["ce-resourceversion"] = pInteger(0)
	p.Attributes["ce-metadata"] = pString(`{"name":"w1","generation":8589934592}`)
	got, err := ParseEnvelope(marshalProto(t, p))
	if err != nil || got.Version != 0 || !got.HasVersion || got.ObjectGen != 1<<33 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseEnvelope_TakesEmptyMetadata(t *testing.T) {
	for _, text := range []string{"", "{}", "null", `{"name":null}`} {
		p := specProto()
		p.Attributes["ce-metadata"] = pString(text)
		got, err := ParseEnvelope(marshalProto(t, p))
		if err != nil || !got.HasMetadata || got.ObjectName != "" {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestParseEnvelope_NamesTheAttributeAtFault(t *testing.T) {
	secret := strings.Repeat("s3cret", 1000)
	for _, c := range []struct {
		key       string
		value     *protoAttr
		attribute string
	}{
		{"ce-resourceversion", pString("x"), ExtResourceVersion},
		{"ce-resourceversion", pString(""), ExtResourceVersion},
		{"ce-resourceversion", pString("NaN"), ExtResourceVersion},
		{"ce-resourceversion", pString("Inf"), ExtResourceVersion},
		{"ce-resourceversion", pString("0x10p0"), ExtResourceVersion},
		{"ce-resourceversion", pString("1_000"), ExtResourceVersion},
		{"ce-resourceversion", pString("2147483648"), ExtResourceVersion},
		{"ce-resourceversion", pString("1e300"), ExtResourceVersion},
		{"ce-resourceversion", pString("-1"), ExtResourceVersion},
		{"ce-resourceversion", pInteger(-1), ExtResourceVersion},
		{"ce-resourceversion", pTime(testTime), ExtResourceVersion},
		{"ce-deletiontimestamp", pString("now"), ExtDeletionTimestamp},
		{"ce-deletiontimestamp", pString("0000-01-01T00:00:00Z"), ExtDeletionTimestamp},
		{"ce-deletiontimestamp", pInteger(1), ExtDeletionTimestamp},
		{"ce-clustername", pInteger(1), ExtClusterName},
		{"ce-originalsource", pInteger(1), ExtOriginalSource},
		{"ce-resourceid", pInteger(1), ExtResourceID},
		{"ce-sequenceid", pInteger(1), ExtSequenceID},
		{"ce-sequenceid", pString("12x"), ExtSequenceID},
		{"ce-statushash", pInteger(1), ExtStatusHash},
		{"ce-metadata", pInteger(1), ExtMetadata},
		{"ce-metadata", pString(secret), ExtMetadata},
		{"ce-metadata", pString(`{"name":5}`), ExtMetadata},
		{"ce-metadata", pString(`{"generation":"5"}`), ExtMetadata},
		{"ce-metadata", pString(`{"generation":-5}`), ExtMetadata},
		{"ce-metadata", pString(`[]`), ExtMetadata},
		{"ce-hawserrevision", pInteger(1), ExtRevision},
		{"ce-hawserrevision", pString("-1"), ExtRevision},
		{"ce-hawserrevision", pString("0"), ExtRevision},
		{"ce-hawserrevision", pString("18446744073709551616"), ExtRevision},
		{"ce-hawsersupersedes", pString(""), ExtSupersedes},
		{"ce-hawserifrevision", pString("x"), ExtIfRevision},
		{"ce-hawserfence", pString("0"), ExtFence},
		{"ce-hawserfence", pInteger(1), ExtFence},
		{"ce-hawserneedsconfirm", pString("false"), ExtNeedsConfirm},
		{"ce-hawserneedsconfirm", pInteger(1), ExtNeedsConfirm},
		{"ce-hawsertag", pString("00"), ExtTag},
		{"ce-hawsertag", pInteger(0), ExtTag},
	} {
		p := specProto()
		p.Attributes[c.key] = c.value
		_, err := ParseEnvelope(marshalProto(t, p))
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != c.attribute {
			t.Errorf("%s = %v: error %v", c.key, c.value, err)
			continue
		}
		if len(err.Error()) > 300 || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error quotes a payload: %v", c.key, err)
		}
	}
	p := specProto()
	p.Type = "not.of.the.grammar." + secret
	_, err := ParseEnvelope(marshalProto(t, p))
	var a *AttributeError
	if !errors.As(err, &a) || a.Attribute != "type" || len(err.Error()) > 300 {
		t.Errorf("type: %v", err)
	}
}

// The version of an unserved type is not read; the broker rejects the event because of its type.
func TestParseEnvelope_LeavesVersionsOfUnknownTypesAlone(t *testing.T) {
	p := specProto()
	p.Type = "certificates.k8s.io.v1.certificatesigningrequests.spec.create_request"
	p.Attributes["ce-resourceversion"] = pString("123456789012")
	env, n, err := ingest(marshalProto(t, p))
	if err != nil || env.HasVersion || env.Version != 0 {
		t.Errorf("got %+v, %v", env, err)
	}
	if d := diffProto(p, unmarshalProto(t, n)); d != "" {
		t.Error(d)
	}
}

func TestVersion_StringForm(t *testing.T) {
	d := DataType{"test", "v1", "strings"}
	dataTypes[d] = Row{DataType: d, Version: VersionString}
	defer delete(dataTypes, d)
	p := specProto()
	p.Type = d.String() + ".spec.update_request"
	p.Attributes["ce-resourceversion"] = pString("123456789012")
	env, n, err := ingest(marshalProto(t, p))
	if err != nil || env.Version != 123456789012 || !env.HasVersion {
		t.Errorf("got %+v, %v", env, err)
	}
	if d := diffProto(p, unmarshalProto(t, n)); d != "" {
		t.Error(d)
	}
	for _, bad := range []*protoAttr{pInteger(1), pString("1.5"), pString("-1"), pString("")} {
		p.Attributes["ce-resourceversion"] = bad
		_, err := ParseEnvelope(marshalProto(t, p))
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != ExtResourceVersion {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestAttributeError_CutsLongValuesBetweenCharacters(t *testing.T) {
	err := attributeError("x", strings.Repeat("é", 100), "is long")
	if len(err.Value) > 90 || !strings.HasPrefix(err.Value, "é") || strings.ContainsRune(err.Value, '\uFFFD') || !strings.HasSuffix(err.Value, "(200 bytes)") {
		t.Errorf("got %q", err.Value)
	}
	if got, want := err.Error(), `attribute "x" is "`; !strings.HasPrefix(got, want) {
		t.Errorf("got %q", got)
	}
}
