package codec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/codec/internal/codectest"
)

// goldenMessage compares a message with testdata/name: one line per property, in order.
func goldenMessage(t *testing.T, name string, m Message) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "Content Type: %q\n", m.ContentType)
	for _, p := range m.Properties {
		fmt.Fprintf(&b, "%s: %q\n", p.Key, p.Value)
	}
	fmt.Fprintf(&b, "\n%q\n", m.Payload)
	codectest.GoldenText(t, name, b.String())
}

// TestToMessage_Golden is case C4: all attributes as text, also empty ones, and the content type in its own
// field.
func TestToMessage_Golden(t *testing.T) {
	spec := specProto()
	deletion := specProto()
	deletion.Attributes["ce-deletiontimestamp"] = pTime(testTime)
	delete(deletion.Attributes, "contenttype")
	deletion.Data = nil
	for name, p := range map[string]*protoEvent{"message_spec.txt": spec, "message_deletion.txt": deletion} {
		e, err := FromProto(p)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ToMessage(e)
		if err != nil {
			t.Fatal(err)
		}
		goldenMessage(t, name, m)
		again, err := MessageOfProto(marshalProto(t, p))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, again); d != "" {
			t.Errorf("%s from its bytes (-event +bytes):\n%s", name, d)
		}
	}
	e := specWith("x", []byte{0xff, 0})
	e.SetSubject("a subject")
	e.SetDataSchema("https://example.com/schema")
	e.SetExtension("flag", true)
	e.SetExtension("number", int32(-7))
	m, err := ToMessage(e)
	if err != nil {
		t.Fatal(err)
	}
	goldenMessage(t, "message_types.txt", m)
}

// specWith returns the event of specProto with one more attribute.
func specWith(name string, v any) Event {
	e, err := FromProto(specProto())
	if err != nil {
		panic(err)
	}
	e.SetExtension(name, v)
	return e
}

func specMessage(t testing.TB) Message {
	t.Helper()
	m, err := MessageOfProto(marshalProto(t, specProto()))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// with sets a property of a message, or adds it.
func (m Message) with(key, value string) Message {
	m.Properties = slices.DeleteFunc(slices.Clone(m.Properties), func(p Property) bool { return p.Key == key })
	m.Properties = append(m.Properties, Property{key, value})
	return m
}

// TestFromMessage_Versions is case C10, and texts that are no numbers.
func TestFromMessage_Versions(t *testing.T) {
	for text, want := range map[string]int64{"7": 7, "7.9": 7, "0": 0, "2147483647": 2147483647} {
		m := specMessage(t).with("ce-resourceversion", text)
		e, err := FromMessage(m)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if n, ok := e.Extensions()[ExtResourceVersion].(int32); !ok || int64(n) != want {
			t.Errorf("%s became %v", text, e.Extensions()[ExtResourceVersion])
		}
		b, err := m.Proto()
		if err != nil {
			t.Fatal(err)
		}
		if env, _, err := Ingest(b); err != nil || env.Version != want || !env.HasVersion {
			t.Errorf("%s: a broker reads %+v, %v", text, env, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "2147483648", "7 "} {
		_, err := FromMessage(specMessage(t).with("ce-resourceversion", text))
		wantAttributeError(t, err, ExtResourceVersion)
	}
}

// TestFromMessage_RestoresSentEvent: text forms are converted back to their types.
func TestFromMessage_RestoresSentEvent(t *testing.T) {
	p := specProto()
	p.Attributes["ce-deletiontimestamp"] = pTime(testTime.Add(123456789))
	p.Attributes["ce-hawserrevision"] = pString("18446744073709551615")
	want, err := FromProto(p)
	if err != nil {
		t.Fatal(err)
	}
	m, err := ToMessage(want)
	if err != nil {
		t.Fatal(err)
	}
	// Properties without the prefix "ce-" belong to the packet, even with the name of an attribute.
	m.Properties = append(m.Properties, Property{HeaderSubscriptionID, "s"}, Property{"clustername", "other"}, Property{"CE-X", "y"}, Property{"", ""})
	got, err := FromMessage(m)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want.String(), got.String()); d != "" {
		t.Errorf("(-sent +received):\n%s", d)
	}
	if _, ok := got.Extensions()[ExtDeletionTimestamp].(types.Timestamp); !ok {
		t.Errorf("deletiontimestamp is a %T", got.Extensions()[ExtDeletionTimestamp])
	}
}

func TestFromMessage_StructuredMode(t *testing.T) {
	body := `{"specversion":"1.0","id":"e1","source":"src1","type":"` + specCreate + `","time":"2026-01-02T03:04:05.678901234Z",
		"datacontenttype":"application/json","clustername":"cluster1","originalsource":"","resourceid":"u1","resourceversion":3,"logtracing":"{}",
		"metadata":"{\"name\":\"w1\",\"namespace\":\"cluster1\",\"uid\":\"u1\",\"generation\":3}","data":{"manifests":[]}}`
	want, err := Unmarshal(marshalProto(t, specProto()))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []Message{
		{ContentType: "application/cloudevents+json", Payload: []byte(body)},
		{ContentType: "Application/CloudEvents+JSON; charset=utf-8", Payload: []byte(body), Properties: []Property{{"ce-id", "e1"}, {"ce-specversion", "1.0"}, {"other", "x"}}},
	} {
		got, err := FromMessage(m)
		if err != nil {
			t.Errorf("%s: %v", m.ContentType, err)
			continue
		}
		if d := cmp.Diff(want.String(), got.String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", m.ContentType, d)
		}
	}
	// The properties are authorized, so the JSON must not contradict them.
	structured := Message{ContentType: mediaTypeStructured, Payload: []byte(body)}
	for _, key := range []string{"id", "source", "type", "specversion", ExtClusterName} {
		_, err := FromMessage(structured.with("ce-"+key, "other"))
		wantAttributeError(t, err, key)
	}
}

func TestFromMessage_RejectsOtherMessages(t *testing.T) {
	good := specMessage(t)
	for name, m := range map[string]Message{
		"nothing":       {},
		"payload alone": {ContentType: ContentTypeJSON, Payload: []byte("{}")},
		"broken JSON":   {ContentType: mediaTypeStructured, Payload: []byte("{")},
	} {
		if _, err := FromMessage(m); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := m.Proto(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	twice := good
	twice.Properties = append(slices.Clone(good.Properties), Property{"ce-clustername", "cluster2"})
	_, err := FromMessage(twice)
	wantAttributeError(t, err, ExtClusterName)
	twice.Properties = append(slices.Clone(good.Properties), Property{"ce-id", "e1"})
	_, err = FromMessage(twice)
	wantAttributeError(t, err, "id")
	_, err = FromMessage(good.with("ce-ClusterName", "x"))
	wantAttributeError(t, err, "ClusterName")
	_, err = FromMessage(good.with("ce-", "x"))
	wantAttributeError(t, err, "ce-")
	_, err = FromMessage(good.with("ce-time", "yesterday"))
	wantAttributeError(t, err, "time")
	_, err = FromMessage(good.with("ce-x", "\xff"))
	wantAttributeError(t, err, "x")
	many := good
	many.Properties = slices.Clone(good.Properties)
	for n := range MaxAttributes {
		many.Properties = append(many.Properties, Property{fmt.Sprintf("ce-x%d", n), ""})
	}
	if _, err := FromMessage(many); !errors.Is(err, ErrMalformed) {
		t.Errorf("too many attributes: %v", err)
	}
}

func TestMessage_TextsHaveALimit(t *testing.T) {
	e := specWith(ExtMetadata, strings.Repeat("m", MaxTextBytes))
	m, err := ToMessage(e)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.CheckLengths(); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	m, err = ToMessage(specWith(ExtMetadata, strings.Repeat("m", MaxTextBytes+1)))
	if err != nil {
		t.Fatal(err)
	}
	wantAttributeError(t, m.CheckLengths(), ExtMetadata)
	if err := m.CheckLengths(); err == nil || !strings.Contains(err.Error(), "65535") {
		t.Errorf("%v does not name the limit", err)
	}
	m = Message{ContentType: strings.Repeat("x", MaxTextBytes+1)}
	wantAttributeError(t, m.CheckLengths(), "datacontenttype")

	_, err = ToMessage(specWith("x", "a\x00b"))
	wantAttributeError(t, err, "x")
	e = specWith("x", "")
	e.SetDataContentType("a\x00b")
	e.DataEncoded = []byte("x")
	_, err = ToMessage(e)
	wantAttributeError(t, err, "datacontenttype")
}

// TestMessage_KeepsAnyEvent: a normalized event is unchanged after the conversion to a message and back.
func TestMessage_KeepsAnyEvent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := specWith(rapid.StringMatching(`x[a-z0-9]{0,5}`).Draw(t, "name"), rapid.StringMatching(`[ -~é]{0,20}`).Draw(t, "value"))
		e.SetExtension(ExtResourceVersion, rapid.Int32Min(0).Draw(t, "version"))
		e.SetTime(testTime.Add(time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "time"))))
		if rapid.Bool().Draw(t, "deleting") {
			e.SetExtension(ExtDeletionTimestamp, testTime.Add(time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "deleted"))))
		}
		e.SetDataContentType(ContentTypeProtobuf)
		e.DataEncoded = rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "data")
		want, err := Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ToMessage(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Proto()
		if err != nil || string(got) != string(want) {
			t.Fatalf("%v became %x, %v", e, got, err)
		}
	})
}

