package codec

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

const specCreate = "io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request"

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)

// Short names for the generated types.
type (
	protoEvent = cloudeventsv1.CloudEvent
	protoAttr  = cloudeventsv1.CloudEvent_CloudEventAttributeValue
)

func pString(s string) *protoAttr {
	return &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
}

func pInteger(n int32) *protoAttr {
	return &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeInteger{CeInteger: n}}
}

func pTime(t time.Time) *protoAttr {
	return &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeTimestamp{CeTimestamp: timestamppb.New(t)}}
}

// specProto is a valid spec event as an OCM source sends it.
func specProto() *protoEvent {
	return &protoEvent{
		Id:          "e1",
		Source:      "src1",
		SpecVersion: "1.0",
		Type:        specCreate,
		Attributes: map[string]*protoAttr{
			"contenttype":        pString("application/json"),
			"ce-time":            pTime(testTime),
			"ce-clustername":     pString("cluster1"),
			"ce-originalsource":  pString(""),
			"ce-resourceid":      pString("u1"),
			"ce-resourceversion": pInteger(3),
			"ce-metadata":        pString(`{"name":"w1","namespace":"cluster1","uid":"u1","generation":3}`),
			"ce-logtracing":      pString("{}"),
		},
		Data: &cloudeventsv1.CloudEvent_BinaryData{BinaryData: []byte(`{"manifests":[]}`)},
	}
}

