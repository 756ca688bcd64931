package codec

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

func addSeeds(f *testing.F) {
	f.Helper()
	f.Add(marshalProto(f, specProto()))
	f.Add(Heartbeat("1"))
	deletion := specProto()
	deletion.Attributes["ce-deletiontimestamp"] = pString("2026-01-02T03:04:05Z")
	deletion.Attributes["ce-resourceversion"] = pString("7.9")
	deletion.Attributes["ce-hawsertag"] = pString(Tag{}.String())
	deletion.Attributes["ce-hawserrevision"] = pString("5")
	deletion.Attributes["ce-hawserfence"] = pString("6")
	deletion.Attributes["ce-id"] = pString("e1")
	deletion.Attributes["unprefixed"] = pInteger(3)
	deletion.Attributes["ce-u"] = &protoAttr{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeUri{CeUri: "https://u:p@h/%20?q#f"}}
	deletion.Data = nil
	f.Add(marshalProto(f, deletion))
	f.Add(append(marshalProto(f, specProto()), AppendAttributes(AppendType(nil, EventType{ManifestBundles, Status, UpdateRequest}), IntegerAttr(ExtResourceVersion, 0))...))
	f.Add(marshalProto(f, structured(mediaTypeStructured, `{"specversion":"1.0","id":"e1","source":"src1","type":"`+specCreate+`","resourceversion":3,"data":{"a":1}}`)))
	f.Add(marshalProto(f, structured(mediaTypeStructured, `{"specversion":"1.0","id":"e1","source":"s","type":"t","x":true,"datacontenttype":"text/plain","data_base64":"AAE="}`)))
}

// stricter reports whether err is one of the two rules about raw bytes that a decoded message no longer shows.
// These are data in a field that was set and then replaced, and repeated entries of one key.
func stricter(err error) bool {
	var a *AttributeError
	return errors.As(err, &a) && a.Attribute == "data" || errors.Is(err, ErrMalformed) && strings.Contains(err.Error(), "attributes")
}

// FuzzUnmarshal compares the reader of protobuf bytes with the protobuf library plus FromProto. Both must
// accept, reject and read the same.
func FuzzUnmarshal(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		checkLikeTheLibrary(t, b)
		WithoutAttribute(b, ExtResourceVersion)
		if e, err := Unmarshal(b); err == nil && IsHeartbeat(b) && e.Type() != TypeHeartbeat {
			t.Fatalf("a heartbeat of type %s", e.Type())
		}
	})
}

func checkLikeTheLibrary(t interface{ Fatalf(string, ...any) }, b []byte) {
	input := bytes.Clone(b)
	e, err := Unmarshal(b)
	if !bytes.Equal(b, input) {
		t.Fatalf("the input was changed")
	}
	var p protoEvent
	if protoErr := proto.Unmarshal(b, &p); protoErr != nil {
		if err == nil {
			t.Fatalf("the library returns %v", protoErr)
		}
		return
	}
	ocm, ocmErr := FromProto(&p)
	if (err == nil) != (ocmErr == nil) && !stricter(err) {
		t.Fatalf("Unmarshal: %v, FromProto: %v", err, ocmErr)
	}
	if err != nil {
		return
	}
	got, err := Marshal(e)
	if err != nil {
		t.Fatalf("cannot be marshalled again: %v", err)
	}
	want, err := Marshal(ocm)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%x\n%x\n%v", got, want, err)
	}
}

// Messages that no library writes, but every library reads: fields in any order, repeated, merged, unknown, and
// of the wrong wire type.
func TestUnmarshal_ReadsOddMessagesLikeTheLibrary(t *testing.T) {
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		b := marshalled(t, specProto())
		for range rapid.IntRange(0, 5).Draw(t, "fields") {
			b = append(b, drawField(t)...)
		}
		if _, err := Unmarshal(b); err == nil {
			taken++
		}
		checkLikeTheLibrary(t, b)
	})
	if taken == 0 {
		t.Error("every message was refused: the test compares nothing")
	}
}

