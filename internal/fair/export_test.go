package fair

// Places is the number of keys that are known.
func (t *Turns[K]) Places() int { return len(t.keys) }
