package hubsource

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzStateOf: whatever stands in the ConfigMap that keeps what the source knows
// of its hub, it means the same when it is written again, and a source begins
// with it.
func FuzzStateOf(f *testing.F) {
	f.Add("e/t/42", "cluster1 cluster2")
	f.Add("", everywhere)
	f.Add("nonsense", "\x00 \u2003x")
	f.Fuzz(func(t *testing.T, cursor, withheld string) {
		s := StateOf(map[string]string{keyCursor: cursor, keyWithheld: withheld})
		again := StateOf(s.Data())
		if diff := cmp.Diff(s, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q, %q (-first +again):\n%s", cursor, withheld, diff)
		}
		if !s.equal(again) {
			t.Fatalf("%+v differs from itself", s)
		}
	})
}
