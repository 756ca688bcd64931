package pebble_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/pebble"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
)

// TestStore is not parallel: it looks for leaked goroutines, and the tests of failing disks leak some.
func TestStore(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("suite", func(t *testing.T) {
		storetest.Run(t, func(*testing.T) storetest.Site { return site(vfs.NewMem()) })
	})
	goleak.VerifyNone(t, before)
}

// site returns a site in a directory of a file system in memory.
func site(fs *vfs.MemFS) storetest.Site {
	return storetest.Site{
		Open: func() (store.Store, error) {
			s, err := pebble.Open(pebble.Options{Dir: "store", FS: fs})
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		Copy: func() storetest.Site {
			to := vfs.NewMem()
			if ok, err := vfs.Clone(fs, to, "store", "store"); err != nil || !ok {
				panic(err)
			}
			return site(to)
		},
	}
}
