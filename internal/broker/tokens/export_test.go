package tokens

// Known returns the number of known tokens.
func (t *Tokens) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.known)
}
