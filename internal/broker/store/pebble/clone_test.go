package pebble

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// sending is a list of the parts of a backup.
type sending []part

type part struct{ name, data string }

// send splits the files of a backup into parts.
func send(t *testing.T, files vfs.FS, dir string) sending {
	t.Helper()
	const most = 1000
	all := contents(t, files, dir)
	var out sending
	for _, name := range slices.Sorted(maps.Keys(all)) {
		data := all[name]
		for first := true; first || data != ""; first = false {
			n := min(len(data), most)
			out = append(out, part{name, data[:n]})
			name, data = "", data[n:]
		}
	}
	return out
}

func (p sending) next() func() (string, []byte, error) {
	return func() (string, []byte, error) {
		if len(p) == 0 {
			return "", nil, io.EOF
		}
		one := p[0]
		p = p[1:]
		return one.name, []byte(one.data), nil
	}
}

// TestReceive: the received files are a complete backup.
func TestReceive(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	s := mustOpen(t, tiny(mem))
	a := newAcked()
	noError(t, a.churn(s, 0, 60))
	noError(t, backup(t.Context(), s, "backup"))
	mustClose(t, s)
	to := vfs.NewMem()
	r, err := receive(t.Context(), to, "there/backup", nil, pull(send(t, mem, "backup").next()))
	if err != nil || r.Revision != afterRounds(60) || !r.Closed {
		t.Fatalf("received %+v, %v", r, err)
	}
	o := tiny(to)
	o.Dir = "there/backup"
	b := mustOpen(t, o)
	a.check(t, b)
	mustClose(t, b)
}

// TestReceive_Refuses: invalid input is rejected and leaves nothing behind.
func TestReceive_Refuses(t *testing.T) {
	t.Parallel()
	mem := written(t)
	s := mustOpen(t, Options{Dir: dir, FS: mem})
	noError(t, backup(t.Context(), s, "backup"))
	mustClose(t, s)
	whole := send(t, mem, "backup")
	with := func(name, data string) sending {
		return append(sending{{name, data}}, whole...)
	}
	cut := slices.Clone(whole)
	table := slices.IndexFunc(cut, func(p part) bool { return strings.HasSuffix(p.name, ".sst") })
	cut[table].data = cut[table].data[:100]
	broken := errors.New("connection lost")
	for what, c := range map[string]struct {
		next    func() (string, []byte, error)
		want    string
		nothing bool // no directory is made either
	}{
		"no name":       {with("", "data").next(), "no name", false},
		"parent":        {with("../escaped", "x").next(), "does not belong to a store", false},
		"absolute":      {with("/escaped", "x").next(), "does not belong to a store", false},
		"dots":          {with("..", "x").next(), "does not belong to a store", false},
		"lock":          {with(lockName, "x").next(), "does not belong to a store", false},
		"mark":          {with(IncompleteName, "x").next(), "does not belong to a store", false},
		"twice":         {append(slices.Clone(whole), whole...).next(), "received twice", false},
		"a part":        {slices.Clone(whole[:len(whole)/2]).next(), "", false},
		"a cut table":   {cut.next(), "damaged", false},
		"no connection": {func() (string, []byte, error) { return "", nil, broken }, broken.Error(), true},
		"nothing":       {sending{}.next(), "nothing was sent", true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			to := vfs.NewMem()
			_, err := receive(t.Context(), to, "backup", nil, pull(c.next))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("received: %v", err)
			}
			if names := must(to.List("")); len(names) == 0 && c.nothing {
				return
			} else if !slices.Equal(names, []string{"backup"}) {
				t.Errorf("beside it is %v", names)
			}
			if names := must(to.List("backup")); !slices.Equal(names, []string{lockName}) {
				t.Errorf("%v is left", names)
			}
		})
	}
}

