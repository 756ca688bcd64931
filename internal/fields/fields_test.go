package fields_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/fields"
)

// TestReader checks that a reader returns what was appended, and that each shorter or longer value is a problem.
func TestReader(t *testing.T) {
	at := time.Unix(-7, 999).UTC()
	b := fields.AppendTime(fields.AppendString(fields.AppendBool(nil, true), "east"), at)
	b = binary.AppendVarint(binary.AppendUvarint(fields.AppendTime(b, time.Time{}), 1<<40), -1)
	read := func(b []byte) (*fields.Reader, bool) {
		r := fields.NewReader(b)
		same := r.Bool() && r.String() == "east" && r.Time().Equal(at) && r.Time().IsZero() && r.Uint64() == 1<<40 && r.Int64() == -1
		return r, same
	}
	if r, same := read(b); !same || r.More() || r.End() != "" {
		t.Errorf("%x is read differently, or %q", b, r.End())
	}
	for n := range b {
		if r, same := read(b[:n]); same || r.End() == "" {
			t.Errorf("%d of %d bytes are read", n, len(b))
		}
	}
	if r, _ := read(append(b, 0)); r.End() == "" {
		t.Error("a byte more is accepted")
	}
	if r := fields.NewReader([]byte{2}); r.Bool() || r.End() == "" {
		t.Error("2 is read as a bool")
	}
}
