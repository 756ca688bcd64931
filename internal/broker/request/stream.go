package request

import (
	"context"
	"time"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

// Stream is a running subscription. It sends in turns, and needs no goroutine between them.
type Stream interface {
	// Turn sends everything that is due. It returns the time of the next turn, unless Wake rings before. An error
	// ends the stream.
	Turn(ctx context.Context) (next time.Time, err error)
	// Wake returns the bell of the stream.
	Wake() *taskgroup.Turns
	// Leave releases what the stream has used. It is called once, after the last turn.
	Leave()
}

// Serve takes the turns of a stream until one fails, and then leaves the stream and calls ended with the error.
// It returns when nothing is due; the later turns have a goroutine of their own. ctx must end at some time.
func Serve(ctx context.Context, s Stream, now func() time.Time, ended func(error)) {
	wake := s.Wake()
	timer := time.AfterFunc(longest, wake.Take)
	unwatch := context.AfterFunc(ctx, wake.Take)
	wake.Start(func() (more bool) {
		next, err := s.Turn(ctx)
		if err == nil {
			timer.Reset(next.Sub(now()))
			return true
		}
		timer.Stop()
		unwatch()
		s.Leave()
		ended(err)
		return false
	})
}

// longest is the time until the timer of a stream fires if its first turn sets no other time.
const longest = time.Hour
