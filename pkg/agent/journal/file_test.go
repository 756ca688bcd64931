package journal

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
)

func TestSeal_FindsEveryChange(t *testing.T) {
	t.Parallel()
	body := []byte("body of a file")
	b := seal("name", body)
	if got, err := unseal("name", b); err != nil || !bytes.Equal(got, body) {
		t.Fatalf("unseal: %q, %v", got, err)
	}
	var d damage
	for i := range b {
		for bit := range 8 {
			flipped := bytes.Clone(b)
			flipped[i] ^= 1 << bit
			if _, err := unseal("name", flipped); !errors.As(err, &d) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, i, err)
			}
		}
	}
	for n := range b {
		if _, err := unseal("name", b[:n]); !errors.As(err, &d) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := unseal("namf", b); !errors.As(err, &d) {
		t.Errorf("under another name: %v", err)
	}
}

// withHead is a file whose first two bytes are others, with the right checksum.
func withHead(name string, head [2]byte, body []byte) []byte {
	b := seal(name, body)
	b[0], b[1] = head[0], head[1]
	n := len(b) - fileTail
	sum := checksum(name, b[:n])
	return append(b[:n], byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
}

func TestUnseal_OtherFormats(t *testing.T) {
	t.Parallel()
	var d damage
	var newer *FormatError
	if _, err := unseal("n", withHead("n", [2]byte{format + 1, 9}, []byte("x"))); !errors.As(err, &newer) || newer.Format != format+1 {
		t.Errorf("a newer format: %v", err)
	}
	for _, head := range [][2]byte{{0, 0}, {format, 1}} {
		if _, err := unseal("n", withHead("n", head, []byte("x"))); !errors.As(err, &d) {
			t.Errorf("head %v: %v", head, err)
		}
	}
}

func TestDecoders_RefuseWhatIsNotWritten(t *testing.T) {
	t.Parallel()
	other, err := codec.Marshal(spec(t, "a", 1))
	must(t, err)
	nameless := spec(t, "a", 1)
	nameless.SetExtension(codec.ExtResourceID, nil)
	without, err := codec.Marshal(nameless)
	must(t, err)
	entry := func(b []byte) error { _, _, err := decodeEntry(entryName("b"), b); return err }
	binding := func(b []byte) error { _, err := decodeBinding(b); return err }
	position := func(b []byte) error { _, err := decodeCursor(b); return err }
	instance := func(b []byte) error { _, err := decodeInstance(b); return err }
	reported := func(b []byte) error { _, err := decodeReported(b); return err }
	sequence := func(b []byte) error { _, err := decodeSequence(b); return err }
	left := func(b []byte) error { _, err := decodeLeft(b); return err }
	for name, c := range map[string]struct {
		decode func([]byte) error
		file   string
		body   string
	}{
		"no event":                    {entry, entryName("b"), "x"},
		"event of another work":       {entry, entryName("b"), string(other)},
		"event of no work":            {entry, entryName("b"), string(without)},
		"binding too short":           {binding, bindingFile, "\x01a\x01b\x01c"},
		"binding too long":            {binding, bindingFile, "\x01a\x01b\x01c\x01d\x00"},
		"text longer than the file":   {binding, bindingFile, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a"},
		"number longer than a number": {binding, bindingFile, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"},
		"no cursor":                   {position, cursorFile, ""},
		"cursor of two parts":         {position, cursorFile, "e/1"},
		"cursor in another form":      {position, cursorFile, "e/t/01"},
		"no instance":                 {instance, instanceFile, ""},
		"instance of a path":          {instance, instanceFile, "A/B"},
		"instance too long":           {instance, instanceFile, string(bytes.Repeat([]byte("A"), maxInstance+1))},
		"ids out of order":            {reported, reportedFile, "\x00\x02\x01b\x00\x01a\x00"},
		"an id twice":                 {reported, reportedFile, "\x00\x02\x01b\x00\x01b\x00"},
		"fewer than it says":          {reported, reportedFile, "\x00\xff\xff\x03\x01b\x00"},
		"more than it says":           {reported, reportedFile, "\x00\x00\x01b\x00"},
		"objects out of order":        {left, leftFile, "\x02\x01b\x00\x01a\x00"},
		"fewer objects than it says":  {left, leftFile, "\xff\xff\x03\x01b\x00"},
		"no sequence id":              {sequence, sequenceFile, ""},
		"sequence id of letters":      {sequence, sequenceFile, "12x"},
	} {
		var d damage
		if err := c.decode(seal(c.file, []byte(c.body))); !errors.As(err, &d) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEntryName_IsSafe(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "a", "../../etc/passwd", "a/b", "\x00", "0f4d7a7e-6f0b-4a52-9a3c-2b8a8c9f5f10"} {
		name := entryName(id)
		if !isEntryName(name) || filepath.Base(name) != name {
			t.Errorf("%q has name %q", id, name)
		}
	}
	for _, name := range []string{"", "a", entryName("a")[1:], "A" + entryName("a")[1:], entryName("a") + "00", entryName("a") + draftSuffix} {
		if isEntryName(name) {
			t.Errorf("%q passes for the name of an entry", name)
		}
	}
}

// Each fuzz target gives a decoder the bytes of a file, as they are, and as a
// body with the right checksum. What it takes must be what is written for it.

func FuzzDecodeEntry(f *testing.F) {
	for _, id := range []string{"a", "0f4d7a7e-6f0b-4a52-9a3c-2b8a8c9f5f10"} {
		event, err := codec.Marshal(spec(f, id, 1))
		must(f, err)
		f.Add(id, event)
		f.Add(id, seal(entryName(id), event))
	}
	f.Fuzz(func(t *testing.T, id string, b []byte) {
		name := entryName(id)
		for _, b := range [][]byte{b, seal(name, b)} {
			got, e, err := decodeEntry(name, b)
			if err != nil {
				continue
			}
			if got != id {
				t.Fatalf("the entry of %q is about %q", id, got)
			}
			event, err := codec.Marshal(e)
			must(t, err)
			if again, _, err := decodeEntry(name, seal(name, event)); err != nil || again != id {
				t.Fatalf("what was decoded is not decoded again: %q, %v", again, err)
			}
		}
	})
}

// fuzzSmall is a fuzz target of a decoder with one encoding per value.
func fuzzSmall[T any](f *testing.F, name string, decode func([]byte) (T, error), encode func(T) []byte, seeds ...T) {
	for _, v := range seeds {
		b := encode(v)
		f.Add(b)
		f.Add(b[fileHead : len(b)-fileTail])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, seal(name, b)} {
			v, err := decode(b)
			if err != nil {
				continue
			}
			again, err := decode(encode(v))
			must(t, err)
			if diff := cmp.Diff(v, again); diff != "" {
				t.Fatalf("encoded and decoded again (-before +after):\n%s", diff)
			}
		}
	})
}

func FuzzDecodeBinding(f *testing.F) {
	fuzzSmall(f, bindingFile, decodeBinding, encodeBinding, Binding{}, testBinding)
}

func FuzzDecodeCursor(f *testing.F) {
	fuzzSmall(f, cursorFile, decodeCursor, encodeCursor, cursor(0), cursor(1<<40))
}

func FuzzDecodeInstance(f *testing.F) {
	fuzzSmall(f, instanceFile, decodeInstance, encodeInstance, "A", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
}

func FuzzDecodeReported(f *testing.F) {
	fuzzSmall(f, reportedFile, decodeReported, encodeReported,
		Reported{}, Reported{Sequence: "1857342389023", Accepted: map[string]string{"a": "hub 1 t h false", "b": ""}})
}

func FuzzDecodeLeft(f *testing.F) {
	fuzzSmall(f, leftFile, decodeLeft, encodeLeft, map[string]string{}, map[string]string{"a": "\x00u", "b": ""})
}

func FuzzDecodeSequence(f *testing.F) {
	fuzzSmall(f, sequenceFile, decodeSequence, encodeSequence, "0", "1857342389023")
}

// The corpus on disk has files that this release wrote: a later one must read
// them.
func TestCorpus_IsRead(t *testing.T) {
	t.Parallel()
	read := map[string]int{}
	for target, decode := range map[string]func([]byte) error{
		"FuzzDecodeBinding":  func(b []byte) error { _, err := decodeBinding(b); return err },
		"FuzzDecodeCursor":   func(b []byte) error { _, err := decodeCursor(b); return err },
		"FuzzDecodeInstance": func(b []byte) error { _, err := decodeInstance(b); return err },
		"FuzzDecodeReported": func(b []byte) error { _, err := decodeReported(b); return err },
		"FuzzDecodeLeft":     func(b []byte) error { _, err := decodeLeft(b); return err },
		"FuzzDecodeSequence": func(b []byte) error { _, err := decodeSequence(b); return err },
		"FuzzDecodeEntry":    func(b []byte) error { _, _, err := decodeEntry(entryName("a"), b); return err },
	} {
		for _, b := range corpus(t, target) {
			if decode(b) == nil {
				read[target]++
			}
		}
	}
	for _, target := range []string{"FuzzDecodeBinding", "FuzzDecodeCursor", "FuzzDecodeInstance", "FuzzDecodeReported", "FuzzDecodeLeft", "FuzzDecodeSequence", "FuzzDecodeEntry"} {
		if read[target] == 0 {
			t.Errorf("%s: no file of the corpus is read any more (read: %v)", target, slices.Sorted(maps.Keys(read)))
		}
	}
}

// corpus returns the []byte values of a target's committed inputs.
func corpus(t *testing.T, target string) [][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "fuzz", target, "*"))
	must(t, err)
	var all [][]byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for line := range bytes.Lines(text) {
			line = bytes.TrimSpace(line)
			if quoted, ok := bytes.CutPrefix(line, []byte("[]byte(")); ok {
				s, err := strconv.Unquote(string(bytes.TrimSuffix(quoted, []byte(")"))))
				must(t, err)
				all = append(all, []byte(s))
			}
		}
	}
	return all
}
