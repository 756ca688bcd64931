package tokens

// Known is how many tokens are known.
func (t *Tokens) Known() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.known)
}
