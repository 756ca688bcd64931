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

// A write that the cluster refuses because of something else, a namespace, a quota, a policy,
// is tried again when that changes, if a watch shows it, and after waits that begin at
// firstRefusedWait and double: up to lookAgain where a watch shows the cause, otherwise up to
// lastRefusedWait.
const (
	firstRefusedWait = time.Second
	lastRefusedWait  = lastRetry
)

// refusal is what is remembered of a refused write.
type refusal struct {
	apply.Refusal
	refused bool
	// namespace is what that of the cause was like. policies counts the changes of policies
	// before; early says that the cluster may not have known of the last one.
	namespace drift.Signature
	policies  uint64
	early     bool
}

// policies are the resources by which admission denies writes.
var policies = []schema.GroupVersionResource{
	admissionv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"),
	admissionv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"),
	admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"),
	admissionv1.SchemeGroupVersion.WithResource("validatingadmissionpolicybindings"),
}

// PoliciesChanged is told that policies changed, or may have. It returns keys for which
// Reconcile is due, and after what time, as RolesChanged does.
func (c *Core) PoliciesChanged() (keys []string, after time.Duration) {
	return c.policies.change(c.config.Now())
}

// awaitPolicies sees to it that a change of policies is noticed that may end a refusal. It returns
// when to look again because there was one, 0 if there was none.
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
		r.config.Policies.Need()
	}
	return r.policies.lookDue(r.config.Now())
}

func namespaceRef(name string) kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("namespaces"), Name: name}
}

// ended reports whether something changed that may end a refusal.
func (r *reconciliation) ended(f refusal) bool {
	switch {
	case !f.refused:
		return false
	case f.Namespace != "":
		seen, known := r.config.Tracker.Seen(namespaceRef(f.Namespace))
		return known && !seen.Is(f.namespace)
	}
	changes, _ := r.policies.present(r.now)
	return f.early || changes != f.policies
}

// tries returns from which try the waits go on after something changed. Policies may change all
// the time for other reasons.
func (f refusal) tries() int {
	if f.Namespace != "" {
		return 0
	}
	return 5
}

// noteRefused returns what to remember of a refused write, and adds what is expected of its
// namespace. before is what was remembered.
//
//	t1  A write is refused because its namespace is missing.
//	t2  The namespace is made. A watch shows it, and no work waits for it.
//	t3  The work waits for it. No watch shows a namespace that does not change.
//
// Therefore the first refusal says nothing about the namespace, and the write is tried again
// soon. When that is refused too, and the namespace was waited for all the time, it is absent.
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
	if seen, known := r.config.Tracker.Seen(ref); known {
		f.namespace = seen.Exact
	} else if f.Missing && before.Refusal == f.Refusal {
		f.namespace = drift.Absent
	}
	watch(ref, f.namespace, expected)
	return f
}

// watchEnd adds the namespace whose change would end a refusal to those objects that are expected.
func (f refusal) watchEnd(expected map[kubeclient.Ref]drift.Signature) {
	if f.Namespace != "" {
		watch(namespaceRef(f.Namespace), f.namespace, expected)
	}
}

// patience returns the first and the longest wait before a rejected write is tried again.
func (r *reconciliation) patience(err error) (first, last time.Duration) {
	f, refused := apply.Refused(err)
	switch {
	case !refused:
		return firstRejectedWait, lookAgain
	case f.Namespace == "":
		return firstRefusedWait, lastRefusedWait
	}
	seen, known := r.config.Tracker.Seen(namespaceRef(f.Namespace))
	switch {
	case !known:
		return firstRefusedWait, lastRefusedWait
	case f.Missing && seen.Is(drift.Absent):
		return lookAgain, lookAgain // the watch shows when there is one
	}
	return firstRefusedWait, lookAgain
}
