package store_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/pkg/codec"
)

// situations are the columns of the table of the package comment, for the id w1.
var situations = []struct {
	name   string
	before []store.Op
}{
	{"none", nil},
	{"live", []store.Op{put("w1", "a", 2, "x")}},
	{"tombstone", []store.Op{put("w1", "a", 2, "x"), del("w1", "a", 2)}},
	{"+ same id", []store.Op{put("w1", "a", 2, "x"), del("w1", "a", 2), create("w1", "a", 2, "z")}},
	{"+ next id", []store.Op{put("w1", "a", 2, "x"), del("w1", "a", 2), create("w2", "a", 2, "z")}},
	{"waiting", []store.Op{put("w0", "a", 2, "x"), del("w0", "a", 2), put("w1", "a", 2, "z")}},
	{"confirmed", []store.Op{put("w1", "a", 2, "x"), del("w1", "a", 2), deleted("w1", 2, 1)}},
}

// happenings are the rows of the table: ops on w1.
var happenings = []struct {
	name string
	op   store.Op
}{
	{"create", create("w1", "a", 3, "new")},
	{"update", put("w1", "a", 3, "new")},
	{"older update", put("w1", "a", 1, "old")},
	{"delete", del("w1", "a", 3)},
	{"status", status("w1", 2, 9, "ok")},
	{"Deleted", deleted("w1", 2, 9)},
	{"seen", by("s1", admin(store.CollectTombstone, "w1", "s1"))},
	{"forget", admin(store.Forget, "w1", "")},
	{"drop", admin(store.Drop, "w1", "")},
}

// situation returns the column of w1 in the model.
func situation(l *storetest.Model) string {
	k := key("w1")
	m, err := l.Meta(k)
	if err != nil {
		return err.Error()
	}
	if _, waits := l.BlockingTombstone(k); waits {
		return "waiting"
	}
	switch {
	case m == nil:
		return "none"
	case m.Queued == nil:
		return states[m.State]
	case m.Queued.ResourceID == m.ResourceID:
		return "+ same id"
	default:
		return "+ next id"
	}
}

// cell returns the state after an op, or the result in parentheses if nothing is written.
func cell(t *testing.T, before []store.Op, op store.Op) string {
	t.Helper()
	l := storetest.NewModel()
	l.MarkSubscribed(codec.ManifestBundles, cluster, "")
	for _, o := range before {
		if _, err := l.Apply(o); err != nil {
			t.Fatal(err)
		}
	}
	s, err := l.Apply(op)
	if err != nil {
		t.Fatal(err)
	}
	switch v := s.Outcome.Result; v {
	case store.Accepted, store.Confirmed, store.Queued:
		return situation(l)
	default:
		return "(" + resultNames[v] + ")"
	}
}

// TestDecide_IsTheTable: the results of Decide are those in the table of the package comment.
func TestDecide_IsTheTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	line := func(first string, cells []string) {
		fmt.Fprintf(&b, "//\t%-12s", first)
		for _, c := range cells {
			fmt.Fprintf(&b, "  %-11s", c)
		}
		text := strings.TrimRight(b.String(), " ")
		b.Reset()
		b.WriteString(text + "\n")
	}
	var names []string
	for _, s := range situations {
		names = append(names, s.name)
	}
	line("", names)
	for _, h := range happenings {
		var cells []string
		for _, s := range situations {
			cells = append(cells, cell(t, s.before, h.op))
		}
		line(h.name, cells)
	}
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(source), b.String()) {
		t.Errorf("the package comment lacks this table:\n%s", cmp.Diff("", b.String()))
		t.Log("\n" + b.String())
	}
}