func marshalProto(tb testing.TB, p *protoEvent) []byte {
	tb.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func unmarshalProto(tb testing.TB, b []byte) *protoEvent {
	tb.Helper()
	var p protoEvent
	if err := proto.Unmarshal(b, &p); err != nil {
		tb.Fatal(err)
	}
	return &p
}

func diffProto(want, got proto.Message) string {
	if proto.Equal(want, got) {
		return ""
	}
	return "want " + want.(interface{ String() string }).String() + "\ngot  " + got.(interface{ String() string }).String()
}

func TestUnmarshal_ReadsEveryTypeOfAttribute(t *testing.T) {
	p := specProto()
	p.Attributes["ce-abool"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeBoolean{CeBoolean: true}}
	p.Attributes["ce-abytes"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeBytes{CeBytes: []byte{1, 0xff}}}
	p.Attributes["ce-auri"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeUri{CeUri: "https://host/x"}}
	p.Attributes["ce-auriref"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeUriRef{CeUriRef: "x/y"}}
	p.Attributes["ce-anegative"] = pInteger(-5)
	p.Attributes["ce-adate"] = pTime(time.Date(1901, 1, 1, 0, 0, 0, 0, time.UTC))
	p.Attributes["ce-subject"] = pString("s")
	p.Attributes["ce-dataschema"] = pString("https://host/schema")
	p.Attributes["without-prefix"] = pString("dropped")

	e, err := Unmarshal(marshalProto(t, p))
	if err != nil {
		t.Fatal(err)
	}
	if e.ID() != "e1" || e.Source() != "src1" || e.Type() != specCreate || !e.Time().Equal(testTime) ||
		e.DataContentType() != "application/json" || e.Subject() != "s" || e.DataSchema() != "https://host/schema" {
		t.Errorf("context attributes: %v", e)
	}
	if string(e.Data()) != `{"manifests":[]}` {
		t.Errorf("data %q", e.Data())
	}
	want := map[string]any{
		"clustername": "cluster1", "originalsource": "", "resourceid": "u1", "resourceversion": int32(3),
		"metadata": `{"name":"w1","namespace":"cluster1","uid":"u1","generation":3}`, "logtracing": "{}",
		"abool": true, "abytes": []byte{1, 0xff}, "auri": *types.ParseURI("https://host/x"), "auriref": *types.ParseURIRef("x/y"),
		"anegative": int32(-5), "adate": types.Timestamp{Time: time.Date(1901, 1, 1, 0, 0, 0, 0, time.UTC)},
	}
	if d := cmp.Diff(want, e.Extensions()); d != "" {
		t.Errorf("extensions (-want +got):\n%s", d)
	}

	back, err := ToProto(e)
	if err != nil {
		t.Fatal(err)
	}
	delete(p.Attributes, "without-prefix")
	if d := diffProto(p, back); d != "" {
		t.Error(d)
	}
}

// Which events are rejected, and which attribute the error names.
func TestUnmarshal_Refuses(t *testing.T) {
	for _, c := range []struct {
		name      string
		change    func(p *protoEvent)
		attribute string // "" is ErrMalformed
	}{
		{"no attributes map", func(p *protoEvent) { p.Attributes = nil }, ""},
		{"too many attributes", func(p *protoEvent) {
			for i := range MaxAttributes + 1 {
				p.Attributes["k"+strings.Repeat("x", i)] = pString("")
			}
		}, ""},
		{"no id", func(p *protoEvent) { p.Id = "" }, "id"},
		{"no source", func(p *protoEvent) { p.Source = "" }, "source"},
		{"no type", func(p *protoEvent) { p.Type = "" }, "type"},
		{"no spec version", func(p *protoEvent) { p.SpecVersion = "" }, "specversion"},
		{"old spec version", func(p *protoEvent) { p.SpecVersion = "0.3" }, "specversion"},
		{"source is no URI reference", func(p *protoEvent) { p.Source = ":x" }, "source"},
		{"source changes when parsed", func(p *protoEvent) { p.Source = "a b" }, "source"},
		{"id contradicted", func(p *protoEvent) { p.Attributes["ce-id"] = pString("e2") }, "id"},
		{"source contradicted", func(p *protoEvent) { p.Attributes["ce-source"] = pString("src2") }, "source"},
		{"type contradicted", func(p *protoEvent) { p.Attributes["ce-type"] = pString("x.v1.r.spec.delete_request") }, "type"},
		{"spec version contradicted", func(p *protoEvent) { p.Attributes["ce-specversion"] = pString("0.3") }, "specversion"},
		{"content type contradicted", func(p *protoEvent) { p.Attributes["ce-datacontenttype"] = pString("text/plain") }, "datacontenttype"},
		{"id is a number", func(p *protoEvent) { p.Attributes["ce-id"] = pInteger(1) }, "id"},
		{"content type is a number", func(p *protoEvent) { p.Attributes["contenttype"] = pInteger(1) }, "datacontenttype"},
		{"content type without value", func(p *protoEvent) { p.Attributes["contenttype"] = &protoAttr{} }, "datacontenttype"},
		{"attribute without value", func(p *protoEvent) { p.Attributes["ce-resourceid"] = &protoAttr{} }, "resourceid"},
		{"attribute without name", func(p *protoEvent) { p.Attributes["ce-"] = pString("x") }, "ce-"},
		{"upper case", func(p *protoEvent) { p.Attributes["ce-ClusterName"] = pString("cluster2") }, "ClusterName"},
		{"time is no time", func(p *protoEvent) { p.Attributes["ce-time"] = pString("yesterday") }, "time"},
		{"time is a number", func(p *protoEvent) { p.Attributes["ce-time"] = pInteger(1) }, "time"},
		{"time out of range", func(p *protoEvent) {
			p.Attributes["ce-x"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeTimestamp{CeTimestamp: &timestamppb.Timestamp{Seconds: maxTimestamp + 1}}}
		}, "x"},
		{"negative nanoseconds", func(p *protoEvent) {
			p.Attributes["ce-x"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeTimestamp{CeTimestamp: &timestamppb.Timestamp{Nanos: -1}}}
		}, "x"},
		{"bad URI", func(p *protoEvent) {
			p.Attributes["ce-x"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeUri{CeUri: "%zz"}}
		}, "x"},
		{"bad schema", func(p *protoEvent) { p.Attributes["ce-dataschema"] = pString("%zz") }, "dataschema"},
		{"text_data", func(p *protoEvent) { p.Data = &cloudeventsv1.CloudEvent_TextData{TextData: "{}"} }, "data"},
		{"proto_data", func(p *protoEvent) { p.Data = &cloudeventsv1.CloudEvent_ProtoData{ProtoData: &anypb.Any{}} }, "data"},
		{"batch", func(p *protoEvent) { p.Attributes["contenttype"] = pString("application/cloudevents-batch+json") }, "datacontenttype"},
		{"structured mode by the back door", func(p *protoEvent) {
			delete(p.Attributes, "contenttype")
			p.Attributes["ce-datacontenttype"] = pString(mediaTypeStructured)
		}, "datacontenttype"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := specProto()
			c.change(p)
			check := func(how string, err error) {
				t.Helper()
				var a *AttributeError
				switch {
				case err == nil:
					t.Errorf("%s accepted it", how)
				case c.attribute == "" && !errors.Is(err, ErrMalformed):
					t.Errorf("%s: %v is not ErrMalformed", how, err)
				case c.attribute != "" && (!errors.As(err, &a) || a.Attribute != c.attribute):
					t.Errorf("%s: %v does not name %q", how, err, c.attribute)
				}
			}
			b := marshalProto(t, p)
			_, err := Unmarshal(b)
			check("Unmarshal", err)
			_, err = FromProto(p)
			check("FromProto", err)
			_, err = ParseEnvelope(b)
			check("ParseEnvelope", err)
			_, err = Normalize(b)
			check("Normalize", err)
		})
	}
}

