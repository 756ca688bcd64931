package main

import (
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// TestHoldings_DigestIsThatOfTheNewestVersions: the digest does not depend on the order, nor on earlier versions.
func TestHoldings_DigestIsThatOfTheNewestVersions(t *testing.T) {
	old, tag1, tag2 := codec.Tag{9}, codec.Tag{1}, codec.Tag{2}
	var a, b holdings
	a.put("w1", 1, old)
	a.put("w2", 1, tag2)
	a.put("w1", 2, tag1)
	b.put("w1", 2, tag1)
	b.put("w2", 1, tag2)
	if a.digest != b.digest || a.digest.Count != 2 || a.digest.Sum == (codec.DigestSum{}) {
		t.Errorf("got %v, want %v", a.digest, b.digest)
	}
	for _, w := range a.list() {
		if w.ResourceID == "w1" && (w.ResourceVersion != 2 || w.Tag != tag1.String()) {
			t.Errorf("lists %+v", w)
		}
	}
	if len(a.list()) != 2 || (&holdings{}).list() == nil {
		t.Errorf("lists %v", a.list())
	}
}

func TestDecide(t *testing.T) {
	own, other := codec.Digest{Count: 1}, codec.Digest{Count: 2}
	for name, c := range map[string]struct {
		broker *codec.Digest
		listed bool
		want   answer
	}{
		"partial":                {nil, false, ackCursor},
		"equal":                  {&own, false, ackInSync},
		"equal after a list":     {&own, true, ackInSync},
		"different":              {&other, false, sendList},
		"different after a list": {&other, true, ackOther},
	} {
		if got := decide(own, c.broker, c.listed); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}
