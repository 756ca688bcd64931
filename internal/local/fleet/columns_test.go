package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/util/jsonpath"
	sigsyaml "sigs.k8s.io/yaml"
)

const workThatFailed = `
metadata:
  name: web
  generation: 3
  creationTimestamp: "2026-01-02T03:00:00Z"
  managedFields:
  - {manager: kubectl, operation: Update, time: "2026-01-02T03:03:00Z"}
  - {manager: hawser-hub-source, operation: Update, subresource: status, time: "2026-01-02T03:04:05Z"}
status:
  conditions:
  - {type: Applied, status: "False", reason: AppliedManifestWorkFailed, message: one failed, observedGeneration: 2}
  - {type: Available, status: "False", reason: ResourcesNotAvailable, message: 1 of 2 resources are not available}
  - {type: Delivered, status: "False", reason: TooLarge}
`

// TestColumns_OfTheDefinitions checks the columns of kubectl for a ManifestWork and an AppliedManifestWork, also
// without some fields.
func TestColumns_OfTheDefinitions(t *testing.T) {
	for name, c := range map[string]struct {
		definition, object string
		want               []string
	}{
		"a work that failed": {"manifestworks", workThatFailed, []string{
			"Applied: False", "Available: False", "Delivered: False", "Generation: 3", "Observed: 2",
			"Status Updated: 2026-01-02T03:04:05Z", "Age: 2026-01-02T03:00:00Z",
			"Reason (wide): AppliedManifestWorkFailed", "Delivery (wide): TooLarge",
			"Resources (wide): 1 of 2 resources are not available", "Message (wide): one failed",
		}},
		"a work of which nothing is known": {"manifestworks", `{metadata: {generation: 1, creationTimestamp: "2026-01-02T03:00:00Z", managedFields: [{manager: kubectl}]}}`, []string{
			"Applied: ", "Available: ", "Delivered: ", "Generation: 1", "Observed: ", "Status Updated: ", "Age: 2026-01-02T03:00:00Z",
			"Reason (wide): ", "Delivery (wide): ", "Resources (wide): ", "Message (wide): ",
		}},
		"what a work has": {"appliedmanifestworks", `{metadata: {creationTimestamp: "2026-01-02T03:00:00Z"}, spec: {manifestWorkName: web, agentID: one}}`, []string{
			"Work: web", "Evicting Since: ", "Age: 2026-01-02T03:00:00Z", "Agent (wide): one",
		}},
		"a work to be evicted": {"appliedmanifestworks", `{metadata: {creationTimestamp: "2026-01-02T03:00:00Z"}, spec: {manifestWorkName: web}, status: {evictionStartTime: "2026-01-02T04:00:00Z"}}`, []string{
			"Work: web", "Evicting Since: 2026-01-02T04:00:00Z", "Age: 2026-01-02T03:00:00Z", "Agent (wide): ",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var object map[string]any
			if err := sigsyaml.Unmarshal([]byte(c.object), &object); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, column := range columns(t, c.definition) {
				header := column.Name
				if column.Priority > 0 {
					header += " (wide)"
				}
				got = append(got, header+": "+cell(t, column, object))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func columns(t *testing.T, definition string) []apiextensionsv1.CustomResourceColumnDefinition {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "crds", definition+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := sigsyaml.UnmarshalStrict(b, &crd); err != nil {
		t.Fatal(err)
	}
	if len(crd.Spec.Versions) != 1 {
		t.Fatalf("%d versions", len(crd.Spec.Versions))
	}
	return crd.Spec.Versions[0].AdditionalPrinterColumns
}

// cell returns the cell that a kube-apiserver prints for a column: the first result, or "" if a key is missing.
func cell(t *testing.T, column apiextensionsv1.CustomResourceColumnDefinition, object map[string]any) string {
	t.Helper()
	path := jsonpath.New(column.Name).AllowMissingKeys(true)
	if err := path.Parse("{" + column.JSONPath + "}"); err != nil {
		t.Fatal(err)
	}
	results, err := path.FindResults(object)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) == 0 || len(results[0]) == 0 {
		return ""
	}
	var b strings.Builder
	if err := path.PrintResults(&b, results[0][:1]); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
