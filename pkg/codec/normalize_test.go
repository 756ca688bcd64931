package codec

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func TestNormalize_KeepsMeaningfulFields(t *testing.T) {
	p := specProto()
	p.Attributes["ce-hawserrevision"] = pString("7")
	p.Attributes["ce-hawsersomethingnew"] = pInteger(7)
	p.Attributes["ce-hawsersupersedes"] = pString("7")
	p.Attributes["resourceid"] = pString("no prefix")
	p.Attributes["Content-Type"] = pString("no meaning")
	p.Attributes["ce-unknown"] = pString("kept: OCM clients may know it")
	p.Attributes["ce-resourceversion"] = pString("3.9")
	p.Attributes["ce-deletiontimestamp"] = pString("2026-01-02T03:04:05.678901234Z")
	p.Attributes["ce-time"] = pString("2026-01-02T03:04:05.678901234Z")

	want := specProto()
	want.Attributes["ce-unknown"] = pString("kept: OCM clients may know it")
	want.Attributes["ce-deletiontimestamp"] = pTime(testTime)

	got, err := Normalize(marshalProto(t, p))
	if err != nil {
		t.Fatal(err)
	}
	if d := diffProto(want, unmarshalProto(t, got)); d != "" {
		t.Error(d)
	}
	env, same, err := ingest(marshalProto(t, p))
	if err != nil || !bytes.Equal(got, same) {
		t.Errorf("Ingest normalises differently: %v", err)
	}
	if env.Revision != 7 || env.Supersedes != 7 || env.Version != 3 {
		t.Errorf("Ingest lost attributes of the source: %+v", env)
	}
}

// ingest is Ingest of an event that is stored.
func ingest(b []byte) (*Envelope, []byte, error) {
	env, incoming, err := Ingest(b)
	if err != nil {
		return nil, nil, err
	}
	n, err := incoming.Normalized()
	return env, n, err
}

// The order of fields and entries on the wire does not matter.
func TestNormalize_GivesTheSameBytesForTheSameEvent(t *testing.T) {
	want, err := Normalize(marshalProto(t, specProto()))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		b, err := proto.Marshal(specProto()) // map order is random
		if err != nil {
			t.Fatal(err)
		}
		got, err := Normalize(b)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%x differs from %x: %v", got, want, err)
		}
	}
}

func TestNormalize_RejectsUntypedObjects(t *testing.T) {
	for key, attribute := range map[string]string{
		"ce-resourceversion":   ExtResourceVersion,
		"ce-deletiontimestamp": ExtDeletionTimestamp,
	} {
		p := specProto()
		p.Attributes[key] = pString("x")
		_, err := Normalize(marshalProto(t, p))
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != attribute {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// A broker sends the stored bytes with more bytes appended. The protobuf library must read them as one event.
func TestAppend_BehindANormalizedEvent(t *testing.T) {
	stored, err := Normalize(marshalProto(t, specProto()))
	if err != nil {
		t.Fatal(err)
	}
	tag := TagOf(false, 3, "m", nil)
	at := time.Date(1960, 1, 1, 0, 0, 0, 1, time.UTC) // negative seconds
	sent := bytes.Clone(stored)
	sent = AppendType(sent, EventType{ManifestBundles, Spec, DeleteRequest})
	sent = AppendAttributes(sent,
		StringAttr(ExtRevision, FormatRevision(1<<63)),
		StringAttr(ExtTag, tag.String()),
		IntegerAttr(ExtResourceVersion, 0), // replaces
		IntegerAttr("negative", -1),
		TimestampAttr(ExtDeletionTimestamp, at),
		StringAttr("empty", ""),
	)

	want := specProto()
	want.Type = "io.open-cluster-management.works.v1alpha1.manifestbundles.spec.delete_request"
	want.Attributes["ce-hawserrevision"] = pString("9223372036854775808")
	want.Attributes["ce-hawsertag"] = pString(tag.String())
	want.Attributes["ce-resourceversion"] = pInteger(0)
	want.Attributes["ce-negative"] = pInteger(-1)
	want.Attributes["ce-deletiontimestamp"] = pTime(at)
	want.Attributes["ce-empty"] = pString("")
	if d := diffProto(want, unmarshalProto(t, sent)); d != "" {
		t.Error(d)
	}
	fromOCM, err := FromProto(unmarshalProto(t, sent))
	if err != nil {
		t.Fatal(err)
	}
	own, err := Unmarshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	if own.String() != fromOCM.String() {
		t.Errorf("own reader: %v\nprotobuf: %v", own, fromOCM)
	}
}

// For any event, the protobuf library reads the appended bytes as the event with the attributes set.
func TestAppendAttributes_IsSettingThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEvent(t)
		b, err := Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		want, err := ToProto(e)
		if err != nil {
			t.Fatal(err)
		}
		names := rapid.SliceOfN(rapid.SampledFrom([]string{"xa", "xb", "time", ExtTag}), 0, 5).Draw(t, "names")
		for _, name := range names {
			at := drawTime(t)
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				s := rapid.String().Draw(t, "text")
				b = AppendAttributes(b, StringAttr(name, s))
				want.Attributes["ce-"+name] = pString(s)
			case 1:
				n := rapid.Int32().Draw(t, "number")
				b = AppendAttributes(b, IntegerAttr(name, n))
				want.Attributes["ce-"+name] = pInteger(n)
			default:
				b = AppendAttributes(b, TimestampAttr(name, at))
				want.Attributes["ce-"+name] = pTime(at)
			}
		}
		var got protoEvent
		if err := proto.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if d := diffProto(want, &got); d != "" {
			t.Fatal(d)
		}
	})
}
