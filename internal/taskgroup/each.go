package taskgroup

import "golang.org/x/sync/errgroup"

// Each calls do for 0 to n-1, at most limit at a time, and in order if limit is at most 1. It returns after the
// last one.
func Each(limit, n int, do func(int)) {
	if limit <= 1 || n == 1 {
		for i := range n {
			do(i)
		}
		return
	}
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error { do(i); return nil })
	}
	_ = group.Wait() // do returns no error
}
