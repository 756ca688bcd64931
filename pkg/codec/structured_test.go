package codec

import (
	"errors"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"pgregory.net/rapid"

	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

func structured(contentType, body string) *protoEvent {
	return &protoEvent{
		Attributes: map[string]*protoAttr{"contenttype": pString(contentType)},
		Data:       &cloudeventsv1.CloudEvent_BinaryData{BinaryData: []byte(body)},
	}
}

func TestUnmarshal_StructuredMode(t *testing.T) {
	const head = `{"specversion":"1.0","id":"e1","source":"src1","clustername":"","type":"` + specCreate + `"`
	for _, c := range []struct {
		name, body string
		data       string
	}{
		{"JSON", head + `,"datacontenttype":"application/json","data":{"a": [1]}}`, `{"a": [1]}`},
		{"JSON without content type", head + `,"data":"text"}`, `"text"`},
		{"JSON by its suffix", head + `,"datacontenttype":"application/x+json","data":null,"data_base64":null}`, ""},
		{"base64", head + `,"datacontenttype":"application/json","data_base64":"eyJhIjoxfQ=="}`, `{"a":1}`},
		{"text", head + `,"datacontenttype":"text/plain","data":"a\nb"}`, "a\nb"},
		{"no data", head + `}`, ""},
		{"null attribute", head + `,"subject":null}`, ""},
	} {
		p := structured("Application/CloudEvents+JSON; charset=utf-8", c.body)
		e, err := Unmarshal(marshalProto(t, p))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if string(e.Data()) != c.data || e.ID() != "e1" || e.Subject() != "" {
			t.Errorf("%s: data %q in %v", c.name, e.Data(), e)
		}
	}
}

func TestNormalize_TurnsStructuredIntoBinaryMode(t *testing.T) {
	body := `{"specversion":"1.0","id":"e1","source":"src1","type":"` + specCreate + `","time":"2026-01-02T03:04:05.678901234Z",
		"datacontenttype":"application/json","clustername":"cluster1","originalsource":"","resourceid":"u1","resourceversion":3,"logtracing":"{}",
		"metadata":"{\"name\":\"w1\",\"namespace\":\"cluster1\",\"uid\":\"u1\",\"generation\":3}","data":{"manifests":[]}}`
	p := structured(mediaTypeStructured, body)
	p.Id = "e1" // a field may repeat the JSON
	n, err := Normalize(marshalProto(t, p))
	if err != nil {
		t.Fatal(err)
	}
	if d := diffProto(specProto(), unmarshalProto(t, n)); d != "" {
		t.Error(d)
	}
}

func TestUnmarshal_RefusesBadStructuredEvents(t *testing.T) {
	const head = `{"specversion":"1.0","id":"e1","source":"src1","type":"` + specCreate + `"`
	for _, c := range []struct {
		name, body, attribute string
	}{
		{"no JSON", "{", ""},
		{"no object", "null", ""},
		{"array", "[]", ""},
		{"nothing but the required attributes", head + `}`, ""},
		{"no id", `{"specversion":"1.0","source":"src1","type":"` + specCreate + `"}`, "id"},
		{"id is a number", `{"specversion":"1.0","id":5,"source":"src1","type":"` + specCreate + `"}`, "id"},
		{"number too large", head + `,"resourceversion":8589934592}`, "resourceversion"},
		{"fraction", head + `,"resourceversion":7.9}`, "resourceversion"},
		{"object", head + `,"x":{}}`, "x"},
		{"upper case", head + `,"ClusterName":"c"}`, "ClusterName"},
		{"empty name", head + `,"":"c"}`, "ce-"},
		{"two kinds of data", head + `,"data":1,"data_base64":""}`, "data"},
		{"base64 is no string", head + `,"data_base64":5}`, "data"},
		{"base64 is none", head + `,"data_base64":"!"}`, "data"},
		{"text is no string", head + `,"datacontenttype":"text/plain","data":5}`, "data"},
		{"an event as data", head + `,"datacontenttype":"application/cloudevents+json","data":{}}`, "datacontenttype"},
		{"old version", `{"specversion":"0.3","id":"e1","source":"src1","type":"` + specCreate + `"}`, "specversion"},
	} {
		_, err := Unmarshal(marshalProto(t, structured(mediaTypeStructured, c.body)))
		var a *AttributeError
		switch {
		case err == nil:
			t.Errorf("%s: taken", c.name)
		case c.attribute == "" && !errors.Is(err, ErrMalformed):
			t.Errorf("%s: %v is not ErrMalformed", c.name, err)
		case c.attribute != "" && (!errors.As(err, &a) || a.Attribute != c.attribute):
			t.Errorf("%s: %v does not name %q", c.name, err, c.attribute)
		}
	}
}

// The fields around a structured event are authorized, so the JSON must not contradict them.
func TestUnmarshal_RejectsContradictoryStructuredEvent(t *testing.T) {
	const body = `{"specversion":"1.0","id":"e1","source":"src1","type":"` + specCreate + `","clustername":"cluster1"}`
	for name, change := range map[string]func(*protoEvent){
		"id":          func(p *protoEvent) { p.Id = "e2" },
		"source":      func(p *protoEvent) { p.Source = "src2" },
		"type":        func(p *protoEvent) { p.Type = TypeAck },
		"specversion": func(p *protoEvent) { p.SpecVersion = "0.3" },
		"clustername": func(p *protoEvent) { p.Attributes["ce-clustername"] = pString("cluster1") },
	} {
		p := structured(mediaTypeStructured, body)
		change(p)
		_, err := Unmarshal(marshalProto(t, p))
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The JSON that the CloudEvents library writes is read back as the same event.
func TestUnmarshal_ReadsEncodingOfLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := event.New()
		e.SetID(rapid.StringMatching(`[a-z"\\é]{1,10}`).Draw(t, "id"))
		e.SetSource("src1")
		e.SetType(specCreate)
		e.SetTime(testTime.Add(time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "time"))))
		e.SetExtension("clustername", rapid.StringMatching(`[a-z<>&"\\é ]{0,10}`).Draw(t, "cluster"))
		e.SetExtension("resourceversion", rapid.Int32().Draw(t, "version"))
		e.SetExtension("flag", rapid.Bool().Draw(t, "flag"))
		if rapid.Bool().Draw(t, "binary") {
			if err := e.SetData("application/protobuf", rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "bytes")); err != nil {
				t.Fatal(err)
			}
		} else if err := e.SetData("application/json", map[string]string{"k": rapid.String().Draw(t, "json")}); err != nil {
			t.Fatal(err)
		}
		body, err := e.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		w := &wireEvent{hasAttributes: true, contentType: stringValue([]byte(mediaTypeStructured)), data: body}
		if err := w.resolve(); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		got, err := Marshal(w.event())
		if err != nil {
			t.Fatal(err)
		}
		want, err := Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Fatalf("%s came back as %v", body, w.event())
		}
	})
}