// The reader merges and rejects the same fields as protobuf, in an otherwise valid event.
func TestUnmarshal_MergesAndRefusesLikeTheLibrary(t *testing.T) {
	seconds := func(n uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, fieldSeconds, protowire.VarintType), n)
	}
	nanos := protowire.AppendVarint(protowire.AppendTag(nil, fieldNanos, protowire.VarintType), 7)
	timestamp := func(b []byte) []byte { return appendBytes(nil, fieldTimestamp, b) }
	entry := func(values ...[]byte) []byte {
		b := appendBytes(nil, fieldMapKey, []byte("ce-x"))
		for _, v := range values {
			b = appendBytes(b, fieldMapValue, v)
		}
		return appendBytes(nil, fieldAttributes, b)
	}
	text := appendBytes(nil, fieldString, []byte("s"))
	for name, c := range map[string]struct {
		behind []byte
		want   any // of extension x; nil is ErrMalformed
	}{
		"timestamps merge":               {entry(timestamp(seconds(5)), timestamp(nanos)), types.Timestamp{Time: time.Unix(5, 7).UTC()}},
		"within one value too":           {entry(append(timestamp(seconds(5)), timestamp(nanos)...)), types.Timestamp{Time: time.Unix(5, 7).UTC()}},
		"a later part replaces":          {entry(timestamp(append(seconds(5), seconds(6)...))), types.Timestamp{Time: time.Unix(6, 0).UTC()}},
		"not across another kind":        {entry(timestamp(seconds(5)), text, timestamp(nanos)), types.Timestamp{Time: time.Unix(0, 7).UTC()}},
		"not across entries":             {append(entry(timestamp(seconds(5))), entry(timestamp(nanos))...), types.Timestamp{Time: time.Unix(0, 7).UTC()}},
		"the last kind wins":             {entry(timestamp(seconds(5)), text), "s"},
		"an integer is cut to 32 bits":   {entry(protowire.AppendVarint([]byte{fieldInteger << 3}, 1<<32+5)), int32(5)},
		"any number but 0 is true":       {entry(protowire.AppendVarint([]byte{fieldBoolean << 3}, 1<<32)), true},
		"field number above the highest": {append(entry(text), 0x80, 0x80, 0x80, 0x80, 0x10, 0x00), nil},
		"the same within a value":        {entry([]byte{0x80, 0x80, 0x80, 0x80, 0x10, 0x00}), nil},
		"the same within a timestamp":    {entry(timestamp([]byte{0x80, 0x80, 0x80, 0x80, 0x10, 0x00})), nil},
	} {
		b := append(marshalProto(t, specProto()), c.behind...)
		checkLikeTheLibrary(t, b)
		e, err := Unmarshal(b)
		if c.want == nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(c.want, e.Extensions()["x"]); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func marshalled(t *rapid.T, p *protoEvent) []byte {
	b, err := proto.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func drawField(t *rapid.T) []byte {
	switch rapid.SampledFrom([]string{"text", "entry", "entry", "entry", "data", "odd"}).Draw(t, "field") {
	case "text":
		num := rapid.SampledFrom([]protowire.Number{fieldID, fieldSource, fieldType}).Draw(t, "number")
		return appendBytes(nil, num, []byte(rapid.SampledFrom([]string{"", "src1", "e2", specCreate}).Draw(t, "text")))
	case "data":
		return appendBytes(nil, fieldBinaryData, rapid.SliceOf(rapid.Byte()).Draw(t, "data"))
	case "entry":
		var entry []byte
		for range rapid.IntRange(0, 3).Draw(t, "parts") {
			if rapid.Bool().Draw(t, "key") {
				key := rapid.SampledFrom([]string{"ce-clustername", "ce-time", "ce-id", "contenttype", "other", "ce-x", ""}).Draw(t, "key text")
				entry = appendBytes(entry, fieldMapKey, []byte(key))
			} else {
				entry = appendBytes(entry, fieldMapValue, drawValue(t))
			}
		}
		return appendBytes(nil, fieldAttributes, entry)
	default:
		return drawUnusual(t)
	}
}

func drawValue(t *rapid.T) (b []byte) {
	for range rapid.IntRange(0, 3).Draw(t, "values") {
		num := protowire.Number(rapid.IntRange(1, 8).Draw(t, "kind"))
		switch {
		case num == fieldTimestamp:
			var at []byte
			for range rapid.IntRange(0, 2).Draw(t, "timestamp parts") {
				part := protowire.Number(rapid.IntRange(1, 3).Draw(t, "part"))
				at = protowire.AppendVarint(protowire.AppendTag(at, part, protowire.VarintType), rapid.Uint64Range(0, 1e9).Draw(t, "number"))
			}
			b = appendBytes(b, num, at)
		case num >= fieldString:
			b = appendBytes(b, num, []byte(rapid.SampledFrom([]string{"", "e1", "application/json", "2026-01-02T03:04:05Z"}).Draw(t, "text")))
		default:
			b = protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), rapid.Uint64().Draw(t, "number"))
		}
	}
	return append(b, drawUnusual(t)...)
}

