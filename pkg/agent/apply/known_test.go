package apply

import (
	"strings"
	"testing"
)

func TestKnown_OutlivesTheProcess(t *testing.T) {
	b := newBench(t)
	k := b.apply(plainConfigMap).Known
	got, ok := ParseKnown(k.Text())
	if !ok || got != k {
		t.Fatalf("got %+v, %v, want %+v", got, ok, k)
	}
	if !got.Same(b.load(plainConfigMap), owner) {
		t.Error("it is about another manifest now")
	}
	for _, s := range []string{"", "u", strings.Repeat("x", 64), "u" + strings.Repeat("*", 86), "u" + strings.Repeat("x", 82) + "\n\n\nx"} {
		if k, ok := ParseKnown(s); ok || k != (Known{}) {
			t.Errorf("%q: %+v", s, k)
		}
	}
}

func FuzzParseKnown(f *testing.F) {
	f.Add("")
	f.Add(strings.Repeat("A", 86))
	f.Add("11111111-0000-0000-0000-000000000000" + strings.Repeat("A", 86))
	f.Fuzz(func(t *testing.T, s string) {
		k, ok := ParseKnown(s)
		if ok && k.Text() != s {
			t.Fatalf("%q: %+v, %v", s, k, ok)
		}
	})
}
