package agent

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// executorsAtRest checks that the agent sends no access reviews while roles do not change. After a change of
// roles it reviews the executor again.
func executorsAtRest(s *spoke) {
	s.Kubectl("create", "role", "deployer", "--verb=get,create,update,patch,delete", "--resource=configmaps")
	s.Kubectl("create", "rolebinding", "deployer", "--role=deployer", "--serviceaccount=default:deployer")
	w := work("executor", 1, configMap("executor", "1"))
	w.Spec.Executor = &workv1.ManifestWorkExecutor{Subject: workv1.ManifestWorkExecutorSubject{
		Type: workv1.ExecutorSubjectTypeServiceAccount, ServiceAccount: &workv1.ManifestWorkSubjectServiceAccount{Namespace: "default", Name: "deployer"},
	}}
	s.applied(w)
	reviews := func() (n int) {
		for _, r := range s.requests.take() {
			if strings.HasSuffix(r, "/subjectaccessreviews") {
				n++
			}
		}
		return n
	}
	s.Eventually(func() error { // the first watch of the roles causes one more review
		reviews()
		select {
		case <-time.After(4 * time.Second):
		case <-s.Context().Done():
		}
		if n := reviews(); n > 0 {
			return fmt.Errorf("%d reviews without a change", n)
		}
		return nil
	})
	s.Kubectl("delete", "rolebinding", "deployer")
	s.reports("executor", func(r manifestwork.StatusReport) error {
		const want = "Failed to apply manifest: not allowed to apply the resource  configmaps, default executor, will try again in 1m0s"
		if c := meta.FindStatusCondition(r.Status.ResourceStatus.Manifests[0].Conditions, "Applied"); c == nil || c.Message != want {
			return fmt.Errorf("got %+v", c)
		}
		return nil
	})
	if n := reviews(); n != 5 {
		s.Errorf("%d reviews for a change, want one for each verb", n)
	}
	if s.configMap("executor") == nil {
		s.Error("applied objects must stay")
	}
	s.deleted(w)
	s.Kubectl("delete", "role", "deployer")
}