// drawUnusual returns an unknown field, a field with the wrong wire type, or nothing.
func drawUnusual(t *rapid.T) (b []byte) {
	num := protowire.Number(rapid.IntRange(1, 12).Draw(t, "odd number"))
	switch rapid.IntRange(0, 3).Draw(t, "odd") {
	case 0:
		return nil
	case 1:
		return protowire.AppendFixed32(protowire.AppendTag(nil, num, protowire.Fixed32Type), 1)
	case 2:
		b = protowire.AppendTag(nil, num, protowire.StartGroupType)
		b = appendBytes(b, 1, []byte("in the group"))
		return protowire.AppendTag(b, num, protowire.EndGroupType)
	default:
		return protowire.AppendFixed64(protowire.AppendTag(nil, num, protowire.Fixed64Type), 1)
	}
}

// FuzzParseEnvelope checks that a broker, and the receiver of the stored event, read the same event.
func FuzzParseEnvelope(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		env, err := ParseEnvelope(b)
		e, eventErr := Unmarshal(b)
		n, normErr := Normalize(b)
		if eventErr != nil && (err == nil || normErr == nil) {
			t.Fatalf("Unmarshal returns %v, ParseEnvelope %v, Normalize %v", eventErr, err, normErr)
		}
		if normErr == nil {
			checkNormalized(t, n)
			checkWithout(t, n)
		}
		if err != nil {
			return
		}
		if errors.Is(normErr, ErrMalformed) {
			return // without Hawser's attributes, no event is left
		}
		if normErr != nil {
			t.Fatalf("the envelope is good, but %v", normErr)
		}
		checkAgreement(t, env, e)

		if n, err := env.PayloadBytes(); err == nil && n < 0 {
			t.Fatalf("its payload takes %d bytes", n)
		}
		again, n2, err := ingest(b)
		if err != nil || !bytes.Equal(n, n2) {
			t.Fatalf("Ingest: %v", err)
		}
		if d := cmp.Diff(env, *again); d != "" {
			t.Fatalf("Ingest (-want +got):\n%s", d)
		}
		// The stored event means the same as the published one, without Hawser's attributes.
		stored, err := ParseEnvelope(n)
		if err != nil {
			t.Fatalf("the normalised event: %v", err)
		}
		env.Revision, env.Tag, env.HasTag, env.Supersedes, env.IfRevision, env.NeedsConfirm, env.Fence = 0, Tag{}, false, 0, 0, false, 0
		if len(env.Data) == 0 {
			env.Data = nil
		}
		if d := cmp.Diff(env, stored); d != "" {
			t.Fatalf("stored (-want +got):\n%s", d)
		}
	})
}

func checkNormalized(t *testing.T, n []byte) {
	t.Helper()
	again, err := Normalize(n)
	if err != nil || !bytes.Equal(n, again) {
		t.Fatalf("not idempotent: %v\n%x\n%x", err, n, again)
	}
	var p protoEvent
	if err := proto.Unmarshal(n, &p); err != nil {
		t.Fatalf("the library cannot read a normalised event: %v", err)
	}
	for key := range p.GetAttributes() {
		if key != keyContentType && !strings.HasPrefix(key, keyPrefix) || strings.HasPrefix(key, keyPrefix+hawserPrefix) {
			t.Fatalf("attribute %q was kept", key)
		}
	}
	if p.GetId() == "" || p.GetSource() == "" || p.GetType() == "" || p.GetSpecVersion() != SpecVersion {
		t.Fatalf("a field is missing: %v", &p)
	}
}

