package codec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// FuzzParseText parses any text as header, attribute and message text, and any two texts as sequence ids. An
// accepted text has the same meaning after it is formatted again.
func FuzzParseText(f *testing.F) {
	for _, seed := range [][2]string{
		{"epoch/term/42", "epoch/term/18446744073709551615"},
		{"000102030405060708090a0b0c0d0e0f", "000102030405060708090A0B0C0D0E0F"},
		{"io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request", ManifestBundles.String()},
		{"5189427453056163840", "5189427453056163841"},
		{"", "9223372036854775807"},
		{"+1", "01"},
		{"1795442048000.0f5b6c3e-5a1b", "1.a"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, s := range []string{a, b} {
			if c, err := ParseCursor(s); err == nil {
				if again, err := ParseCursor(c.String()); err != nil || again != c || strings.Count(c.String(), "/") != 2 {
					t.Errorf("cursor %q is %+v, then %+v, %v", s, c, again, err)
				}
			}
			if session, err := ParseSession(ExtSession, s); err == nil && session.String() != s {
				t.Errorf("session %q is written as %s", s, session)
			}
			if tag, err := ParseTag(s); err == nil && tag.String() != s {
				t.Errorf("tag %q is written as %s", s, tag)
			}
			if d, err := ParseDataType(s); err == nil && d.String() != s {
				t.Errorf("data type %q is written as %s", s, d)
			}
			if e, err := ParseEventType(s); err == nil && (e.String() != s || e.Subresource != Spec && e.Subresource != Status) {
				t.Errorf("event type %q is written as %s", s, e)
			}
		}
		checkSequences(t, a, b)
	})
}

// checkSequences checks that at most one of two ids is newer than the other. An agent that observed an id
// continues above it.
func checkSequences(t *testing.T, a, b string) {
	t.Helper()
	up, err := CompareSequence(a, b)
	down, backErr := CompareSequence(b, a)
	if a != "" && b != "" && (err == nil) != (backErr == nil) || a != "" && up && down {
		t.Errorf("%q, %q: newer %v, %v; the other way %v, %v", a, b, up, err, down, backErr)
	}
	var s Sequencer
	if a == "" || s.Observe(a) != nil {
		return
	}
	next := s.Next(0)
	if newer, err := CompareSequence(a, next); err != nil || !newer {
		t.Errorf("%s comes after %q: newer %v, %v", next, a, newer, err)
	}
}

// checkWithout removes each attribute from a normalized event.
func checkWithout(t *testing.T, n []byte) {
	t.Helper()
	var p protoEvent
	if err := proto.Unmarshal(n, &p); err != nil {
		t.Fatalf("the library cannot read a normalised event: %v", err)
	}
	for key := range p.GetAttributes() {
		name, ok := strings.CutPrefix(key, keyPrefix)
		if !ok {
			continue
		}
		var left protoEvent
		if err := proto.Unmarshal(WithoutAttribute(n, name), &left); err != nil {
			t.Fatalf("without %s: %v", name, err)
		}
		want := proto.CloneOf(&p)
		delete(want.Attributes, key)
		if !proto.Equal(want, &left) {
			t.Fatalf("without %s: %v, want %v", name, &left, want)
		}
	}
}
