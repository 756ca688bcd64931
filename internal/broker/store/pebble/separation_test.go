package pebble

import (
	"bytes"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/value"
)

// TestSeparation_FormerReleaseReads checks that a large payload is in a file of its own, and that an engine
// without the policy, as in earlier releases, reads it.
func TestSeparation_FormerReleaseReads(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	s := mustOpen(t, Options{Dir: dir, FS: fs})
	small, large := testOp(1, 1), testOp(2, 1)
	large.Event = bytes.Repeat([]byte("0123456789abcdef"), 2<<10)
	if _, err := s.Commit(t.Context(), []store.Op{small, large}); err != nil {
		t.Fatal(err)
	}
	noError(t, s.db.Flush())
	if n := s.db.Metrics().BlobFiles.LiveCount; n != 1 {
		t.Errorf("%d files of large payloads, want 1", n)
	}
	mustClose(t, s)
	raw(t, fs, func(db *engine.DB) {
		for _, op := range []store.Op{small, large} {
			body, ok, err := get(db, value.Key(value.Spec, op.Key))
			if err != nil || !ok || !bytes.Equal(body, op.Event) {
				t.Errorf("%s: %d bytes, %v", op.Key.ResourceID, len(body), err)
			}
		}
	})
	s = mustOpen(t, Options{Dir: dir, FS: fs})
	if r, err := s.Get(t.Context(), large.Key); err != nil || !bytes.Equal(r.Spec, large.Event) {
		t.Errorf("after that: %d bytes, %v", len(r.Spec), err)
	}
	mustClose(t, s)
}
