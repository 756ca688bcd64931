package fair

// Tree holds the items of clients in one [Queue] per client, and serves the clients with a [Scheduler]. So neither a
// client, nor one key of a client, delays the others.
//
// The caller bounds its length. The zero value is empty and ready.
type Tree[C, K, ID comparable, T any] struct {
	scheduler Scheduler[C]
	clients   map[C]*Queue[K, ID, T]
	parked    map[C]bool
	spare     *Queue[K, ID, T] // an empty queue, for the next new client
}

// Push adds an item of a client: see [Queue.Push].
func (t *Tree[C, K, ID, T]) Push(c C, k K, id ID, urgent bool, cost int, what T) { //nolint:revive // the client, and what Queue.Push has
	q := t.clients[c]
	if q == nil {
		if t.clients == nil {
			t.clients = map[C]*Queue[K, ID, T]{}
		}
		if q, t.spare = t.spare, nil; q == nil {
			q = &Queue[K, ID, T]{}
		}
		t.clients[c] = q
		if !t.parked[c] {
			t.scheduler.Join(c)
		}
	}
	q.Push(k, id, urgent, cost, what)
}

// Pop removes the next item. It returns false if there is none, except those of parked clients.
func (t *Tree[C, K, ID, T]) Pop() (c C, what T, ok bool) {
	if c, ok = t.scheduler.Next(0); !ok {
		return c, what, false
	}
	q := t.clients[c]
	_, i, _ := q.next()
	t.scheduler.Charge(c, i.cost)
	t.tidy(c, q)
	return c, i.what, true
}

// Remove removes an item of a client: see [Queue.Remove].
func (t *Tree[C, K, ID, T]) Remove(c C, k K, is func(T) bool) (what T, ok bool) {
	q := t.clients[c]
	if q == nil {
		return what, false
	}
	what, ok = q.Remove(k, is)
	t.tidy(c, q)
	return what, ok
}

// tidy removes the queue of a client if it is empty.
func (t *Tree[C, K, ID, T]) tidy(c C, q *Queue[K, ID, T]) {
	if q.size == 0 {
		delete(t.clients, c)
		t.scheduler.Leave(c)
		t.spare = q
	}
}

// Park excludes a client from Pop until Resume.
func (t *Tree[C, K, ID, T]) Park(c C) {
	if t.parked == nil {
		t.parked = map[C]bool{}
	}
	t.parked[c] = true
	t.scheduler.Leave(c)
}

// Resume includes a parked client again.
func (t *Tree[C, K, ID, T]) Resume(c C) {
	delete(t.parked, c)
	if t.clients[c] != nil {
		t.scheduler.Join(c)
	}
}

// Len returns the number of items of a client, and of those with a key.
func (t *Tree[C, K, ID, T]) Len(c C, k K) (ofClient, ofKey int) {
	q := t.clients[c]
	if q == nil {
		return 0, 0
	}
	return q.Len(), q.LenOf(k)
}
