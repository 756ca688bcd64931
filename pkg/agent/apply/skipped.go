package apply

import "github.com/hawser-io/hawser/pkg/agent/workpolicy"

// SkippedResult returns the result for an object that was read and is left unchanged, because its manifest is
// complete. It drops errors about applying the manifest, unless no work may have the object.
func (s *Step) SkippedResult() Result {
	r := Result{Manifest: s.Manifest, Action: Unchanged, Live: s.Live, Presence: s.Presence, ReadErr: s.ReadErr}
	r.Manifest.Err = nil
	if workpolicy.Refused(s.Err) != nil {
		r.Err = s.Err
	}
	if s.Live != nil {
		r.Known.UID = s.Live.GetUID()
	}
	return r
}
