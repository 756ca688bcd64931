package apply

// Held is the result for an object that was read and is left as it is, because
// its manifest is complete. What would be wrong with applying it does not matter.
func (s *Step) Held() Result {
	r := Result{Manifest: s.Manifest, Action: Unchanged, Live: s.Live, Presence: s.Presence, ReadErr: s.ReadErr}
	r.Manifest.Err = nil
	if s.Live != nil {
		r.Known.UID = s.Live.GetUID()
	}
	return r
}
