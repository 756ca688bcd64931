package fair

// Heap is the order of items for package container/heap. The items know their positions.
type Heap[T HeapItem[T]] []T

// HeapItem is an item of a [Heap].
type HeapItem[T any] interface {
	// Before reports whether the item leaves the heap before another one.
	Before(T) bool
	// Moved sets the index of the item in the heap; Outside: it is not in the heap.
	Moved(to int)
}

// Outside is the index of an item that is not in a heap.
const Outside = -1

// Len implements [heap.Interface].
func (l Heap[T]) Len() int { return len(l) }

// Less implements [heap.Interface].
func (l Heap[T]) Less(i, j int) bool { return l[i].Before(l[j]) }

// Swap implements [heap.Interface].
func (l Heap[T]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].Moved(i)
	l[j].Moved(j)
}

// Push implements [heap.Interface].
func (l *Heap[T]) Push(x any) {
	last := x.(T) //nolint:forcetypeassert // the caller of heap.Push has only such items
	last.Moved(len(*l))
	*l = append(*l, last)
}

// Pop implements [heap.Interface].
func (l *Heap[T]) Pop() any {
	var zero T
	n := len(*l) - 1
	last := (*l)[n]
	(*l)[n] = zero
	*l = (*l)[:n]
	last.Moved(Outside)
	return last
}
