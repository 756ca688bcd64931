package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/fields"
)

// without returns a line without its newlines.
func without(line []byte) []byte { return line[1 : len(line)-1] }

var someRecords = []record{
	{recordHead, "", []byte(`{"instance":"A"}`)},
	{recordWork, "work\n\x1b", []byte("\n\x1bn\x1be\x1b\n\x00\xff")},
	{recordWork, "removed", []byte{}},
	{'?', "", []byte("of a later version of the same format")},
}

func TestRecord_FindsEveryChange(t *testing.T) {
	t.Parallel()
	for _, r := range someRecords {
		line := r.line()
		if bytes.Count(line, newline) != 2 {
			t.Fatalf("%q is more than one line", line)
		}
		b := without(line)
		if got, err := decodeRecord(b); err != nil || !cmp.Equal(got, r, cmp.AllowUnexported(record{})) {
			t.Fatalf("got %+v, %v, want %+v", got, err, r)
		}
		var d damage
		for i := range b {
			for bit := range 8 {
				flipped := bytes.Clone(b)
				flipped[i] ^= 1 << bit
				if _, err := decodeRecord(flipped); !errors.As(err, &d) {
					t.Fatalf("bit %d of byte %d flipped: %v", bit, i, err)
				}
			}
		}
		for n := range b {
			if _, err := decodeRecord(b[:n]); !errors.As(err, &d) {
				t.Fatalf("cut to %d bytes: %v", n, err)
			}
		}
	}
}

// withFormat returns a record of another format, with the right checksum.
func withFormat(f byte) []byte {
	b := append([]byte{f}, "anything"...)
	return binary.LittleEndian.AppendUint32(b, fields.Checksum(nil, b))
}

func TestRecord_OtherFormats(t *testing.T) {
	t.Parallel()
	var d damage
	var newer *FormatError
	if _, err := decodeRecord(withFormat(format + 1)); !errors.As(err, &newer) || newer.Format != format+1 {
		t.Errorf("a newer format: %v", err)
	}
	for _, f := range []byte{0, formerFormat} {
		if _, err := decodeRecord(withFormat(f)); !errors.As(err, &d) {
			t.Errorf("format %d: %v", f, err)
		}
	}
	for _, body := range []string{"h", "h\xff", "h\x02a", "h\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"} {
		b := append([]byte{format}, body...)
		if _, err := decodeRecord(binary.LittleEndian.AppendUint32(b, fields.Checksum(nil, b))); !errors.As(err, &d) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// FuzzDecodeRecord decodes bytes as they are, and as the body of a record with the right checksum. An accepted
// record encodes to the same bytes.
func FuzzDecodeRecord(f *testing.F) {
	for _, r := range someRecords {
		f.Add(without(r.line()))
		f.Add(append([]byte{format, r.kind, byte(len(r.key))}, r.key+string(r.value)...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		sealed := binary.LittleEndian.AppendUint32(bytes.Clone(b), fields.Checksum(nil, b))
		for _, b := range [][]byte{b, sealed} {
			r, err := decodeRecord(b)
			if err != nil {
				continue
			}
			if got, err := decodeRecord(without(r.line())); err != nil || !cmp.Equal(got, r, cmp.AllowUnexported(record{})) {
				t.Fatalf("read again: %+v, %v, want %+v", got, err, r)
			}
		}
	})
}

// FuzzLog gives Open and Load a log of any bytes. They never fail, and their result can be written and read
// again.
func FuzzLog(f *testing.F) {
	var log []byte
	for _, r := range someRecords {
		log = append(log, r.line()...)
	}
	f.Add(log)
	f.Add(log[:len(log)-5])
	f.Add(written(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := newMemDisk()
		d.files[logFile] = &inode{data: b, stable: b}
		for n := range 2 {
			j, err := Open(Config{Dir: "state", disk: d})
			var newer *FormatError
			if errors.As(err, &newer) && n == 0 {
				return
			}
			must(t, err)
			h := holding{}
			s, err := j.Load(testBinding, h.put, h.removed)
			if errors.As(err, &newer) && n == 0 {
				return
			}
			must(t, err)
			if n > 0 && s.Damaged > 0 {
				t.Fatalf("a newly written record is damaged: %+v", s)
			}
			must(t, j.Compact(content(t, h, s)))
			must(t, j.Checkpoint(cursor(n+1)))
			must(t, j.Close())
		}
	})
}

// written returns the log of a directory that was used.
func written(t testing.TB) []byte {
	d := newMemDisk()
	j, _, _ := open(t, Config{Dir: "state", disk: d})
	must(t, j.Put(spec(t, "a", 1)))
	must(t, j.Put(spec(t, "b", 1)))
	must(t, j.Remove("b"))
	must(t, j.Note(Reported{Sequence: "1", Accepted: map[string]string{"a": "x"}}, map[string]map[string]string{"k": {"a": "x"}}))
	must(t, j.Checkpoint(cursor(1)))
	return d.files[logFile].data
}

// FuzzUnseal gives the reader of former files bytes as they are, and with the right checksum.
func FuzzUnseal(f *testing.F) {
	f.Add("cursor", []byte("\x01\x00e/t/7"))
	f.Add("binding", []byte("\x01\x00\x01a\x01b\x01c\x01d"))
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		d := newMemDisk()
		sealed := binary.LittleEndian.AppendUint32(bytes.Clone(b), fields.Checksum([]byte(name), b))
		for _, b := range [][]byte{b, sealed} {
			d.files[name] = &inode{data: b}
			l := &log{disk: d}
			l.readFormer(func(record, error) bool { return true }) // any content is read or rejected
			if body, err := unseal(name, b, formerFormat); err == nil && (b[0] != formerFormat || !bytes.HasPrefix(b[1:], body)) {
				t.Fatalf("%q is in %q", body, b)
			}
		}
	})
}

// The corpus on disk has a log that this version wrote: a later version must read it.
func TestCorpus_IsRead(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "fuzz", "FuzzLog", "written"))
	must(t, err)
	_, quoted, _ := bytes.Cut(text, []byte("[]byte("))
	log, err := strconv.Unquote(string(bytes.TrimSuffix(bytes.TrimSpace(quoted), []byte(")"))))
	must(t, err)
	d := newMemDisk()
	d.files[logFile] = &inode{data: []byte(log), stable: []byte(log)}
	_, s, h := open(t, Config{Dir: "state", disk: d})
	want := LoadResult{Cursor: cursor(1), Reported: Reported{Sequence: "1", Accepted: map[string]string{"a": "x"}}, Left: map[string]map[string]string{"k": {"a": "x"}}}
	if diff := cmp.Diff(want, s) + cmp.Diff(holding{"a": 1}, h); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
