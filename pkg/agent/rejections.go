package agent

import (
	"errors"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// firstRejectedWait is the first retry wait of a write that the cluster rejects as invalid. It doubles up to
// lookAgain. The cause usually ends with a change of the work, of the object or of the definition of its kind.
// The agent notices these changes. The retries cover checks that depend on other objects.
//
// A write that was accepted without all its fields is retried in the same way. Without a server warning about
// these fields, another program on the cluster removes them. The waits then begin after quietTries, at about a
// minute.
const (
	firstRejectedWait = 100 * time.Millisecond
	quietTries        = 9
)

// rejections has the retry state of rejected writes of a key. tries is 0 if there are none.
type rejections struct {
	tries int
	next  time.Time
	// awaited has the state, after the last reconciliation, of the definitions that would make unknown kinds known.
	awaited map[kubeclient.Ref]drift.Signature
}

// recall returns the remembered state of an object. It drops a rejection that is to be retried.
func (r *reconciliation) recall(ref kubeclient.Ref) apply.KnownState {
	k, has := r.known[ref]
	if !has {
		_, before := r.persister.writtenBefore(r.key, ref)
		return before.Retry()
	}
	switch { // fields of other managers are tried again
	case r.recreate:
		k.KnownState = k.Forget()
	case r.full:
		k.KnownState = k.Forgive()
	}
	switch {
	case !r.due(ref, k):
		return k.KnownState
	case redefined(r.config.Tracker, ref, k.definition):
		r.rejections.tries = 0 // the new definition may take effect after a moment
	case r.ended(k.refusal):
		r.rejections.tries = min(r.rejections.tries, k.refusal.tries())
	}
	return k.Retry()
}

// due reports whether the write of an object must be retried, because it was rejected or not all fields were
// kept.
func (r *reconciliation) due(ref kubeclient.Ref, k remembered) bool {
	return k.rejected && (r.full || !r.now.Before(r.rejections.next) || redefined(r.config.Tracker, ref, k.definition) || r.ended(k.refusal))
}

// redefined reports whether the definition of the object's kind has changed.
func redefined(t Tracker, ref kubeclient.Ref, was drift.Signature) bool {
	definition, ok := definitionOf(ref)
	if !ok {
		return false
	}
	seen, known := t.LastSeen(definition)
	return known && !seen.Is(was)
}

// redefines reports whether the work changed a definition and has objects of that kind. Then everything is read
// again soon. The server returns these objects without the removed fields, but neither their resourceVersion nor
// a watch shows it.
func redefines(manifests []apply.Manifest, results []apply.Result) bool {
	changed := map[kubeclient.Ref]bool{}
	for _, res := range results {
		changed[res.Ref] = res.Action == apply.Update && res.Err == nil
	}
	return slices.ContainsFunc(manifests, func(m apply.Manifest) bool {
		definition, ok := definitionOf(m.Ref)
		return ok && changed[definition]
	})
}

// definitionOf returns the CustomResourceDefinition of an object's kind. ok is false for built-in kinds.
func definitionOf(ref kubeclient.Ref) (definition kubeclient.Ref, ok bool) {
	return kubeclient.Ref{
		GroupVersionResource: apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"),
		Name:                 ref.Resource + "." + ref.Group,
	}, strings.Contains(ref.Group, ".")
}

// noteRejected returns when to retry rejected writes, or writes of kinds that the cluster is about to serve; 0
// if there are none.
func (r *reconciliation) noteRejected(results []apply.Result) time.Duration {
	rejected, muted, tried := false, true, !r.now.Before(r.rejections.next)
	wait, last := lookAgain, lookAgain
	for _, res := range results {
		switch {
		case apply.Rejected(res.Err), res.Known.Incomplete():
			rejected, muted = true, muted && res.Err == nil
			tried = tried || writes(res.Action)
			first, longest := r.patience(res.Err)
			wait, last = min(wait, first), min(last, longest)
		case r.coming(res.Manifest):
			rejected, muted, tried, wait = true, false, true, firstRejectedWait
		}
	}
	if !rejected || r.recreate {
		r.rejections.tries = 0
	}
	if !rejected {
		return 0
	}
	if muted {
		r.rejections.tries = max(r.rejections.tries, quietTries)
	}
	if tried || r.rejections.tries == 0 {
		r.rejections.next = r.now.Add(min(last, wait<<min(r.rejections.tries, 20)))
		r.rejections.tries++
	}
	return max(time.Millisecond, r.rejections.next.Sub(r.now))
}

// coming reports whether the unknown kind of a manifest has a definition. The cluster serves the kind a moment
// after that.
func (r *reconciliation) coming(m apply.Manifest) bool {
	definition, ok := awaited(m)
	if !ok {
		return false
	}
	seen, known := r.config.Tracker.LastSeen(definition)
	if !known || seen.Is(drift.Absent) {
		return false
	}
	if !seen.Is(r.rejections.awaited[definition]) {
		r.rejections.tries = 0
	}
	return true
}

// awaited returns the definition that would make the unknown kind of a manifest known, if its plural is
// regular.
func awaited(m apply.Manifest) (definition kubeclient.Ref, ok bool) {
	var unknown *kubeclient.NoKindError
	if !errors.As(m.Err, &unknown) {
		return definition, false
	}
	plural, _ := meta.UnsafeGuessKindToResource(unknown.Kind)
	return definitionOf(kubeclient.Ref{GroupVersionResource: plural})
}

// awaitKind adds the current state of the definition of an unknown kind to the expected states. The caller
// knows that the kind is still unknown.
func awaitKind(t Tracker, m apply.Manifest, expected map[kubeclient.Ref]drift.Signature) {
	definition, ok := awaited(m)
	if !ok {
		return
	}
	s := drift.Unknown
	if seen, known := t.LastSeen(definition); known {
		s = seen.Exact
	}
	watch(definition, s, expected)
}

// rememberRejected remembers a rejected write and the state of the definition of the object's kind, and adds
// that state to expected.
func (r *reconciliation) rememberRejected(res apply.Result, before remembered, expected map[kubeclient.Ref]drift.Signature) {
	k := remembered{KnownState: res.Known, signature: expected[res.Ref], rejected: true, definition: drift.Unknown}
	k.refusal = r.noteRefused(res.Err, before.refusal, expected)
	if definition, ok := definitionOf(res.Ref); ok {
		if seen, known := r.config.Tracker.LastSeen(definition); known {
			k.definition = seen.Exact
		}
		watch(definition, k.definition, expected)
	}
	r.known[res.Ref] = k
}

// watch adds the expected state of a definition, unless it is an object of the work itself.
func watch(definition kubeclient.Ref, s drift.Signature, expected map[kubeclient.Ref]drift.Signature) {
	if _, has := expected[definition]; !has {
		expected[definition] = s
	}
}
