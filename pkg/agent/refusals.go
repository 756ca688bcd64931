package agent

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// These are the retry waits of a write that the cluster refuses because of a namespace, a quota or a policy. It
// is retried when a watch shows a change of the cause. It is also retried after waits that begin at
// firstRefusedWait and double. Their limit is lookAgain if a watch shows the cause, else lastRefusedWait.
const (
	firstRefusedWait = time.Second
	lastRefusedWait  = lastRetry
)

// refusal is the remembered state of a refused write.
type refusal struct {
	apply.Refusal
	refused bool
	// namespace is the state of the namespace that caused the refusal. policies is the number of policy changes
	// before it. early: the cluster may not have applied the last change.
	namespace drift.Signature
	policies  uint64
	early     bool
}

// policies are the resources of admission policies.
var policies = []schema.GroupVersionResource{
	admissionv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"),
	admissionv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"),
	admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"),
	admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings"),
}

// PoliciesChanged reports that policies changed, or may have changed. It returns the keys for which Reconcile
// is due and the wait, like RolesChanged.
func (c *Core) PoliciesChanged() (keys []string, after time.Duration) {
	return c.policies.change(c.config.Now())
}

// awaitPolicies watches policies whose change may end a refusal. It returns when to reconcile again because
// they changed, 0 if they did not.
func (r *reconciliation) awaitPolicies(results []apply.Result) time.Duration {
	n := 0
	for _, res := range results {
		if f, refused := apply.Refused(res.Err); refused && f.Namespace == "" {
			n++
		}
	}
	if r.policies.wait(r.key, n); n == 0 {
		return 0
	}
	if r.config.Policies != nil {
		r.config.Policies.StartWatch()
	}
	return r.policies.lookDue(r.config.Now())
}

func namespaceRef(name string) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("namespaces"), Name: name}
}

// ended reports whether a change may have ended a refusal.
func (r *reconciliation) ended(f refusal) bool {
	switch {
	case !f.refused:
		return false
	case f.Namespace != "":
		seen, known := r.config.Tracker.LastSeen(namespaceRef(f.Namespace))
		return known && !seen.Is(f.namespace)
	}
	changes, _ := r.policies.present(r.now)
	return f.early || changes != f.policies
}

// tries returns the number of tries that the back-off restarts from after a change. Policies may change for
// other reasons, so they do not reset it.
func (f refusal) tries() int {
	if f.Namespace != "" {
		return 0
	}
	return 5
}

// noteRefused returns the state to remember of a refused write, and adds the expected state of its namespace.
// before is the state remembered so far.
//
// Scenario:
//
//	t1: a write is refused because its namespace is missing.
//	t2: the namespace is created; the watch shows it, but no work waits for it yet.
//	t3: the work waits for the namespace; the watch shows no further change.
//
// Result: the first refusal does not prove that the namespace is absent, and the write is retried soon. If it is
// refused again while the namespace was tracked, the namespace is absent.
func (r *reconciliation) noteRefused(err error, before refusal, expected map[kubeclient.Ref]drift.Signature) (f refusal) {
	if f.Refusal, f.refused = apply.Refused(err); !f.refused {
		return f
	}
	if f.Namespace == "" {
		f.policies, f.early = r.policies.present(r.now)
		return f
	}
	ref := namespaceRef(f.Namespace)
	f.namespace = drift.Unknown
	if seen, known := r.config.Tracker.LastSeen(ref); known {
		f.namespace = seen.Exact
	} else if f.Missing && before.Refusal == f.Refusal {
		f.namespace = drift.Absent
	}
	watch(ref, f.namespace, expected)
	return f
}

// watchEnd adds the namespace whose change would end a refusal to the expected states.
func (f refusal) watchEnd(expected map[kubeclient.Ref]drift.Signature) {
	if f.Namespace != "" {
		watch(namespaceRef(f.Namespace), f.namespace, expected)
	}
}

// patience returns the first and the longest wait before a rejected write is retried.
func (r *reconciliation) patience(err error) (first, last time.Duration) {
	f, refused := apply.Refused(err)
	switch {
	case !refused:
		return firstRejectedWait, lookAgain
	case f.Namespace == "":
		return firstRefusedWait, lastRefusedWait
	}
	seen, known := r.config.Tracker.LastSeen(namespaceRef(f.Namespace))
	switch {
	case !known:
		return firstRefusedWait, lastRefusedWait
	case f.Missing && seen.Is(drift.Absent):
		return lookAgain, lookAgain // the watch shows a change
	}
	return firstRefusedWait, lookAgain
}
