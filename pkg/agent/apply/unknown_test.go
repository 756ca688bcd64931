package apply

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Fields that no library knows, such as those of a newer cluster, are sent, for kinds with and without a rule
// of their own.
func TestApplier_SendsUnknownFields(t *testing.T) {
	for _, manifest := range []string{
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","namespace":"default"},"spec":{"novelty":{"since":"next year"}}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"default"},"spec":{"novelty":{"since":"next year"}}}`,
		`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"n","namespace":"default"},"spec":{"novelty":{"since":"next year"}}}`,
	} {
		b := newBench(t)
		made := b.must(Create, b.apply(manifest))
		if v, _, err := unstructured.NestedString(made.Object, "spec", "novelty", "since"); err != nil || v != "next year" {
			t.Errorf("%s: got %s", manifest, fields(made, "spec"))
		}
	}
}
