package apply

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

func TestKnownState_OutlivesTheProcess(t *testing.T) {
	b := newBench(t)
	k := b.apply(simpleConfigMap).Known
	got, ok := ParseKnown(k.Text())
	if !ok || got != k {
		t.Fatalf("got %+v, %v, want %+v", got, ok, k)
	}
	if !got.Matches(b.load(simpleConfigMap), owner) {
		t.Error("it is about another manifest now")
	}
	for _, s := range []string{"", "u", strings.Repeat("x", 64), "u" + strings.Repeat("*", 86), "u" + strings.Repeat("x", 82) + "\n\n\nx"} {
		if k, ok := ParseKnown(s); ok || k != (KnownState{}) {
			t.Errorf("%q: %+v", s, k)
		}
	}
}

// The state of a process that took the server's answer for the wanted content is dropped.
func TestKnownState_OfAnEarlierFormat(t *testing.T) {
	b := newBench(t)
	k := b.apply(simpleConfigMap).Known
	m := b.load(simpleConfigMap)
	h := sha256.New()
	h.Write(m.hash[:])
	_, _ = fmt.Fprintf(h, "%q %q %t", owner.Name, owner.UID, m.Owned)
	k.want = [sha256.Size]byte(h.Sum(nil))
	if old, ok := ParseKnown(k.Text()); !ok || old.Matches(m, owner) {
		t.Errorf("got %+v, %v", old, ok)
	}
}

func FuzzParseKnown(f *testing.F) {
	f.Add("")
	f.Add(strings.Repeat("A", 86))
	f.Add("11111111-0000-0000-0000-000000000000" + strings.Repeat("A", 86))
	f.Add("11111111-0000-0000-0000-000000000000" + strings.Repeat("A", 86) + "\n" + `{"unknown":["spec.f2"]}`)
	f.Fuzz(func(t *testing.T, s string) {
		k, ok := ParseKnown(s)
		if ok && k.Text() != s {
			t.Fatalf("%q: %+v, %v", s, k, ok)
		}
	})
}
