package manifestwork

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// reported is a condition without its time. observed is 0 if the condition is about the object and not about a
// spec.
type reported struct {
	typ, status, reason, message string
	observed                     int64
}

func report(conditions []metav1.Condition) map[string]reported {
	all := map[string]reported{}
	for _, c := range conditions {
		all[c.Type] = reported{c.Type, string(c.Status), c.Reason, c.Message, c.ObservedGeneration}
	}
	return all
}

// wantReports waits until the work and its manifests, in order, have exactly these conditions. A message that
// ends in "…" is compared up to that point.
func wantReports(t *testing.T, w *workv1.ManifestWork, work []reported, manifests ...[]reported) {
	t.Helper()
	compare := func(what string, want []reported, got map[string]reported) error {
		expected := map[string]reported{}
		for _, c := range want {
			if prefix, open := strings.CutSuffix(c.message, "…"); open && strings.HasPrefix(got[c.typ].message, prefix) {
				c.message = got[c.typ].message
			}
			expected[c.typ] = c
		}
		delete(got, "Delivered") // hub-source writes this condition
		if d := cmp.Diff(expected, got, cmp.AllowUnexported(reported{})); d != "" {
			return fmt.Errorf("%s (-want +got):\n%s", what, d)
		}
		return nil
	}
	harness.Eventually(t, func(ctx context.Context) error {
		live, err := shared.Get(ctx, w.Namespace, w.Name)
		if err != nil {
			return err
		}
		if got := len(live.Status.ResourceStatus.Manifests); got != len(manifests) {
			return fmt.Errorf("%d manifests, want %d", got, len(manifests))
		}
		for i, m := range live.Status.ResourceStatus.Manifests {
			if err := compare(fmt.Sprintf("manifest %d", i), manifests[i], report(m.Conditions)); err != nil {
				return err
			}
		}
		return compare("work", work, report(live.Status.Conditions))
	})
}

var (
	applied       = reported{"Applied", "True", "AppliedManifestComplete", "Apply manifest complete", 1}
	available     = reported{"Available", "True", "ResourceAvailable", "Resource is available", 0}
	absent        = reported{"Available", "False", "ResourceNotAvailable", "Resource is not available", 0}
	incomplete    = reported{"Available", "Unknown", "IncompleteResourceMeta", "Resource meta is incomplete", 0}
	noFeedback    = reported{"StatusFeedbackSynced", "True", "NoStatusFeedbackSynced", "", 0}
	workApplied   = reported{"Applied", "True", "AppliedManifestWorkComplete", "Apply manifest work complete", 1}
	workAvailable = reported{"Available", "True", "ResourcesAvailable", "All resources are available", 1}
)

// workFailed returns Applied of a work. text begins with the reason of the first failed manifest.
func workFailed(text string) reported {
	return reported{"Applied", "False", "AppliedManifestWorkFailed", text, 1}
}

// failed returns Applied of a manifest with the text of an error.
func failed(text string) reported {
	return reported{"Applied", "False", "AppliedManifestFailed", "Failed to apply manifest: " + text, 1}
}

func TestConditions_OfSuccessfulWork(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := shared.Create(t, harness.NewWork(t, cluster, "literal-good", harness.ConfigMapYAML(ns, "one", "x")))
	wantReports(t, w, []reported{workApplied, workAvailable}, []reported{applied, available, noFeedback})
}

func TestConditions_OfFailedWork(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := shared.Create(t, harness.NewWork(t, cluster, "literal-bad",
		harness.ConfigMapYAML(ns, "one", "x"),
		harness.ConfigMapYAML("no-such-namespace", "lost", "x"),
		`{apiVersion: example.org/v1, kind: Undefined, metadata: {name: x, namespace: `+ns+`}}`,
		`{apiVersion: v1, kind: Node, metadata: {name: forbidden-node}}`,
	))
	wantReports(t, w,
		[]reported{
			workFailed(`namespace missing: ConfigMap no-such-namespace/lost: namespaces "no-such-namespace" not found; deliver the namespace with a work, or make it on the cluster: it is tried again then; 3 of 4 manifests failed`),
			{"Available", "False", "ResourcesNotAvailable", `namespace missing: ConfigMap no-such-namespace/lost: namespaces "no-such-namespace" not found; deliver the namespace with a work, or make it on the cluster: it is tried again then; 1 of 4 resources are not available`, 1},
		},
		[]reported{applied, available, noFeedback},
		[]reported{failed(`namespaces "no-such-namespace" not found; deliver the namespace with a work, or make it on the cluster: it is tried again then`), absent},
		[]reported{failed(`the server doesn't have a resource type "Undefined" in example.org/v1; deliver its CustomResourceDefinition with a work, or correct apiVersion and kind`), incomplete},
		[]reported{
			failed(`nodes "forbidden-node" is forbidden: …`),
			{"Available", "Unknown", "FetchingResourceFailed", `Failed to fetch resource: nodes "forbidden-node" is forbidden: …`, 0},
		},
	)
}

func TestConditions_OfUnknownState(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	w := shared.Create(t, harness.NewWork(t, cluster, "literal-unknown",
		harness.ConfigMapYAML(ns, "one", "x"), `{apiVersion: example.org/v1, kind: Undefined, metadata: {name: x, namespace: `+ns+`}}`))
	wantReports(t, w,
		[]reported{
			workFailed(`unknown kind: Undefined ` + ns + `/x: the server doesn't have a resource type "Undefined" in example.org/v1; deliver its CustomResourceDefinition with a work, or correct apiVersion and kind; 1 of 2 manifests failed`),
			{"Available", "Unknown", "ResourcesStatusUnknown", `unknown kind: Undefined ` + ns + `/x: the server doesn't have a resource type "Undefined" in example.org/v1; deliver its CustomResourceDefinition with a work, or correct apiVersion and kind; 1 of 2 resources have unknown status`, 1},
		},
		[]reported{applied, available, noFeedback},
		[]reported{failed(`the server doesn't have a resource type "Undefined" in example.org/v1; deliver its CustomResourceDefinition with a work, or correct apiVersion and kind`), incomplete},
	)
}
