package agent

import (
	"crypto/sha256"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/desired"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// keyState is the state of one key between reconciliations. Only the reconciliation of the key uses it, except
// where noted.
type keyState struct {
	// history is the history of the cluster in which this state was read.
	history int
	// record is the AppliedManifestWork as last read or written; nil if there is none, or it is unknown.
	record *appliedwork.Record
	// requested: the cluster was asked whether a record exists.
	requested bool
	known     map[kubeclient.Ref]remembered
	// permits has the latest permissions of the executor.
	permits map[kubeclient.Ref]permit
	// listsUntil is how long the first reconciliation waits for lists. adopted: the state of an earlier process was
	// taken over, or is of another history; see adopt.
	listsUntil time.Time
	adopted    bool
	// missing has the objects for which the agent lacked a right.
	missing map[kubeclient.Ref]bool
	// status is the status of the work with the id in about.
	status workv1.ManifestWorkStatus
	about  string
	// look is when everything is read again, even if no watch shows a change.
	look time.Time
	// grace is the running grace period, if there is one.
	grace grace
	// removals counts consecutive reconciliations that waited for the removal of objects.
	removals int
	// lockout is the state of a failing record.
	lockout lockout
	// rejections is the retry state of writes that the cluster rejects as invalid.
	rejections rejections
	// unsent is the state of requests that wait for others.
	unsent unsent
	// hangs has the objects whose removal the work waits for.
	hangs hangs

	// applied is the spec of the last complete reconciliation. asWanted: all its objects were as wanted then.
	// Guarded by works.mu.
	applied  string
	asWanted bool
	// repairs bounds the repairs for the same spec. looks bounds the reads for status. observes: a work requests
	// status values. All are guarded by works.mu.
	repairs  tokenBucket
	contests contests
	looks    looks
	observes bool
}

// follow drops the state that was read in another history of the cluster. The reported status stays.
func (s *keyState) follow(history int) {
	if s.history == history {
		return
	}
	s.history, s.record, s.known, s.permits = history, nil, map[kubeclient.Ref]remembered{}, nil
	s.look, s.removals, s.rejections = time.Time{}, 0, rejections{}
	clear(s.contests)
	s.adopted = true
	s.applied, s.asWanted = "", false // the next write is no repair of a change by others
}

// previous returns the last status of a work; empty if the key was about another work.
func (s *keyState) previous(w *desired.Work) workv1.ManifestWorkStatus {
	if s.about != w.ResourceID {
		return workv1.ManifestWorkStatus{}
	}
	return s.status
}

// setReported records the reported status of a work.
func (s *keyState) setReported(w *desired.Work, status workv1.ManifestWorkStatus) {
	s.status, s.about = status, w.ResourceID
}

// clearReported drops the status of a work, because its objects are created again. It returns the dropped
// status.
func (s *keyState) clearReported(w *desired.Work) (last workv1.ManifestWorkStatus) {
	if last = s.previous(w); s.about == w.ResourceID {
		s.status, s.about = workv1.ManifestWorkStatus{}, ""
	}
	return last
}

// forgetObjects makes the next reconciliation read all objects. It returns the remembered state.
func (s *keyState) forgetObjects() (before map[kubeclient.Ref]remembered) {
	before, s.known = s.known, map[kubeclient.Ref]remembered{}
	return before
}

// removalWait returns the wait for the removal of objects and counts it.
func (s *keyState) removalWait() time.Duration {
	wait := firstRemovalWait << min(s.removals, 20)
	s.removals++
	return min(wait, lastRemovalWait)
}

// removed resets removalWait: no object is waited for.
func (s *keyState) removed() { s.removals = 0 }

// noteSpec records the spec of a complete reconciliation, "" if none is in force, and whether all its objects
// were as wanted.
func (s *keyState) noteSpec(applied string, asWanted bool) { s.applied, s.asWanted = applied, asWanted }

// remembered is an object that was as wanted, and its state then.
type remembered struct {
	apply.KnownState
	signature drift.Signature
	// proof is for the next process. adopted: the state is that of an earlier process, so no full look is needed.
	proof   proof
	adopted bool
	// rejected: its write was rejected; definition is the state of its kind's definition then.
	rejected   bool
	definition drift.Signature
	refusal    refusal
	// observation has its values. heldFor, if not zero, is the hash of the manifest that was not applied because it
	// is complete.
	observation observation
	heldFor     [sha256.Size]byte
}
