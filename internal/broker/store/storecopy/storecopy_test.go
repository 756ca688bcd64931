package storecopy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storecopy"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

var errKilled = errors.New("killed")

// memory is a source, or a target that is killed at a call of Write or Finish.
type memory struct {
	values   []value.Stored
	mark     string
	finished bool
	killAt   int // number of the call of Write or Finish that fails, counted down; 0: never
	written  int // number of calls of Write
}

func (m *memory) Head() store.Head {
	return store.Head{StoreID: "s", Incarnation: "i", Revision: uint64(len(m.values))}
}

func (m *memory) Values(_ context.Context, f func(value.Stored) error) error {
	for _, v := range m.values {
		if err := f(v); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) Begin(_ context.Context, of store.Head) ([]byte, error) {
	mark := storecopy.Mark(of)
	if m.mark != "" && m.mark != mark {
		return nil, storecopy.ErrOther
	}
	if m.mark = mark; len(m.values) == 0 {
		return nil, nil
	}
	return m.values[len(m.values)-1].Key, nil
}

func (m *memory) killed() bool {
	m.killAt--
	return m.killAt == 0
}

func (m *memory) Write(_ context.Context, values []value.Stored) error {
	if m.killed() {
		return errKilled
	}
	m.values = append(m.values, values...)
	m.written++
	return nil
}

func (m *memory) Finish(context.Context, store.Head) error {
	if m.killed() {
		return errKilled
	}
	m.finished = true
	return nil
}

// sample returns a source with works, of which each fills a third of a batch.
func sample(works int) *memory {
	m := &memory{}
	add := func(key, body []byte) {
		m.values = append(m.values, value.Stored{Key: key, Value: value.Seal(key, body)})
	}
	add(value.BookmarkKey("b"), value.AppendBookmark(nil, store.Bookmark{Revision: 1, Value: []byte("x")}))
	key := func(n int) store.Key {
		return store.Key{DataType: codec.ManifestBundles, Cluster: fmt.Sprintf("c%d", n/5), ResourceID: fmt.Sprintf("u%03d", n)}
	}
	for n := range works {
		state := store.Live
		if n%4 == 1 {
			state = store.Tombstone
		}
		k := key(n)
		add(value.Key(value.Meta, k), value.AppendMeta(nil, &store.Meta{Key: k, State: state, Owner: "hub", Name: k.ResourceID, SpecRevision: uint64(n + 2)}))
	}
	for n := range works {
		add(value.Key(value.Spec, key(n)), []byte(strings.Repeat("x", 350)))
	}
	return m
}

// TestCopy_Killed: a copy that was killed at any writes continues behind the last one, and ends with the same content.
func TestCopy_Killed(t *testing.T) {
	from := sample(12)
	rapid.Check(t, func(t *rapid.T) {
		to := &memory{}
		for _, at := range rapid.SliceOf(rapid.IntRange(1, 6)).Draw(t, "killed at") {
			to.killAt = at
			if _, err := storecopy.CopyStore(t.Context(), from, to, 1000); err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
		}
		to.killAt = 0
		c, err := storecopy.CopyStore(t.Context(), from, to, 1000)
		if err != nil || !to.finished {
			t.Fatalf("finished %v, %v", to.finished, err)
		}
		same := func(a, b value.Stored) bool {
			return string(a.Key) == string(b.Key) && string(a.Value) == string(b.Value)
		}
		if !slices.EqualFunc(to.values, from.values, same) {
			t.Errorf("%d values were copied to %d", len(from.values), len(to.values))
		}
		if c.Live != 9 || c.Deleted != 3 || c.Clusters != 3 || c.Values != 25 {
			t.Errorf("content %+v", c)
		}
	})
}

// TestCopy_Refuses: damage, a target with other content, and a source that changed end the copy before the target is a
// store.
func TestCopy_Refuses(t *testing.T) {
	begun := func(source *memory) *memory {
		to := &memory{killAt: 2}
		if _, err := storecopy.CopyStore(t.Context(), source, to, 1000); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		to.killAt = 0
		return to
	}
	refuses := func(name string, from, to *memory, want string) {
		t.Run(name, func(t *testing.T) {
			if _, err := storecopy.CopyStore(t.Context(), from, to, 1000); err == nil || !strings.Contains(err.Error(), want) || to.finished {
				t.Errorf("finished %v, %v", to.finished, err)
			}
		})
	}
	damaged := sample(3)
	damaged.values[2].Value[5] ^= 1
	refuses("damage", damaged, &memory{}, "the checksum is wrong")
	refuses("another store", sample(4), begun(sample(12)), storecopy.ErrOther.Error())
	lost := begun(sample(12))
	lost.values = slices.Delete(lost.values, 0, 1)
	refuses("a value is lost", sample(12), lost, "verify the copy: it has 24 values")
	unknown := begun(sample(12))
	unknown.values[len(unknown.values)-1].Key = value.BookmarkKey("other")
	refuses("the last value is unknown", sample(12), unknown, `the copy ends at f/"other"`)
}
