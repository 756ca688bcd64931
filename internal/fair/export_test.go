package fair

// Keys returns the number of known keys.
func (t *Scheduler[K]) Keys() int { return len(t.keys) }