// FuzzMessage reads any properties and payload. properties has one line per property.
func FuzzMessage(f *testing.F) {
	for _, m := range []Message{specMessage(f), {ContentType: mediaTypeStructured, Payload: []byte(`{"specversion":"1.0","id":"e1","source":"src1","type":"` + specCreate + `","resourceversion":3,"data":{"a":1}}`)}} {
		var lines []string
		for _, p := range m.Properties {
			lines = append(lines, p.Key+"="+p.Value)
		}
		f.Add(m.ContentType, strings.Join(lines, "\n"), m.Payload)
	}
	f.Fuzz(func(t *testing.T, contentType, properties string, payload []byte) {
		m := Message{ContentType: contentType, Payload: payload}
		for line := range strings.SplitSeq(properties, "\n") {
			key, value, _ := strings.Cut(line, "=")
			m.Properties = append(m.Properties, Property{key, value})
		}
		e, err := FromMessage(m)
		b, protoErr := m.Proto()
		if (err == nil) != (protoErr == nil) {
			t.Fatalf("FromMessage: %v, Proto: %v", err, protoErr)
		}
		if err != nil {
			return
		}
		if want, err := Marshal(e); err != nil || string(want) != string(b) {
			t.Fatalf("%x\n%x\n%v", b, want, err)
		}
		one, err := MessageOfProto(b)
		two, err2 := ToMessage(e)
		if (err == nil) != (err2 == nil) || !cmp.Equal(one, two) && err == nil {
			t.Fatalf("%v %v\n%s", err, err2, cmp.Diff(one, two))
		}
		if err != nil {
			return // U+0000
		}
		again, err := one.Proto()
		if err != nil {
			t.Fatal(err)
		}
		// The first conversion turns values whose type only JSON shows into texts. The second one changes
		// nothing.
		third, err := MessageOfProto(again)
		if err != nil || !cmp.Equal(one, third) {
			t.Fatalf("%v\n%s", err, cmp.Diff(one, third))
		}
	})
}
