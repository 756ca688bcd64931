// Package taskgroup owns the long-lived goroutines of a program: a [Group] runs
// tasks side by side, the first one that ends cancels the others, and Run
// returns when all have ended.
package taskgroup

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Task is one part of a program. It runs until ctx ends and then returns nil
// or ctx's error; any other return, nil included, ends the whole group.
type Task struct {
	// Name appears in errors, a short noun ("router").
	Name string
	Run  func(ctx context.Context) error
}

// Group runs the tasks until ctx ends or one of them returns, then cancels the
// others and waits for all. It returns the error of the task that ended first,
// wrapped with its name; nil when ctx ended and every task stopped cleanly. A
// task that returned nil before ctx ended is an error too: tasks live as long
// as the program.
func Group(ctx context.Context, tasks ...Task) error {
	parent := ctx
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	// The parent is asked too: what else waits for it (context.AfterFunc that
	// closes a queue, say) may make a task return before the end of the parent
	// has reached its child.
	stopping := func() bool { return parent.Err() != nil || ctx.Err() != nil }
	var wg sync.WaitGroup
	errs := make([]error, len(tasks))
	var once sync.Once
	first := -1
	for i, t := range tasks {
		wg.Go(func() {
			err := t.Run(ctx)
			switch {
			case err == nil && stopping(), stopping() && errors.Is(err, context.Canceled):
				return
			case err == nil:
				err = errors.New("ended by itself")
			}
			errs[i] = fmt.Errorf("%s: %w", t.Name, err)
			once.Do(func() { first = i })
			cancel(errs[i])
		})
	}
	wg.Wait()
	if first < 0 {
		return nil
	}
	ordered := []error{errs[first]}
	for i, err := range errs {
		if i != first && err != nil {
			ordered = append(ordered, err)
		}
	}
	return errors.Join(ordered...)
}
