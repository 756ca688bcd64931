package codec

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

// benchEvent is a spec with 4 KiB of data and the metadata of a work that was
// applied with kubectl.
func benchEvent(b *testing.B) []byte {
	b.Helper()
	p := specProto()
	p.Attributes["ce-metadata"] = pString(`{"name":"first-work","namespace":"cluster1","uid":"28e8bfbf-1292-522f-999a-20f1a0f81b1e","generation":3,"creationTimestamp":"2026-01-02T03:04:05Z","labels":{"app.kubernetes.io/name":"nginx","app.kubernetes.io/part-of":"example"},"annotations":{"example.com/note":"` + strings.Repeat("n", 100) + `"},"finalizers":["cluster.open-cluster-management.io/manifest-work-cleanup"]}`)
	p.Data = &cloudeventsv1.CloudEvent_BinaryData{BinaryData: bytes.Repeat([]byte("x"), 4096)}
	return marshalProto(b, p)
}

func BenchmarkParseEnvelope(b *testing.B) {
	event := benchEvent(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseEnvelope(event); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNormalize(b *testing.B) {
	event := benchEvent(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Normalize(event); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIngest(b *testing.B) {
	event := benchEvent(b)
	b.ReportAllocs()
	for b.Loop() {
		_, incoming, err := Ingest(event)
		if err == nil {
			_, err = incoming.Normalized()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkProtoUnmarshal measures the cost of reading the event with the protobuf library first.
func BenchmarkProtoUnmarshal(b *testing.B) {
	event := benchEvent(b)
	b.ReportAllocs()
	for b.Loop() {
		var p protoEvent
		if err := proto.Unmarshal(event, &p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTagOf(b *testing.B) {
	data := bytes.Repeat([]byte("x"), 4096)
	b.ReportAllocs()
	for b.Loop() {
		TagOf(false, 3, "metadata", data)
	}
}