func TestFromProto_RejectsImpossibleEvents(t *testing.T) {
	if _, err := FromProto(nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("got %v", err)
	}
	p := specProto()
	p.Attributes["ce-clustername"] = pString("\xff")
	_, err := FromProto(p)
	wantAttributeError(t, err, ExtClusterName)
}

func TestUnmarshal_RefusesBrokenBytes(t *testing.T) {
	whole := marshalProto(t, specProto())
	for n := range whole {
		// A cut between two fields leaves a valid, shorter message.
		if proto.Unmarshal(whole[:n], &protoEvent{}) == nil {
			continue
		}
		if _, err := Unmarshal(whole[:n]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("first %d of %d bytes: %v", n, len(whole), err)
		}
	}
	for _, b := range [][]byte{
		{0x0a, 0x01, 0xff},                               // id is not UTF-8
		{0x2a, 0x03, 0x0a, 0x01, 0xff},                   // key is not UTF-8
		{0x2a, 0x05, 0x12, 0x03, 0x1a, 0x01, 0xff},       // value is not UTF-8
		{0x80, 0x80, 0x80, 0x80, 0x10, 0x00},             // field number above the highest
		{0x2a, 0x06, 0x12, 0x04, 0x3a, 0x02, 0x08, 0x80}, // timestamp cut off
		{0x2a, 0x04, 0x12, 0x02, 0x10, 0x80},             // integer cut off
		{0x2a, 0x04, 0x12, 0x02, 0x0f, 0x00},             // reserved wire type
		{0x0c},                                           // end of a group that never began
	} {
		if _, err := Unmarshal(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%x: %v", b, err)
		}
	}
}

func TestUnmarshal_AcceptsEqualRepeatedContextAttributes(t *testing.T) {
	p := specProto()
	p.Attributes["ce-id"] = pString("e1")
	p.Attributes["ce-source"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeUriRef{CeUriRef: "src1"}}
	p.Attributes["ce-specversion"] = pString("1.0")
	p.Attributes["ce-datacontenttype"] = pString("application/json")
	p.Type = ""
	p.Attributes["ce-type"] = pString(specCreate)
	n, err := Normalize(marshalProto(t, p))
	if err != nil {
		t.Fatal(err)
	}
	if d := diffProto(specProto(), unmarshalProto(t, n)); d != "" {
		t.Error(d)
	}
}

func TestUnmarshal_SharesNoMemory(t *testing.T) {
	p := specProto()
	p.Attributes["ce-b"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeBytes{CeBytes: []byte("bytes")}}
	b := marshalProto(t, p)
	e, err := Unmarshal(b)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] = 0
	}
	if string(e.Data()) != `{"manifests":[]}` || string(e.Extensions()["b"].([]byte)) != "bytes" {
		t.Error("the event changed with the input")
	}
}

func TestMarshal_Refuses(t *testing.T) {
	valid := func() Event {
		e := event.New()
		e.SetID("e1")
		e.SetSource("src1")
		e.SetType(specCreate)
		e.SetTime(testTime)
		return e
	}
	if _, err := Marshal(valid()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		change    func(e *Event)
		attribute string
	}{
		{"a number that does not fit", func(e *Event) { e.SetExtension(ExtResourceVersion, int64(1)<<33) }, ExtResourceVersion},
		{"a value of no type", func(e *Event) {
			e.Context.(*event.EventContextV1).Extensions = map[string]any{"x": struct{}{}}
		}, "x"},
		{"a nil value", func(e *Event) {
			e.Context.(*event.EventContextV1).Extensions = map[string]any{"x": (*types.URI)(nil)}
		}, "x"},
		{"no id", func(e *Event) { e.Context.(*event.EventContextV1).ID = "" }, "id"},
		{"an id that is not UTF-8", func(e *Event) { e.SetID("\xff") }, "id"},
		{"an extension that is not UTF-8", func(e *Event) { e.SetExtension(ExtMetadata, "\xff") }, ExtMetadata},
		{"no context", func(e *Event) { e.Context = nil }, "specversion"},
		{"old version", func(e *Event) { e.SetSpecVersion("0.3") }, "specversion"},
		{"nothing but the required attributes", func(e *Event) { e.Context.(*event.EventContextV1).Time = nil }, ""},
		{"event as data", func(e *Event) { e.SetDataContentType(mediaTypeStructured) }, "datacontenttype"},
		{"time out of range", func(e *Event) { e.SetTime(time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)) }, "time"},
		{"too many attributes", func(e *Event) {
			for i := range MaxAttributes {
				e.SetExtension(strings.Repeat("x", i+1), "")
			}
		}, ""},
	} {
		e := valid()
		c.change(&e)
		_, err := Marshal(e)
		_, protoErr := ToProto(e)
		var a *AttributeError
		switch {
		case err == nil || protoErr == nil:
			t.Errorf("%s: taken", c.name)
		case c.attribute == "" && !errors.Is(err, ErrMalformed):
			t.Errorf("%s: %v is not ErrMalformed", c.name, err)
		case c.attribute != "" && (!errors.As(err, &a) || a.Attribute != c.attribute):
			t.Errorf("%s: %v does not name %q", c.name, err, c.attribute)
		}
	}
}

