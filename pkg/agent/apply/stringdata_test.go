package apply

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
)

func secret(content string) string {
	return `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"default"},` + content + `}`
}

// The manifest is applied as data, in which stringData has priority as on the server. The server reports a
// manifest without the shape of a Secret.
func TestServerSideApply_FoldsStringData(t *testing.T) {
	for content, want := range map[string]string{
		`"stringData":{"a":"1","b":""}`:                         `{"a":"MQ==","b":""}`,
		`"data":{"a":"MA==","c":"Mg=="},"stringData":{"a":"1"}`: `{"a":"MQ==","c":"Mg=="}`,
		`"data":{"a":"MA=="},"stringData":null`:                 `{"a":"MA=="}`,
		`"stringData":{}`:                                       `null`,
	} {
		o := object(t, secret(content))
		foldStringData(o)
		if d := cmp.Diff(object(t, secret(`"data":`+want)).Object["data"], o.Object["data"]); d != "" || o.Object["stringData"] != nil {
			t.Errorf("%s: stringData %v, data (-want +got)\n%s", content, o.Object["stringData"], d)
		}
	}
	for _, content := range []string{`"data":"x","stringData":{"a":"1"}`, `"stringData":{"a":1}`} {
		if o := object(t, secret(content)); foldStringData(o) || o.Object["stringData"] == nil {
			t.Errorf("%s was folded", content)
		}
	}
	if o := object(t, `{"apiVersion":"example.com/v1","kind":"Secret","metadata":{"name":"a"},"stringData":{"a":"1"}}`); foldStringData(o) {
		t.Error("of another group")
	}
}

func TestServerSideApply_StringDataIsRepaired(t *testing.T) {
	b := forced(t)
	manifest := secret(`"stringData":{"a":"1","b":"2"}`)
	first := b.apply(manifest)
	wantFields(t, b.must(Create, first), map[string]string{"a": "MQ==", "b": "Mg=="})
	b.must(Unchanged, b.apply(manifest))
	b.f.Edit(first.Ref, func(o *unstructured.Unstructured) {
		o.Object["data"] = map[string]any{"a": "MA==", "b": "Mg==", "c": "Mw=="}
	})
	wantFields(t, b.must(Update, b.applyKnowing(manifest, first.Known)), map[string]string{"a": "MQ==", "b": "Mg==", "c": "Mw=="})
	wantFields(t, b.must(Update, b.apply(secret(`"stringData":{"a":"1"}`))), map[string]string{"a": "MQ==", "c": "Mw=="})
}

// A field that is ignored in stringData is also ignored in data.
func TestServerSideApply_IgnoredStringData(t *testing.T) {
	for _, path := range []string{".stringData.a", ".data.a"} {
		b := forced(t, workv1.IgnoreField{Condition: workv1.IgnoreFieldsConditionOnSpokePresent, JSONPaths: []string{path}})
		manifest := secret(`"stringData":{"a":"1","b":"2"}`)
		first := b.apply(manifest)
		wantFields(t, b.must(Create, first), map[string]string{"a": "MQ==", "b": "Mg=="})
		b.f.Edit(first.Ref, func(o *unstructured.Unstructured) { o.Object["data"] = map[string]any{"a": "OQ==", "b": "OQ=="} })
		wantFields(t, b.must(Update, b.apply(manifest)), map[string]string{"a": "OQ==", "b": "Mg=="})
	}
}
