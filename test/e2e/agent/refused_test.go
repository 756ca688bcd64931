package agent

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

// lines counts the log lines of the agent, without those of level DEBUG.
type lines struct {
	mu sync.Mutex
	n  int
}

func (l *lines) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte("level=DEBUG")) {
		l.mu.Lock()
		l.n++
		l.mu.Unlock()
	}
	return len(b), nil
}

func (l *lines) take() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.n
	l.n = 0
	return n
}

// refusedWorks is the number of works without a namespace, failedWorks the number of works with one common
// cause. An agent with pending work sends a request at least every restTime.
const (
	refusedWorks = 30
	failedWorks  = 10
	restTime     = 1500 * time.Millisecond
)

func configMapIn(namespace, name string) string {
	return strings.Replace(configMap(name, "1"), `"default"`, `"`+namespace+`"`, 1)
}

// refused publishes n works that fail at first, and waits until each reports that.
func (s *spoke) refused(name string, n int, manifest func(i int) string) (works []*workv1.ManifestWork) {
	s.Helper()
	for i := range n {
		works = append(works, work(fmt.Sprintf("%s-%d", name, i), 1, manifest(i)))
		s.source.publish(works[i], codec.UpdateRequest)
	}
	for _, w := range works {
		s.reports(w.Name, func(r manifestwork.StatusReport) error {
			if c := meta.FindStatusCondition(r.Status.Conditions, workv1.WorkApplied); c == nil || c.Status != metav1.ConditionFalse {
				return errors.New("the work does not report that it is refused")
			}
			return nil
		})
	}
	return works
}

// ends waits until works that failed are applied, and deletes them.
func (s *spoke) ends(works []*workv1.ManifestWork) {
	s.Helper()
	begun := time.Now()
	for _, w := range works {
		s.reports(w.Name, func(r manifestwork.StatusReport) error {
			if !meta.IsStatusConditionTrue(r.Status.Conditions, workv1.WorkApplied) {
				return errors.New("not applied")
			}
			return nil
		})
	}
	s.Logf("%d works applied %v after the cause had ended", len(works), time.Since(begun))
	for _, w := range works {
		s.source.publish(w, codec.DeleteRequest)
	}
	for _, w := range works {
		s.confirmed(w.Name)
	}
}

// rests waits for a restTime without requests and log lines. At most most requests may come before it.
func (s *spoke) rests(most int) {
	s.Helper()
	requested := s.requests.take()
	s.Eventually(func() error {
		s.lines.take()
		select {
		case <-time.After(restTime):
		case <-s.Context().Done():
		}
		more := s.requests.take()
		requested = append(requested, more...)
		if n := s.lines.take(); len(more) > 0 || n > 0 {
			return fmt.Errorf("%d requests and %d lines in %v, the last are %q", len(more), n, restTime, more[max(0, len(more)-8):])
		}
		return nil
	})
	s.Logf("%d requests until it rested", len(requested))
	if len(requested) > most {
		s.Errorf("%d requests until it rested, want at most %d", len(requested), most)
	}
}

// missingNamespacesRest checks works whose namespaces are missing or being deleted. They send no requests until
// that changes, and delay no other work.
func missingNamespacesRest(s *spoke) {
	const ending = "ending"
	s.Kubectl("create", "namespace", ending)
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}
	if _, err := s.Kube.CoreV1().ConfigMaps(ending).Create(s.Context(), held, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Kubectl("delete", "namespace", ending, "--wait=false")
	s.requests.take()
	namespace := func(i int) string {
		if i == 0 {
			return ending
		}
		return fmt.Sprintf("lost-%d", i)
	}
	works := s.refused("lost", refusedWorks, func(i int) string { return configMapIn(namespace(i), "a") })
	begun := time.Now()
	healthy := work("healthy", 1, configMap("healthy", "1"))
	s.applied(healthy)
	s.Logf("a work beside them is applied within %v", time.Since(begun))
	// The first try: a record, an intent, a create and a read; after it one or two more.
	s.rests(12*refusedWorks + 20)
	version := s.record(works[1].Name).ResourceVersion

	if _, err := s.Kube.CoreV1().ConfigMaps(ending).Patch(s.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Eventually(func() error { // the namespace disappears for a moment, and is created again
		_, err := s.Kube.CoreV1().Namespaces().Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ending}}, metav1.CreateOptions{})
		return err
	})
	if now := s.record(works[1].Name).ResourceVersion; now != version {
		s.Errorf("the record was written meanwhile: version %s became %s", version, now)
	}
	for i := 1; i < refusedWorks; i++ {
		if _, err := s.Kube.CoreV1().Namespaces().Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i)}}, metav1.CreateOptions{}); err != nil {
			s.Fatal(err)
		}
	}
	s.ends(append(works, healthy))
}

