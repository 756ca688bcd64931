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

// firstRejectedWait is the wait before a write that the cluster finds wrong in
// itself is tried again; it doubles up to lookAgain. What it takes is usually a
// change of the work, of the object or of the definition of its kind, which are
// noticed; but some checks depend on other things.
//
// A write that it accepted without all fields is tried again in the same way. If it said nothing
// about them, the waits begin as if there had been quietTries before, at about a minute: then
// something on the cluster removes them.
const (
	firstRejectedWait = 100 * time.Millisecond
	quietTries        = 9
)

// rejections say when rejected writes of a key are tried again; without any,
// tries is 0.
type rejections struct {
	tries int
	next  time.Time
	// awaited are the definitions that would make unknown kinds known, as they
	// were after the last reconciliation.
	awaited map[kubeclient.Ref]drift.Signature
}

// recall returns what is known of an object, without a rejection that is to be
// put to the test.
func (r *reconciliation) recall(ref kubeclient.Ref) apply.Known {
	k, has := r.known[ref]
	if !has {
		return r.persister.writtenBefore(r.key, ref).Retry()
	}
	switch { // about fields of other managers
	case r.recreate:
		k.Known = k.Forget()
	case r.full:
		k.Known = k.Forgive()
	}
	switch {
	case !r.due(ref, k):
		return k.Known
	case redefined(r.config.Tracker, ref, k.definition):
		r.rejections.tries = 0 // the new definition may need a moment to count
	case r.ended(k.refusal):
		r.rejections.tries = min(r.rejections.tries, k.refusal.tries())
	}
	return k.Retry()
}

// due reports whether the write of an object is to be tried again, because it was
// rejected, or not all of it was kept.
func (r *reconciliation) due(ref kubeclient.Ref, k remembered) bool {
	return k.rejected && (r.full || !r.now.Before(r.rejections.next) || redefined(r.config.Tracker, ref, k.definition) || r.ended(k.refusal))
}

// redefined reports whether the definition of the object's kind is not as it
// was.
func redefined(t Tracker, ref kubeclient.Ref, was drift.Signature) bool {
	definition, ok := definitionOf(ref)
	if !ok {
		return false
	}
	seen, known := t.Seen(definition)
	return known && !seen.Is(was)
}

// redefines reports whether a definition was changed of which the work has objects. Then everything is
// read again soon: the server shows these objects without the fields that left the schema, and neither
// their resource versions nor a watch tell it.
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

// definitionOf names the definition that an object's kind has if it is not built
// into the server.
func definitionOf(ref kubeclient.Ref) (definition kubeclient.Ref, ok bool) {
	return kubeclient.Ref{
		GroupVersionResource: apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"),
		Name:                 ref.Resource + "." + ref.Group,
	}, strings.Contains(ref.Group, ".")
}

// noteRejected returns when to try again what the cluster rejected, or what it
// may be about to know, 0 if there is nothing of that. It comes before
// settledWith.
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

// coming reports whether there is a definition for the unknown kind of a
// manifest: it takes a moment from there until the cluster serves the kind.
func (r *reconciliation) coming(m apply.Manifest) bool {
	definition, ok := awaited(m)
	if !ok {
		return false
	}
	seen, known := r.config.Tracker.Seen(definition)
	if !known || seen.Is(drift.Absent) {
		return false
	}
	if !seen.Is(r.rejections.awaited[definition]) {
		r.rejections.tries = 0
	}
	return true
}

// awaited names the definition that would make the unknown kind of a manifest
// known, if its plural is the usual one.
func awaited(m apply.Manifest) (definition kubeclient.Ref, ok bool) {
	var unknown *kubeclient.NoKindError
	if !errors.As(m.Err, &unknown) {
		return definition, false
	}
	plural, _ := meta.UnsafeGuessKindToResource(unknown.Kind)
	return definitionOf(kubeclient.Ref{GroupVersionResource: plural})
}

// awaitKind adds the definition of an unknown kind to what is expected, as it is
// now: whoever called knows that the kind is still unknown.
func awaitKind(t Tracker, m apply.Manifest, expected map[kubeclient.Ref]drift.Signature) {
	definition, ok := awaited(m)
	if !ok {
		return
	}
	s := drift.Unknown
	if seen, known := t.Seen(definition); known {
		s = seen.Exact
	}
	watch(definition, s, expected)
}

// rememberRejected keeps that a write was rejected, and what the definition of
// the object's kind was like; expected gets that.
func (r *reconciliation) rememberRejected(res apply.Result, before remembered, expected map[kubeclient.Ref]drift.Signature) {
	k := remembered{Known: res.Known, signature: expected[res.Ref], rejected: true, definition: drift.Unknown}
	k.refusal = r.noteRefused(res.Err, before.refusal, expected)
	if definition, ok := definitionOf(res.Ref); ok {
		if seen, known := r.config.Tracker.Seen(definition); known {
			k.definition = seen.Exact
		}
		watch(definition, k.definition, expected)
	}
	r.known[res.Ref] = k
}

// watch adds what is expected of a definition, unless it is an object of the
// work itself.
func watch(definition kubeclient.Ref, s drift.Signature, expected map[kubeclient.Ref]drift.Signature) {
	if _, has := expected[definition]; !has {
		expected[definition] = s
	}
}
