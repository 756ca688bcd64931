package session_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/pkg/transport"
)

// TestSession_RetriesChangedCredentialsAtOnce: a session that waits after a rejection or another failure dials at
// once when a file has changed. It then starts again with the shortest wait.
func TestSession_RetriesChangedCredentialsAtOnce(t *testing.T) {
	for name, err := range map[string]error{
		"refused": refused,
		"delayed": &transport.Error{Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: 9 * time.Minute, Message: "later"},
	} {
		t.Run(name, func(t *testing.T) {
			good := false // the broker accepts the credentials; the channel synchronizes the access
			b := &broker{refuse: func(int) error {
				if good {
					return nil
				}
				return err
			}}
			simulate(t, b, &diary{}, func(w *world) {
				w.after(time.Second)
				w.changed <- struct{}{} // the changed file is invalid, too
				synctest.Wait()
				w.wantConnected(false)
				if n := len(b.subscriptions()); n != 2 {
					w.t.Errorf("%d attempts after a change", n)
				}
				w.after(time.Second)
				good = true
				w.changed <- struct{}{}
				synctest.Wait()
				w.wantConnected(true)
			})
		})
	}
}

// TestSession_AChangeResetsTheBackOff: after a change, the waits are as short as after the first failure.
func TestSession_AChangeResetsTheBackOff(t *testing.T) {
	b := &broker{refuse: func(int) error { return lost }}
	simulate(t, b, &diary{}, func(w *world) {
		w.after(time.Minute)
		before := len(b.subscriptions())
		w.changed <- struct{}{}
		synctest.Wait()
		w.after(250 * time.Millisecond)
		if n := len(b.subscriptions()) - before; n != 2 {
			w.t.Errorf("%d attempts a quarter of a second after the change", n)
		}
	})
}

// TestSession_AChangeLeavesAConnectionAlone: a change neither ends a connection nor shortens the wait after a
// much later loss. Otherwise 1000 agents with renewed certificates would all reconnect at once.
func TestSession_AChangeLeavesAConnectionAlone(t *testing.T) {
	simulate(t, &broker{}, &diary{}, func(w *world) {
		w.changed <- struct{}{}
		w.after(time.Hour)
		w.wantConnected(true)
		w.session.End("s1")
		synctest.Wait()
		w.wantConnected(false)
		w.after(250 * time.Millisecond)
		w.wantConnected(true)
	})
}

// TestSession_AChangeBeforeARefusalCounts: the change may remove the cause of the refusal, so the session
// retries.
func TestSession_AChangeBeforeARefusalCounts(t *testing.T) {
	b := &broker{serve: func(ctx context.Context, n int, _ transport.Stream) error {
		if n == 1 {
			<-time.After(time.Minute)
			return refused
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	simulate(t, b, &diary{}, func(w *world) {
		w.changed <- struct{}{}
		w.after(time.Minute)
		w.wantConnected(true)
		if n := len(b.subscriptions()); n != 2 {
			w.t.Errorf("%d subscriptions", n)
		}
	})
}
