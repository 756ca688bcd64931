package agent

import (
	"encoding/base64"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// A restarted agent reads no object that the watches list as its predecessor left it. The lists have metadata
// only, and one list covers hundreds of objects.
//
// Scenario:
//
//	t1: the agent leaves an object as wanted, at resourceVersion 500, and stops.
//	t2: the cluster is restored to an older state.
//	t3: another client writes the object, at resourceVersion 500 again.
//
// Result: the AppliedManifestWork of t1 was restored too, so it differs unless it is older than the backup. A
// proof therefore has its signature too. In the remaining case the next full look finds the difference.
const (
	// listPatience is how long a work waits for lists after a restart. Objects that are not listed by then are read.
	listPatience = time.Second
	// listPause is the time between two looks at the lists.
	listPause = 25 * time.Millisecond
)

// proof shows that an object is as wanted, without a read: it and the AppliedManifestWork of its work have these
// signatures. The zero value proves nothing.
type proof struct{ record, object drift.Signature }

// proofOf returns the proof of an object that was left in a state. It is empty if more than the metadata of the
// object matters: values that the work requests, fields of other managers, a deletion that is watched.
func proofOf(r *reconciliation, res apply.Result, left drift.Signature) proof {
	_, ending := r.hangs.ending[res.Ref]
	if r.record == nil || res.Err != nil || res.Presence != conditions.Present || observed(res.Config) || ending ||
		res.Known.Incomplete() || res.Known.Contested() {
		return proof{}
	}
	return proof{r.recorder.recordSignature(), left}
}

// proofEnd separates a proof from the text of a KnownState, which does not contain it.
const proofEnd = "\t"

// text encodes a proof, "" if it is empty.
func (p proof) text() string {
	if p.object == "" {
		return ""
	}
	encode := base64.RawStdEncoding.EncodeToString // signatures may be binary
	return encode([]byte(p.record)) + " " + encode([]byte(p.object)) + proofEnd
}

// parseProof decodes an entry of appliedHashes. Former releases wrote no proof.
func parseProof(entry string) (p proof, known apply.KnownState) {
	text, rest, has := strings.Cut(entry, proofEnd)
	if !has {
		known, _ = apply.ParseKnown(entry)
		return proof{}, known
	}
	known, ok := apply.ParseKnown(rest)
	record, object, _ := strings.Cut(text, " ")
	r, err := base64.RawStdEncoding.DecodeString(record)
	o, otherErr := base64.RawStdEncoding.DecodeString(object)
	if !ok || err != nil || otherErr != nil || len(o) == 0 {
		return proof{}, known
	}
	return proof{drift.Signature(r), drift.Signature(o)}, known
}

// refOf is the inverse of objectName. ok is false for another text.
func refOf(name string) (ref kubeclient.Ref, ok bool) {
	parts := strings.Split(name, "/")
	if len(parts) != 5 {
		return ref, false
	}
	gvr := schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}
	return kubeclient.Ref{GroupVersionResource: gvr, Namespace: parts[3], Name: parts[4]}, true
}

// trackProven tracks the objects with a proof, so that the first lists cover them.
func (k *persister) trackProven() {
	k.mu.Lock()
	proven := map[string]map[kubeclient.Ref]drift.Signature{}
	for key, objects := range k.written.objects {
		expected := map[kubeclient.Ref]drift.Signature{}
		for name, entry := range objects {
			p, _ := parseProof(entry)
			if ref, ok := refOf(name); ok && p != (proof{}) {
				expected[ref] = p.object
			}
		}
		if len(expected) > 0 {
			proven[key] = expected
		}
	}
	k.mu.Unlock()
	for key, expected := range proven {
		k.config.Tracker.Track(key, expected)
	}
}

// writtenBefore returns how an earlier process left an object, and the proof. Both are zero if they are unknown.
func (k *persister) writtenBefore(key string, ref kubeclient.Ref) (proof, apply.KnownState) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return parseProof(k.written.objects[key][objectName(ref)])
}

// awaitLists returns when to come back because the objects of a work are not listed yet; 0: there is nothing to
// wait for.
func awaitLists(r *reconciliation, manifests []apply.Manifest) time.Duration {
	if r.adopted {
		return 0
	}
	if r.listsUntil.IsZero() {
		r.listsUntil = r.now.Add(listPatience)
	}
	if !r.now.Before(r.listsUntil) {
		return 0
	}
	for _, m := range manifests {
		if p, _ := r.persister.writtenBefore(r.key, m.Ref); !m.Resolved || p == (proof{}) {
			continue
		}
		if _, seen := r.config.Tracker.LastSeen(m.Ref); !seen {
			return listPause
		}
	}
	return 0
}

// adopt takes over the proven state of an earlier process, once.
func adopt(r *reconciliation, manifests []apply.Manifest) {
	if r.adopted {
		return
	}
	r.adopted = true
	for _, m := range manifests {
		p, known := r.persister.writtenBefore(r.key, m.Ref)
		if !m.Resolved || p == (proof{}) || observed(m.Config) || p.record != r.recorder.recordSignature() {
			continue
		}
		if _, has := r.known[m.Ref]; !has {
			r.known[m.Ref] = remembered{KnownState: known, signature: p.object, adopted: true}
		}
	}
}
