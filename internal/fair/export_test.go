package fair

// Keys is the number of keys that are known.
func (t *Scheduler[K]) Keys() int { return len(t.keys) }
