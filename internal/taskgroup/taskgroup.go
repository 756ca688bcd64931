// Package taskgroup runs the long-lived goroutines of a program. A [Group] runs tasks concurrently. The first
// one that ends cancels the others, and Group returns when all have ended.
package taskgroup

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Task is one part of a program. Run runs until ctx ends and then returns nil or ctx's error. Any other return,
// also nil, ends the whole group.
type Task struct {
	// Name appears in errors: a short noun ("router").
	Name string
	Run  func(ctx context.Context) error
}

// Group runs the tasks until ctx ends or one of them returns. Then it cancels the others and waits for all. It
// returns the error of the task that ended first, wrapped with its name. It returns nil if ctx ended and every
// task stopped cleanly. A task that returns nil before ctx ends is an error too: tasks live as long as the
// program.
func Group(ctx context.Context, tasks ...Task) error {
	parent := ctx
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	// The parent is checked too. A function that waits for it (for example context.AfterFunc that closes a queue)
	// may make a task return before the cancellation reaches the child.
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