// drawEvent returns a random event that the protocol can carry.
func drawEvent(t *rapid.T) Event {
	c := &event.EventContextV1{
		ID:     rapid.StringN(1, 20, -1).Draw(t, "id"),
		Source: *types.ParseURIRef(rapid.StringMatching(`[a-zA-Z0-9_.-]{1,12}`).Draw(t, "source")),
		Type:   rapid.SampledFrom([]string{specCreate, TypeAck, "g.v1.r.status.x"}).Draw(t, "type"),
		Time:   &types.Timestamp{Time: drawTime(t)},
	}
	if s := rapid.String().Draw(t, "subject"); s != "" {
		c.Subject = &s
	}
	for range rapid.IntRange(0, 6).Draw(t, "extensions") {
		if c.Extensions == nil {
			c.Extensions = map[string]any{}
		}
		name := "x" + rapid.StringMatching(`[a-z0-9]{1,10}`).Draw(t, "name")
		c.Extensions[name] = rapid.OneOf(
			rapid.String().AsAny(), rapid.Bool().AsAny(), rapid.Int32().AsAny(), rapid.SliceOfN(rapid.Byte(), 1, 9).AsAny(),
			rapid.Custom(func(t *rapid.T) types.Timestamp { return types.Timestamp{Time: drawTime(t)} }).AsAny(),
			rapid.Just(*types.ParseURI("https://h/p?q")).AsAny(), rapid.Just(*types.ParseURIRef("p/q")).AsAny(),
		).Draw(t, "value")
	}
	e := Event{Context: c}
	if data := rapid.SliceOf(rapid.Byte()).Draw(t, "data"); len(data) > 0 {
		ct := rapid.SampledFrom([]string{"application/json", "application/protobuf"}).Draw(t, "content type")
		c.DataContentType = &ct
		e.DataEncoded, e.DataBase64 = data, ct != "application/json"
	}
	return e
}

func drawTime(t *rapid.T) time.Time {
	return time.Unix(rapid.Int64Range(minTimestamp, maxTimestamp).Draw(t, "s"), rapid.Int64Range(0, 999999999).Draw(t, "ns")).UTC()
}

func TestMarshal_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent(t)
		b, err := Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Unmarshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(e, back); d != "" {
			t.Fatalf("event (-want +got):\n%s", d)
		}
		p, err := ToProto(e)
		if err != nil {
			t.Fatal(err)
		}
		var ocm protoEvent
		if err := proto.Unmarshal(b, &ocm); err != nil {
			t.Fatal(err)
		}
		if d := diffProto(p, &ocm); d != "" {
			t.Fatal(d)
		}
		again, err := Marshal(back)
		if err != nil || !bytes.Equal(b, again) {
			t.Fatalf("not the same bytes for the same event: %v", err)
		}
		fromProto, err := FromProto(p)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(e, fromProto); d != "" {
			t.Fatalf("FromProto(ToProto(e)) (-want +got):\n%s", d)
		}
	})
}

func TestBuilder_ErrorNamesMissingTool(t *testing.T) {
	valid := Builder{ID: "e1", Time: testTime, Source: "src1", Type: specCreate}
	e, err := valid.Event()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]any{"clustername": "", "originalsource": ""}, e.Extensions()); d != "" {
		t.Errorf("clustername and originalsource must always be there (-want +got):\n%s", d)
	}
	for name, change := range map[string]func(*Builder){
		"id":     func(b *Builder) { b.ID = "" },
		"time":   func(b *Builder) { b.Time = time.Time{} },
		"source": func(b *Builder) { b.Source = "" },
		"type":   func(b *Builder) { b.Type = "" },
		"x":      func(b *Builder) { b.Extensions = map[string]any{"x": 1 << 40} },
	} {
		b := valid
		change(&b)
		_, err := b.Event()
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}