// checkAgreement compares an envelope with the event as agents and sources read it.
func checkAgreement(t *testing.T, env Envelope, e Event) {
	t.Helper()
	if env.ID != e.ID() || env.Source != e.Source() || env.RawType != e.Type() || env.ContentType != e.DataContentType() || !bytes.Equal(env.Data, e.Data()) {
		t.Fatalf("%+v\n%v", env, e)
	}
	if !outsideGrammar(env.RawType) && env.Type.String() != e.Type() {
		t.Fatalf("type %v of %s", env.Type, e.Type())
	}
	for name, got := range map[string]string{
		ExtClusterName: env.Cluster, ExtOriginalSource: env.OriginalSource, ExtResourceID: env.ResourceID,
		ExtSequenceID: env.SequenceID, ExtStatusHash: env.StatusHash, ExtMetadata: env.RawMetadata,
	} {
		if want, _, err := StringExtension(e, name); err != nil || got != want {
			t.Fatalf("%s is %q, in the event %q, %v", name, got, want, err)
		}
	}
	at, deleting, err := TimeExtension(e, ExtDeletionTimestamp)
	if err != nil || deleting != env.Deleting || !at.Equal(env.DeletedAt) {
		t.Fatalf("deletion: %v %v, %v", at, deleting, err)
	}
	if env.HasVersion {
		if v, ok, err := VersionExtension(e); err != nil || !ok || v != env.Version {
			t.Fatalf("version: %d %v, %v", v, ok, err)
		}
	}
	for name, got := range map[string]uint64{ExtRevision: env.Revision, ExtSupersedes: env.Supersedes, ExtIfRevision: env.IfRevision} {
		if want, err := RevisionExtension(e, name); err != nil || got != want {
			t.Fatalf("%s is %d, in the event %d, %v", name, got, want, err)
		}
	}
	if tag, ok, err := TagExtension(e); err != nil || ok != env.HasTag || tag != env.Tag {
		t.Fatalf("tag: %v %v, %v", tag, ok, err)
	}
}

func FuzzDecodeVersions(f *testing.F) {
	f.Add([]byte(`{"resourceVersions":[{"resourceID":"u1","resourceVersion":3},{"resourceID":"u2","resourceVersion":0,"hawserTag":"000102030405060708090a0b0c0d0e0f"}]}`))
	f.Add([]byte(`{"statusHashes":[{"resourceID":"u1","statusHash":"3a4b"}]}`))
	f.Add([]byte(`{"resourceVersions":null}`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if versions, err := DecodeVersions(b); err == nil {
			again, err := EncodeVersions(versions)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeVersions(again)
			if err != nil || len(got) != len(versions) || len(got) > 0 && !cmp.Equal(versions, got) {
				t.Fatalf("%v became %v, %v", versions, got, err)
			}
		}
		if hashes, err := DecodeHashes(b); err == nil {
			again, err := EncodeHashes(hashes)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeHashes(again)
			if err != nil || len(got) != len(hashes) || len(got) > 0 && !cmp.Equal(hashes, got) {
				t.Fatalf("%v became %v, %v", hashes, got, err)
			}
		}
	})
}