// deniedWorksRest checks that a manifest which a policy denies is tried again when the policy changes, with any
// status code.
func deniedWorksRest(s *spoke) {
	forbidden := metav1.StatusReasonForbidden
	s.deny("denied", nil) // with 422
	s.deny("forbidden", &forbidden)
	s.requests.take()
	var works []*workv1.ManifestWork
	for _, name := range []string{"denied", "forbidden"} {
		works = append(works, s.refused(name, failedWorks, func(i int) string { return configMap(fmt.Sprintf("%s-%d", name, i), "1") })...)
		s.reports(name+"-0", func(r manifestwork.StatusReport) error {
			c := meta.FindStatusCondition(r.Status.Conditions, workv1.WorkApplied)
			if c == nil || !strings.Contains(c.Message, "denied request: not here") || strings.Contains(c.Message, "does not pass by itself") {
				return fmt.Errorf("the condition of what a policy denies is %v", c)
			}
			return nil
		})
	}
	s.rests(20*len(works) + 20)
	for _, name := range []string{"denied", "forbidden"} {
		if err := s.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(s.Context(), name, metav1.DeleteOptions{}); err != nil {
			s.Fatal(err)
		}
	}
	s.ends(works)
}

// deny makes a policy that denies ConfigMaps whose names begin with its name, and waits until it is in force.
func (s *spoke) deny(name string, reason *metav1.StatusReason) {
	s.Helper()
	fail := admissionv1.Fail
	p := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}}}},
		MatchConditions: []admissionv1.MatchCondition{{Name: "some", Expression: fmt.Sprintf("object.metadata.name.startsWith(%q)", name)}},
		Validations:     []admissionv1.Validation{{Expression: "false", Message: "not here", Reason: reason}},
	}}
	b := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	api := s.Kube.AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicies().Create(s.Context(), p, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(s.Context(), b, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	s.Eventually(func() error {
		if _, err := s.Kube.CoreV1().ConfigMaps("default").Create(s.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, dry); err == nil {
			return errors.New("it is not denied")
		}
		return nil
	})
}

// failingWebhookIsTriedByOne checks many works behind a webhook that does not answer. Only one of them retries;
// all are applied after the repair.
func failingWebhookIsTriedByOne(s *spoke) {
	s.Kubectl("create", "namespace", "hooked")
	url, none, fail := "https://127.0.0.1:1/", admissionv1.SideEffectClassNone, admissionv1.Fail
	hook := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "away"}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "away.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, SideEffects: &none, FailurePolicy: &fail,
		AdmissionReviewVersions: []string{"v1"},
		NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "hooked"}},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}},
	}}}
	api := s.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := api.Create(s.Context(), hook, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Eventually(func() error {
		_, err := s.Kube.CoreV1().ConfigMaps("hooked").Create(s.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("the webhook is not in force")
		}
		return nil
	})
	s.requests.take()
	works := s.refused("hooked", failedWorks, func(i int) string { return configMapIn("hooked", fmt.Sprintf("hooked-%d", i)) })
	select {
	case <-time.After(2 * restTime):
	case <-s.Context().Done():
	}
	tries := slices.DeleteFunc(s.requests.take(), func(r string) bool { return !strings.HasPrefix(r, "POST /api/v1/namespaces/hooked/") })
	s.Logf("%d tries of %d works", len(tries), len(works))
	if most := 4 * failedWorks; len(tries) > most { // one or two tries of each work, and some probes
		s.Errorf("%d tries of %d works, want at most %d", len(tries), len(works), most)
	}
	if err := api.Delete(s.Context(), "away", metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	s.ends(works)
}
