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

// keyState is what is remembered of one key between reconciliations. Only the reconciliation that
// has the key touches it, except where noted.
type keyState struct {
	// history is that of the cluster in which all this is known.
	history int
	// record is the AppliedManifestWork as last read or written; nil if there is
	// none, or nobody knows.
	record *appliedwork.Record
	// requested: the cluster was asked whether there is one.
	requested bool
	known     map[kubeclient.Ref]remembered
	// permits are what the executor was allowed when it was asked for last.
	permits map[kubeclient.Ref]permit
	// missing are the objects for which the agent lacked a right.
	missing map[kubeclient.Ref]bool
	// status is the status of the work with the id about.
	status workv1.ManifestWorkStatus
	about  string
	// look is when everything is read again, whatever the watches say.
	look time.Time
	// grace is the grace period that runs, if one does.
	grace grace
	// removals counts reconciliations in a row that waited for objects to go.
	removals int
	// lockout is about a record that fails.
	lockout lockout
	// rejections are about writes that the cluster finds wrong in themselves.
	rejections rejections
	// unsent is about requests that wait for others.
	unsent unsent
	// hangs are objects that have to go, and do not.
	hangs hangs

	// applied is the spec that went through the last complete reconciliation, asWanted says
	// that all its objects were as they should be then; guarded by works.mu.
	applied  string
	asWanted bool
	// repairs bounds how fast objects are written again for the same spec;
	// guarded by works.mu, as are looks, which bound how fast they are read for
	// their status, and observes, which says that somebody wants to know that.
	repairs  tokenBucket
	contests contests
	looks    looks
	observes bool
}

// follow forgets what was read of the cluster in another history than this one. What was told of
// the works stays.
func (s *keyState) follow(history int) {
	if s.history == history {
		return
	}
	s.history, s.record, s.known, s.permits = history, nil, map[kubeclient.Ref]remembered{}, nil
	s.look, s.removals, s.rejections = time.Time{}, 0, rejections{}
	clear(s.contests)
	s.applied, s.asWanted = "", false // it is no repair of what others change
}

// previous is what was reported last of a work; nothing if the key was another work's.
func (s *keyState) previous(w *desired.Work) workv1.ManifestWorkStatus {
	if s.about != w.ResourceID {
		return workv1.ManifestWorkStatus{}
	}
	return s.status
}

// setReported notes what is reported of a work.
func (s *keyState) setReported(w *desired.Work, status workv1.ManifestWorkStatus) {
	s.status, s.about = status, w.ResourceID
}

// clearReported forgets that: what is made anew begins anew.
func (s *keyState) clearReported(w *desired.Work) (last workv1.ManifestWorkStatus) {
	if last = s.previous(w); s.about == w.ResourceID {
		s.status, s.about = workv1.ManifestWorkStatus{}, ""
	}
	return last
}

// forgetObjects has all objects read again, and returns what was remembered.
func (s *keyState) forgetObjects() (before map[kubeclient.Ref]remembered) {
	before, s.known = s.known, map[kubeclient.Ref]remembered{}
	return before
}

// removalWait is how long to wait for objects to go, this time.
func (s *keyState) removalWait() time.Duration {
	wait := firstRemovalWait << min(s.removals, 20)
	s.removals++
	return min(wait, lastRemovalWait)
}

// removed: none is waited for any more.
func (s *keyState) removed() { s.removals = 0 }

// noteSpec notes which spec went through a whole reconciliation, "" if none is in force,
// and whether all its objects were as they should be then.
func (s *keyState) noteSpec(applied string, asWanted bool) { s.applied, s.asWanted = applied, asWanted }

// remembered is an object that was as it should be, and its state then.
type remembered struct {
	apply.Known
	signature drift.Signature
	// rejected: it could not be made as it should be; definition is what the
	// definition of its kind was like then.
	rejected   bool
	definition drift.Signature
	refusal    refusal
	// observation is what was found in it. heldFor, if not zero, is the manifest
	// that was not applied to it because it is complete.
	observation observation
	heldFor     [sha256.Size]byte
}