// FuzzParseSync parses any bytes as each kind of sync payload.
func FuzzParseSync(f *testing.F) {
	for _, e := range []func() (Event, error){
		func() (Event, error) {
			return NewCheckpoint(syncAgent, Checkpoint{Cursor: someCursor, Digest: someDigest, HighestSequenceID: "1"})
		},
		func() (Event, error) { return NewAck(syncAgent, Ack{Cursor: someCursor}) },
		func() (Event, error) { return NewKeepalive(syncAgent, *someDigest) },
		func() (Event, error) {
			return NewDisconnectedClusters(syncSource, DisconnectedClusters{Clusters: []DisconnectedCluster{{Cluster: "c", NeverConnected: true}}, More: true})
		},
		func() (Event, error) {
			return NewInventory(syncSource, Inventory{Records: []InventoryRecord{{Cluster: "c"}}, Clusters: []ClusterDigest{{}}})
		},
		func() (Event, error) {
			return NewSyncReport(syncSource, SyncReport{Clusters: []ClusterSyncReport{{Cluster: "c", Withheld: []WithheldDeletion{{ResourceID: "u", Revision: 1}}}}})
		},
	} {
		seed, err := e()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed.Data())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e := withExtension("x", "")
		e.SetDataContentType(ContentTypeProtobuf)
		e.DataEncoded = data
		e.SetType(TypeCheckpoint)
		if c, err := ParseCheckpoint(e); err == nil {
			if again, err := NewCheckpoint(syncAgent, c); err != nil {
				t.Fatal(err)
			} else if got, err := ParseCheckpoint(again); err != nil || !cmp.Equal(c, got) {
				t.Fatalf("%+v became %+v, %v", c, got, err)
			}
		}
		e.SetType(TypeAck)
		if a, err := ParseAck(e); err == nil {
			if again, err := NewAck(syncAgent, a); err != nil {
				t.Fatal(err)
			} else if got, err := ParseAck(again); err != nil || !cmp.Equal(a, got) {
				t.Fatalf("%+v became %+v, %v", a, got, err)
			}
		}
		e.SetType(TypeKeepalive)
		if d, _, err := ParseKeepalive(e); err == nil {
			if again, err := NewKeepalive(syncAgent, d); err != nil {
				t.Fatal(err)
			} else if got, goodbye, err := ParseKeepalive(again); err != nil || got != d || goodbye {
				t.Fatalf("%+v became %+v, %v", d, got, err)
			}
		}
		e.SetType(TypeDisconnectedClusters)
		if d, err := ParseDisconnectedClusters(e); err == nil {
			if again, err := NewDisconnectedClusters(syncSource, d); err != nil {
				t.Fatal(err)
			} else if got, err := ParseDisconnectedClusters(again); err != nil || !cmp.Equal(d, got) {
				t.Fatalf("%+v became %+v, %v", d, got, err)
			}
		}
		e.SetType(TypeInventory)
		if inv, err := ParseInventory(e); err == nil {
			if again, err := NewInventory(syncSource, inv); err != nil {
				t.Fatal(err)
			} else if got, err := ParseInventory(again); err != nil || !cmp.Equal(inv, got) {
				t.Fatalf("%+v became %+v, %v", inv, got, err)
			}
		}
		e.SetType(TypeInventoryRequest)
		if r, err := ParseInventoryRequest(e); err == nil {
			if again, err := NewInventoryRequest(syncSource, r); err != nil {
				t.Fatal(err)
			} else if got, err := ParseInventoryRequest(again); err != nil || !cmp.Equal(r, got) {
				t.Fatalf("%+v became %+v, %v", r, got, err)
			}
		}
		e.SetType(TypeOrphanReport)
		if u, err := ParseOrphanReport(e); err == nil {
			if again, err := NewOrphanReport(syncAgent, u); err != nil {
				t.Fatal(err)
			} else if got, err := ParseOrphanReport(again); err != nil || !cmp.Equal(u, got) {
				t.Fatalf("%+v became %+v, %v", u, got, err)
			}
		}
		e.SetType(TypeResolveOrphan)
		if r, err := ParseResolveOrphan(e); err == nil {
			if again, err := NewResolveOrphan(syncAgent, r); err != nil {
				t.Fatal(err)
			} else if got, err := ParseResolveOrphan(again); err != nil || r != got {
				t.Fatalf("%+v became %+v, %v", r, got, err)
			}
		}
		e.SetType(TypeSyncReport)
		if c, err := ParseSyncReport(e); err == nil {
			if again, err := NewSyncReport(syncSource, c); err != nil {
				t.Fatal(err)
			} else if got, err := ParseSyncReport(again); err != nil || !cmp.Equal(c, got) {
				t.Fatalf("%+v became %+v, %v", c, got, err)
			}
		}
	})
}
