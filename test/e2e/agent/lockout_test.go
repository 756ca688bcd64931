package agent

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// refuser is a webhook on AppliedManifestWorks with no service behind it.
func refuser(failurePolicy string) string {
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"refuser"},"webhooks":[{"name":"refuser.example.com",
		"admissionReviewVersions":["v1"],"sideEffects":"None","failurePolicy":%q,"timeoutSeconds":1,"clientConfig":{"service":{"namespace":"default","name":"none"}},
		"rules":[{"apiGroups":["work.open-cluster-management.io"],"apiVersions":["*"],"operations":["*"],"resources":["*/*"]}]}]}`, failurePolicy)
}

// notApplied waits until a manifest reports Applied=False with a reason, and with why in its message.
func (s *spoke) notApplied(work string, manifest int, reason, why string) {
	s.Helper()
	s.reports(work, func(r manifestwork.StatusReport) error {
		if manifest >= len(r.Status.ResourceStatus.Manifests) {
			return errors.New("no such manifest")
		}
		c := meta.FindStatusCondition(r.Status.ResourceStatus.Manifests[manifest].Conditions, workv1.ManifestApplied)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason || !strings.Contains(c.Message, why) || !meta.IsStatusConditionFalse(r.Status.Conditions, workv1.WorkApplied) {
			return fmt.Errorf("want reason %s and %q", reason, why)
		}
		return nil
	})
}

// removesRecordRejectingWebhook applies a work with a webhook that rejects all AppliedManifestWorks of the
// agent. The reports name that work. It is corrected and deleted through the hub.
func removesRecordRejectingWebhook(s *spoke) {
	web := work("bystander", 1, configMap("bystander", "1"))
	s.applied(web)
	for round, way := range []string{"corrected", "deleted"} {
		generation := int64(2*round + 1)
		s.apply(work("refuser", generation, configMap("refuser", "1"), refuser("Fail")))
		s.notApplied("refuser", 1, "AgentWritesRejected", `admission webhook "refuser.example.com"`)
		web = work("bystander", generation+1, configMap("bystander-"+way, "1"))
		s.apply(web)
		s.notApplied("bystander", 0, "AppliedManifestFailed", `comes from work "refuser"`)
		if s.configMap("bystander-"+way) != nil {
			s.Error("an object was made that is on no record")
		}
		if way == "corrected" {
			s.applied(work("refuser", generation+1, configMap("refuser", "1"), refuser("Ignore")))
		} else {
			s.deleted(work("refuser", generation+1, configMap("refuser", "1"), refuser("Fail")))
		}
		s.applied(web)
	}
	s.deleted(web)
}