// TestCopy copies a closed store and a crashed store. The copy is an independent store.
func TestCopy(t *testing.T) {
	t.Parallel()
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, tiny(mem))
	a := newAcked()
	noError(t, a.churn(s, 0, 80))
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	noError(t, crashed.MkdirAll(dir+"/"+stagingName, 0o700))
	mustClose(t, s)
	for what, files := range map[string]*vfs.MemFS{"closed": mem, "crashed": crashed} {
		before := contentsOfFiles(t, files, dir)
		r, err := copyStore(t.Context(), files, dir, "copy")
		if err != nil || r.Revision != afterRounds(80) || r.Closed != (what == "closed") {
			t.Fatalf("%s: %+v, %v", what, r, err)
		}
		if d := cmp.Diff(before, contentsOfFiles(t, files, dir)); d != "" {
			t.Errorf("%s: the original (-before +after):\n%s", what, d)
		}
		o := tiny(files)
		o.Dir = "copy"
		c := mustOpen(t, o)
		a.check(t, c)
		noError(t, newAcked().churn(c, 1000, 40))
		mustClose(t, c)
		s := mustOpen(t, tiny(files))
		a.check(t, s)
		mustClose(t, s)
	}
}

// contentsOfFiles is contents without directories and the lock.
func contentsOfFiles(t *testing.T, files *vfs.MemFS, dir string) map[string]string {
	t.Helper()
	flat := vfs.NewMem()
	must(vfs.Clone(files, flat, dir, dir, vfs.CloneSkip(func(path string) bool {
		info, err := files.Stat(path)
		return err != nil || info.IsDir()
	})))
	out := contents(t, flat, dir)
	maps.DeleteFunc(out, func(name, _ string) bool { return name == lockName })
	return out
}

func TestCopy_Refuses(t *testing.T) {
	t.Parallel()
	mem := written(t)
	s := mustOpen(t, Options{Dir: dir, FS: mem})
	refused := func(what, from, to string, want error) {
		t.Helper()
		if _, err := copyStore(t.Context(), mem, from, to); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	refused("from a running broker", dir, "copy", ErrInUse)
	noError(t, backup(t.Context(), s, "backup"))
	refused("to a running broker", "backup", dir, ErrInUse)
	mustClose(t, s)
	refused("to a store", "backup", dir, ErrNotEmpty)
	refused("to itself", "backup", "backup", ErrInUse)
	refused("from nothing", "nowhere", "copy", os.ErrNotExist)
	noError(t, mem.MkdirAll("half", 0o700))
	noError(t, must(mem.Create("half/"+IncompleteName, vfs.WriteCategoryUnspecified)).Close())
	refused("from half a copy", "half", "copy", ErrIncomplete)
	refused("to half a copy", "backup", "half", ErrIncomplete)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := copyStore(ctx, mem, "backup", "copy"); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := mem.Stat("copy"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was copied: %v", err)
	}
}

// TestCopy_FullDisk: half a copy is removed.
func TestCopy_FullDisk(t *testing.T) {
	t.Parallel()
	mem := written(t)
	var left, seen atomic.Int64
	left.Store(1 << 40)
	files := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !writes(op) || op.Kind == errorfs.OpRemove || !strings.HasPrefix(op.Path, "copy") {
			return nil
		}
		seen.Add(1)
		if left.Add(-1) < 0 {
			return syscall.ENOSPC
		}
		return nil
	}))
	if _, err := copyStore(t.Context(), files, dir, "copy"); err != nil {
		t.Fatal(err)
	}
	total := seen.Load()
	noError(t, mem.RemoveAll("copy"))
	for n := range total {
		left.Store(n)
		if _, err := copyStore(t.Context(), files, dir, "copy"); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("disk full after %d writes: %v", n, err)
		}
		if r, err := checkDir(t.Context(), mem, "copy"); err == nil {
			t.Fatalf("disk full after %d writes: there is a copy: %+v", n, r)
		}
		noError(t, mem.RemoveAll("copy"))
	}
	left.Store(1 << 40)
	if _, err := copyStore(t.Context(), files, dir, "copy"); err != nil {
		t.Error(err)
	}
}

// TestCopy_Differs: a sound copy with other content than its original is rejected.
func TestCopy_Differs(t *testing.T) {
	t.Parallel()
	a := &Report{StoreID: "e", Values: 3, Clusters: []ClusterReport{{Cluster: "c1", DataType: codec.ManifestBundles}}}
	b := *a
	if err := a.sameAs(&b); err != nil {
		t.Error(err)
	}
	b.Clusters = []ClusterReport{{Cluster: "c1", DataType: codec.ManifestBundles, Digest: store.Digest{Count: 1}}}
	var damaged *store.DamageError
	if err := a.sameAs(&b); !errors.As(err, &damaged) {
		t.Errorf("another digest: %v", err)
	}
}
