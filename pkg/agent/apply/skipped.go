package apply

import "github.com/hawser-io/hawser/pkg/agent/workpolicy"

// SkippedResult returns the result for an object that was read and is left unchanged, because its manifest is
// complete. Errors of applying it do not matter, except that no work may have it.
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
