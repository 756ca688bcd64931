package apply

import "github.com/hawser-io/hawser/pkg/agent/workpolicy"

// SkippedResult is the result for an object that was read and is left as it is, because
// its manifest is complete. What would be wrong with applying it does not matter,
// except that no work may have it.
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
