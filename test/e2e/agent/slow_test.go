package agent

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionapi "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// slowWorks is the number of works behind a webhook that needs slowAnswer for each write.
const (
	slowWorks  = 24
	slowAnswer = 2500 * time.Millisecond
)

// slowWebhookChangesNoCondition checks works behind a slow webhook that allows every write. The works wait, and
// none reports a failure.
func slowWebhookChangesNoCondition(s *spoke) {
	s.Kubectl("create", "namespace", "slowly")
	slow := func(i int, generation int64) *workv1.ManifestWork {
		manifest := strings.Replace(configMapIn("slowly", fmt.Sprintf("slowly-%d", i)), `"1"`, fmt.Sprintf(`"%d"`, generation), 1)
		return work(fmt.Sprintf("slowly-%d", i), generation, manifest)
	}
	for i := 0; i < slowWorks; i += 2 {
		s.applied(slow(i, 1))
	}
	var atOnce, most atomic.Int32
	url, ca := allowing(s.T, func() {
		for n := atOnce.Add(1); ; {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		defer atOnce.Add(-1)
		select {
		case <-time.After(slowAnswer):
		case <-s.Context().Done():
		}
	})
	none, fail := admissionv1.SideEffectClassNone, admissionv1.Fail
	hook := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "slowly"}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "slowly.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &url, CABundle: ca}, SideEffects: &none, FailurePolicy: &fail,
		AdmissionReviewVersions: []string{"v1"},
		NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "slowly"}},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}},
	}}}
	api := s.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := api.Create(s.Context(), hook, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Eventually(func() error {
		_, err := s.Kube.CoreV1().ConfigMaps("slowly").Create(s.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && most.Load() == 0 {
			err = errors.New("it is not in force")
		}
		return err
	})
	defer s.source.watch(func(r manifestwork.StatusReport) error {
		if c := meta.FindStatusCondition(r.Status.Conditions, workv1.WorkApplied); c != nil && c.Status != metav1.ConditionTrue {
			return fmt.Errorf("Applied is %s: %s", c.Status, c.Message)
		}
		return nil
	})()
	begun := time.Now()
	var works []*workv1.ManifestWork
	for i := range slowWorks {
		works = append(works, slow(i, 2)) // half of the works exist already
		s.source.publish(works[i], codec.UpdateRequest)
	}
	for _, w := range works {
		s.reports(w.Name, func(r manifestwork.StatusReport) error {
			if c := meta.FindStatusCondition(r.Status.Conditions, workv1.WorkApplied); c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != w.Generation {
				return errors.New("not applied")
			}
			return nil
		})
	}
	took := time.Since(begun)
	s.Logf("%d works with writes of %v were applied after %v, %d writes at once", slowWorks, slowAnswer, took, most.Load())
	if took > slowWorks*slowAnswer { // the time of all writes one after the other
		s.Errorf("%d works with writes of %v were applied after %v", slowWorks, slowAnswer, took)
	}
	if err := api.Delete(s.Context(), "slowly", metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	s.ends(works)
}

// allowing starts a webhook that allows everything after before has returned.
func allowing(t *testing.T, before func()) (url string, ca []byte) {
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionapi.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		before()
		review.Response = &admissionapi.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Errorf("webhook: %v", err)
		}
	}))
	t.Cleanup(hook.Close)
	return hook.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
}
