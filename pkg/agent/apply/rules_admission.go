package apply

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var (
	policies = typed[admissionv1.ValidatingAdmissionPolicy]{[]string{"spec"}, func(p *admissionv1.ValidatingAdmissionPolicy) {
		fill(&p.Spec.FailurePolicy, admissionv1.Fail)
		completeMatch(p.Spec.MatchConstraints)
	}}
	policyBindings = typed[admissionv1.ValidatingAdmissionPolicyBinding]{[]string{"spec"}, func(b *admissionv1.ValidatingAdmissionPolicyBinding) {
		completeMatch(b.Spec.MatchResources)
	}}
	validatingWebhooks = typed[admissionv1.ValidatingWebhookConfiguration]{[]string{webhooksField}, func(c *admissionv1.ValidatingWebhookConfiguration) {
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			completeWebhook(&w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector)
			fill(&w.TimeoutSeconds, webhookTimeout)
			completeClient(w.ClientConfig, w.Rules)
		}
	}}
	mutatingWebhooks = typed[admissionv1.MutatingWebhookConfiguration]{[]string{webhooksField}, func(c *admissionv1.MutatingWebhookConfiguration) {
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			completeWebhook(&w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector)
			fill(&w.TimeoutSeconds, webhookTimeout)
			fill(&w.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
			completeClient(w.ClientConfig, w.Rules)
		}
	}}
)

const (
	webhooksField = "webhooks"
	// webhookTimeout is the server's default, in seconds.
	webhookTimeout int32 = 10
	webhookPort    int32 = 443
)

func completeMatch(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	fill(&m.MatchPolicy, admissionv1.Equivalent)
	fill(&m.NamespaceSelector, metav1.LabelSelector{})
	fill(&m.ObjectSelector, metav1.LabelSelector{})
	for i := range m.ResourceRules {
		fill(&m.ResourceRules[i].Scope, admissionv1.AllScopes)
	}
	for i := range m.ExcludeResourceRules {
		fill(&m.ExcludeResourceRules[i].Scope, admissionv1.AllScopes)
	}
}

func completeWebhook(failure **admissionv1.FailurePolicyType, match **admissionv1.MatchPolicyType, selectors ...**metav1.LabelSelector) {
	fill(failure, admissionv1.Fail)
	fill(match, admissionv1.Equivalent)
	for _, s := range selectors {
		fill(s, metav1.LabelSelector{})
	}
}

func completeClient(c admissionv1.WebhookClientConfig, rules []admissionv1.RuleWithOperations) {
	if c.Service != nil {
		fill(&c.Service.Port, webhookPort)
	}
	for i := range rules {
		fill(&rules[i].Scope, admissionv1.AllScopes)
	}
}

func webhookRule[T any](t typed[T]) rule {
	r := t.rule()
	r.carry = carryBundles
	return r
}

// carryBundles keeps the CA bundle of a live webhook if the manifest has none: another program on the cluster
// injected it.
func carryBundles(want, live *unstructured.Unstructured) {
	bundles := map[string]string{}
	eachWebhook(live, func(name string, client map[string]any) {
		if b, _ := client["caBundle"].(string); b != "" {
			bundles[name] = b
		}
	})
	eachWebhook(want, func(name string, client map[string]any) {
		if b, _ := client["caBundle"].(string); b == "" && bundles[name] != "" {
			client["caBundle"] = bundles[name]
		}
	})
}

// eachWebhook calls f with the name and clientConfig of every webhook that has both.
func eachWebhook(o *unstructured.Unstructured, f func(name string, client map[string]any)) {
	hooks, _ := o.Object[webhooksField].([]any)
	for _, h := range hooks {
		hook, _ := h.(map[string]any)
		name, _ := hook["name"].(string)
		if client, ok := hook["clientConfig"].(map[string]any); ok {
			f(name, client)
		}
	}
}
