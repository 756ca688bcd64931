package codec_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/codec"
)

func TestWithoutAttribute(t *testing.T) {
	build := func(extensions map[string]any) []byte {
		e, err := codec.Builder{
			ID: "1", Time: time.Unix(7, 0), Source: "s", Cluster: "c", Extensions: extensions,
			Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.DeleteRequest}.String(),
			ContentType: codec.ContentTypeJSON, Data: []byte(`{"manifests":[]}`),
		}.Event()
		if err != nil {
			t.Fatal(err)
		}
		b, err := codec.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if b, err = codec.Normalize(b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	unescaped := build(map[string]any{codec.ExtResourceID: "w"})
	deleting := build(map[string]any{codec.ExtResourceID: "w", codec.ExtDeletionTimestamp: time.Unix(8, 9)})
	before := bytes.Clone(deleting)
	if got := codec.WithoutAttribute(deleting, codec.ExtDeletionTimestamp); !bytes.Equal(got, unescaped) {
		t.Errorf("got %q, want %q", got, unescaped)
	}
	if !bytes.Equal(deleting, before) {
		t.Error("the event was modified")
	}
	if got := codec.WithoutAttribute(unescaped, codec.ExtDeletionTimestamp); &got[0] != &unescaped[0] {
		t.Error("an event without the attribute was copied")
	}
	twice := codec.AppendAttributes(bytes.Clone(deleting), codec.TimestampAttr(codec.ExtDeletionTimestamp, time.Unix(10, 0)))
	if got := codec.WithoutAttribute(twice, codec.ExtDeletionTimestamp); !bytes.Equal(got, unescaped) {
		t.Errorf("given twice: got %q, want %q", got, unescaped)
	}
	for _, bad := range [][]byte{nil, {0xff}, deleting[:len(deleting)-1]} {
		if got := codec.WithoutAttribute(bad, codec.ExtDeletionTimestamp); !bytes.Equal(got, bad) {
			t.Errorf("broken bytes %q became %q", bad, got)
		}
	}
}
