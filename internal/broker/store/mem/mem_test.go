package mem_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/mem"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter returns a function that returns the ids id1, id2 and so on.
func counter() func() string {
	n := 0
	return func() string { n++; return fmt.Sprintf("id%d", n) }
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) storetest.Site { return site(counter(), nil) })
}

// site returns a site that keeps the store as a backup between openings.
func site(newID func() string, from *mem.Backup) storetest.Site {
	var last *mem.Store
	left := func() *mem.Backup {
		if last == nil {
			return from
		}
		return last.Backup()
	}
	return storetest.Site{
		Open: func() (store.Store, error) {
			last = mem.Open(mem.Options{NewID: newID, From: left()})
			return last, nil
		},
		Copy: func() storetest.Site { return site(newID, left()) },
	}
}
