package e2e

import (
	"context"
	"fmt"
	"testing"
)

// TestBrokersLost: during updates each broker is killed and started again, one after the other. The clients go on
// at the others.
func TestBrokersLost(t *testing.T) {
	f := &shared
	l := f.outage(t)
	before := keys("lost-1", "lost-2", "lost-3")
	l.each(t, before, l.Create)
	l.settled(t)
	l.duringUpdates(t, 2, func() {
		for i, name := range f.Brokers() {
			f.startLater(t, name)
			f.Program(name).Kill()
			number := fmt.Sprint(i + 1)
			l.each(t, keys("lost-"+number), l.Delete)
			l.each(t, keys("lost-created-"+number), l.Create)
			l.goesOn(t)
			f.start(t, name)
		}
	})
	l.settled(t)
}

// TestRollingRestart: all brokers are restarted one after the other during updates.
func TestRollingRestart(t *testing.T) {
	f := &shared
	l := f.outage(t)
	before := keys("rolling")
	l.each(t, before, l.Create)
	l.settled(t)
	l.duringUpdates(t, 2, func() {
		for _, name := range f.Brokers() {
			f.startLater(t, name)
			if err := f.Program(name).Stop(); err != nil {
				t.Fatal(err)
			}
			f.start(t, name)
		}
		l.each(t, before, l.Delete)
		l.each(t, keys("rolling-created"), l.Create)
	})
	l.settled(t)
}

// TestDatabaseRestarted: during updates PostgreSQL is stopped in order, and later killed. Works are created and
// deleted while it is down. The brokers run on.
func TestDatabaseRestarted(t *testing.T) {
	f := &shared
	l := f.outage(t)
	for name, end := range map[string]func() error{"stopped": f.Database().Stop, "killed": f.Database().Kill} {
		t.Run(name, func(t *testing.T) {
			before := keys("database-" + name)
			l.each(t, before, l.Create)
			l.settled(t)
			l.duringUpdates(t, 1, func() {
				t.Cleanup(func() { f.startDatabase(t) })
				if err := end(); err != nil {
					t.Fatal(err)
				}
				l.each(t, before, l.Delete)
				l.each(t, keys("database-created-"+name), l.Create)
				f.startDatabase(t)
				l.goesOn(t)
			})
			l.settled(t)
		})
	}
}

// startDatabase starts the database unless it runs.
func (f *Fleet) startDatabase(t *testing.T) {
	t.Helper()
	if f.Database().Running() {
		return
	}
	if err := f.Database().Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// goesOn waits until further updates are applied.
func (l *load) goesOn(t *testing.T) {
	t.Helper()
	_, base := l.History.Progress()
	l.progress(t, "further updates to be applied", func(_, applied int64) bool { return applied-base >= enough })
}
