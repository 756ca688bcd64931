package registration

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/hawser-io/hawser/pkg/codec"
)

// kept returns the kept part of an object of the hub.
func kept(t testing.TB, d codec.DataType, o obj) *object {
	t.Helper()
	for _, k := range kinds {
		if k.dataType == d {
			kept, err := k.keep(&unstructured.Unstructured{Object: jsonOf(t, o)})
			if err != nil {
				t.Fatal(err)
			}
			return kept
		}
	}
	t.Fatalf("%s is not watched", d)
	return nil
}

// jsonOf returns an object after a conversion to JSON and back.
func jsonOf(t testing.TB, o obj) (p obj) {
	t.Helper()
	b, err := json.Marshal(o)
	if err == nil {
		err = utiljson.Unmarshal(b, &p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}
