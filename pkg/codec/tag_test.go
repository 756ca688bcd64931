package codec

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func TestTagOf_HashesTheDocumentedInput(t *testing.T) {
	in := []byte{1}
	in = binary.BigEndian.AppendUint64(in, 7)
	in = binary.BigEndian.AppendUint64(in, 2)
	in = append(in, "{}"...)
	in = binary.BigEndian.AppendUint64(in, 4)
	in = append(in, "data"...)
	sum := sha256.Sum256(in)
	if got, want := TagOf(true, 7, "{}", []byte("data")), Tag(sum[:16]); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// The expected tag is constant, so that the test detects a changed input of the hash. Brokers and agents
	// have tags on disk.
	if got, want := TagOf(false, 3, `{"name":"w1"}`, []byte(`{"manifests":[]}`)).String(), "bc71b4f557179b728f52dce35300e752"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTagOf_DistinguishesSpecs(t *testing.T) {
	specs := map[Tag]string{}
	add := func(name string, tag Tag) {
		if other, ok := specs[tag]; ok {
			t.Errorf("%s and %s have the same tag", name, other)
		}
		specs[tag] = name
	}
	add("text", TagOf(false, 1, "ab", []byte("c")))
	add("deleting", TagOf(true, 1, "ab", []byte("c")))
	add("version", TagOf(false, 2, "ab", []byte("c")))
	add("metadata", TagOf(false, 1, "abc", nil))
	add("data", TagOf(false, 1, "", []byte("abc")))
	add("boundary", TagOf(false, 1, "a", []byte("bc")))
	if TagOf(false, 1, "", nil) != TagOf(false, 1, "", []byte{}) {
		t.Error("no data and empty data differ")
	}
}

func TestParseTag_TakesOnlyItsOwnForm(t *testing.T) {
	want := TagOf(false, 1, "m", []byte("d"))
	if got, err := ParseTag(want.String()); err != nil || got != want {
		t.Errorf("got %s, %v", got, err)
	}
	for _, bad := range []string{"", "00", "0123456789abcdef0123456789abcdeg", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcdef00"} {
		_, err := ParseTag(bad)
		var a *AttributeError
		if !errors.As(err, &a) || a.Attribute != ExtTag {
			t.Errorf("ParseTag(%q): %v", bad, err)
		}
	}
}

func TestRecordHash_HashesTheDocumentedInput(t *testing.T) {
	tag := TagOf(false, 1, "m", []byte("d"))
	in := binary.BigEndian.AppendUint64(nil, 3)
	in = append(in, "abc"...)
	in = append(in, tag[:]...)
	sum := sha256.Sum256(in)
	if got := RecordHash("abc", tag); got != [16]byte(sum[:16]) {
		t.Errorf("got %x, want %x", got, sum[:16])
	}
}

func TestDigestSum_IsAGroupModulo2To128(t *testing.T) {
	modulus := new(big.Int).Lsh(big.NewInt(1), 128)
	number := func(s DigestSum) *big.Int { return new(big.Int).SetBytes(s[:]) }
	draw := rapid.Custom(func(t *rapid.T) (s DigestSum) {
		// Values near 0 and the maximum make carries likely.
		word := rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{0, 1, 1<<64 - 1}))
		binary.BigEndian.PutUint64(s[:8], word.Draw(t, "hi"))
		binary.BigEndian.PutUint64(s[8:], word.Draw(t, "lo"))
		return s
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		want := new(big.Int).Add(number(a), number(b))
		if got := number(a.Add(b)); got.Cmp(want.Mod(want, modulus)) != 0 {
			t.Fatalf("%s + %s = %x, want %x", a, b, got, want)
		}
		if a.Add(b) != b.Add(a) || a.Add(b).Sub(b) != a || a.Sub(a) != (DigestSum{}) {
			t.Fatalf("%s and %s: laws do not hold", a, b)
		}
	})
}
