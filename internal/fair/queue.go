package fair

import "slices"

// Queue holds items in one queue per key, and serves the keys with a [Scheduler]. Within a key, urgent items
// come first, the others in the order of their push. An urgent item does not overtake items with its own id, or
// with the zero id, which stands for all ids. So the items of one id keep their order, and urgent items of one
// key do not delay another key.
//
// The caller bounds its length. The zero value is empty and ready.
type Queue[K, ID comparable, T any] struct {
	scheduler Scheduler[K]
	lines     map[K]*keyQueue[ID, T]
	parked    map[K]bool
	spare     *keyQueue[ID, T] // an empty queue, for the next new key
	size      int
}

// keyQueue is the queue of one key.
type keyQueue[ID comparable, T any] struct {
	urgent, normal []item[ID, T]
	ids            map[ID]int // number of normal items by id
}

type item[ID comparable, T any] struct {
	id   ID
	cost int
	what T
}

// Push adds an item. cost is the minimum cost of its turn.
func (q *Queue[K, ID, T]) Push(k K, id ID, urgent bool, cost int, what T) {
	l := q.lines[k]
	if l == nil {
		if q.lines == nil {
			q.lines = map[K]*keyQueue[ID, T]{}
		}
		if l, q.spare = q.spare, nil; l == nil {
			l = &keyQueue[ID, T]{ids: map[ID]int{}}
		}
		q.lines[k] = l
		if !q.parked[k] {
			q.scheduler.Join(k)
		}
	}
	q.size++
	var all ID
	if i := (item[ID, T]{id, cost, what}); urgent && l.ids[id] == 0 && l.ids[all] == 0 {
		l.urgent = append(l.urgent, i)
	} else {
		l.normal = append(l.normal, i)
		l.ids[id]++
	}
}

// Prioritize makes the items with an id urgent. It scans the whole queue of the key.
func (q *Queue[K, ID, T]) Prioritize(k K, id ID) {
	l := q.lines[k]
	if l == nil || l.ids[id] == 0 {
		return
	}
	delete(l.ids, id)
	l.normal = slices.DeleteFunc(l.normal, func(i item[ID, T]) bool {
		if i.id == id {
			l.urgent = append(l.urgent, i)
		}
		return i.id == id
	})
}

// Park excludes a key from Pop until Resume.
func (q *Queue[K, ID, T]) Park(k K) {
	if q.parked == nil {
		q.parked = map[K]bool{}
	}
	q.parked[k] = true
	q.scheduler.Leave(k)
}

// Resume includes a parked key again.
func (q *Queue[K, ID, T]) Resume(k K) {
	delete(q.parked, k)
	if q.lines[k] != nil {
		q.scheduler.Join(k)
	}
}

// Pop removes the next item. It returns false if there is none, except those of parked keys.
func (q *Queue[K, ID, T]) Pop() (k K, what T, ok bool) {
	k, i, ok := q.next()
	return k, i.what, ok
}

func (q *Queue[K, ID, T]) next() (k K, i item[ID, T], ok bool) {
	if k, ok = q.scheduler.Next(0); !ok {
		return k, i, false
	}
	l := q.lines[k]
	i = l.pop()
	q.size--
	q.scheduler.Charge(k, i.cost)
	q.tidy(k, l)
	return k, i, true
}

// Remove removes the last item of a key that is not urgent and for which is returns true. It returns false if there
// is none.
func (q *Queue[K, ID, T]) Remove(k K, is func(T) bool) (what T, ok bool) {
	l := q.lines[k]
	if l == nil {
		return what, false
	}
	for n, i := range slices.Backward(l.normal) {
		if is(i.what) {
			l.normal = slices.Delete(l.normal, n, n+1)
			l.forget(i.id)
			q.size--
			q.tidy(k, l)
			return i.what, true
		}
	}
	return what, false
}

// tidy removes the queue of a key if it is empty.
func (q *Queue[K, ID, T]) tidy(k K, l *keyQueue[ID, T]) {
	if len(l.urgent)+len(l.normal) > 0 {
		return
	}
	delete(q.lines, k)
	q.scheduler.Leave(k)
	l.urgent, l.normal = nil, nil // drops long arrays
	q.spare = l
}

// forget counts a normal item with an id that has left.
func (l *keyQueue[ID, T]) forget(id ID) {
	if left := l.ids[id] - 1; left == 0 {
		delete(l.ids, id)
	} else {
		l.ids[id] = left
	}
}

func (l *keyQueue[ID, T]) pop() item[ID, T] {
	if len(l.urgent) > 0 {
		return shift(&l.urgent)
	}
	i := shift(&l.normal)
	l.forget(i.id)
	return i
}

// shift removes the first item of a list that is not empty.
func shift[T any](list *[]T) T {
	var zero T
	first := (*list)[0]
	(*list)[0] = zero
	*list = (*list)[1:]
	return first
}

// Charge adds cost to the turn of an item that was popped.
func (q *Queue[K, ID, T]) Charge(k K, cost int) { q.scheduler.Charge(k, cost) }

// LenOf returns the number of items of a key.
func (q *Queue[K, ID, T]) LenOf(k K) int {
	l := q.lines[k]
	if l == nil {
		return 0
	}
	return len(l.urgent) + len(l.normal)
}

// Len returns the number of items, with those of parked keys.
func (q *Queue[K, ID, T]) Len() int { return q.size }

// Ready reports whether there is an item to pop.
func (q *Queue[K, ID, T]) Ready() bool { return len(q.scheduler.waiting) > 0 }
