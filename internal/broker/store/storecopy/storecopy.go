// Package storecopy copies a store that no broker uses into another engine. It copies the values under their storage
// keys, in the same bytes, so that store id, revisions and cursors stay the same and no client starts from the
// beginning.
//
// A copy that was interrupted continues. The target keeps the key of the last value that it has, in the transaction
// that wrote it. The source returns its values in the same order again. All of them are read again, so that the
// digest at the end is about all of the source:
//
//	t1: a migration writes some values to the target, and is killed.
//	t2: the next one skips these values, and writes the others.
//	t3: it reads the target, and compares the digests of both.
//	t4: the target becomes a store; until then no broker opens it.
package storecopy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
)

var (
	// ErrNotEmpty means that the target has a store, or other data.
	ErrNotEmpty = errors.New("the target of the migration is not empty")
	// ErrOther means that the target has an incomplete copy of another store, or that the source has changed since.
	ErrOther = errors.New("the target has an incomplete copy of another store, or of this one before it changed")
)

// Reader reads a store.
type Reader interface {
	// Values calls f for each value of the kinds Incarnation, Bookmark, Meta, Spec, Status and Queued of package value.
	// The order is always the same; records of one cluster follow each other. The slices are valid during the call.
	Values(ctx context.Context, f func(value.Stored) error) error
}

// Source is a store that does not change.
type Source interface {
	Reader
	// Head returns the head, with the last incarnation.
	Head() store.Head
}

// Target is an empty store, or an incomplete copy.
type Target interface {
	Reader
	// Begin begins the copy of a store, or continues it. It returns the key of the last value that the target has, nil
	// if it has none. Errors are ErrNotEmpty and ErrOther.
	Begin(ctx context.Context, of store.Head) (last []byte, err error)
	// Write writes the values that follow, with all that the engine derives from them, in one transaction.
	Write(ctx context.Context, values []value.Stored) error
	// Finish makes a store of the complete copy.
	Finish(ctx context.Context, of store.Head) error
}

// Mark identifies the store of a copy. It changes with each revision, and when a broker opens the store.
func Mark(of store.Head) string {
	return fmt.Sprintf("%s %s %d", of.StoreID, of.Incarnation, of.Revision)
}

// Content is the content of a store, without its head. Two stores have the same content if their Contents are equal.
type Content struct {
	Live, Deleted int // records
	Clusters      int // pairs of a cluster and a data type
	Values        int
	Bytes         int
	// Digest is the sum modulo 2 of the SHA-256 of all values with their keys, so it does not depend on their order.
	Digest [sha256.Size]byte
}

// ContentOf reads all values of a store, and verifies their checksums.
func ContentOf(ctx context.Context, r Reader) (Content, error) {
	var t tally
	err := r.Values(ctx, t.add)
	return t.Content, err
}

// tally adds values to a Content.
type tally struct {
	Content
	last memindex.ClusterKey // of the last record
}

func (t *tally) add(v value.Stored) error {
	body, err := value.Unseal(v.Key, v.Value)
	if err != nil {
		return err
	}
	t.Values++
	t.Bytes += len(v.Value)
	sum := sha256.Sum256(bytes.Join([][]byte{v.Key, body}, []byte{value.Separator}))
	subtle.XORBytes(t.Digest[:], t.Digest[:], sum[:])
	if v.Key[0] != value.Meta {
		return nil
	}
	m, err := value.ParseMeta(v.Key, body)
	if err != nil {
		return err
	}
	if m.State == store.Live {
		t.Live++
	} else {
		t.Deleted++
	}
	if in := (memindex.ClusterKey{DataType: m.DataType, Cluster: m.Cluster}); in != t.last {
		t.last = in
		t.Clusters++
	}
	return nil
}

// batchBytes is the size of the values that are written at once.
const batchBytes = 1 << 20

// Copy copies a store, or continues a copy. It returns the content of both. If it returns nil, the target is complete
// and on disk.
func Copy(ctx context.Context, from Source, to Target) (Content, error) {
	return copyStore(ctx, from, to, batchBytes)
}

func copyStore(ctx context.Context, from Source, to Target, limit int) (Content, error) {
	head := from.Head()
	last, err := to.Begin(ctx, head)
	if err != nil {
		return Content{}, err
	}
	c := copier{to: to, last: last, limit: limit}
	err = from.Values(ctx, func(v value.Stored) error { return c.add(ctx, v) })
	if err == nil {
		err = c.end(ctx)
	}
	if err != nil {
		return c.Content, err
	}
	copied, err := ContentOf(ctx, to)
	switch {
	case err != nil:
		return c.Content, fmt.Errorf("verify the copy: %w", err)
	case copied != c.Content:
		return c.Content, fmt.Errorf("verify the copy: it has %d values with digest %x, the source has %d with %x", copied.Values, copied.Digest, c.Values, c.Digest)
	}
	return copied, to.Finish(ctx, head)
}

// copier collects the values behind the last one of the target, and writes them in batches.
type copier struct {
	tally
	to    Target
	last  []byte // last key of the target that was not read yet; nil: it was read, or there is none
	limit int    // bytes of a batch
	batch []value.Stored
	size  int // of the batch
}

func (c *copier) add(ctx context.Context, v value.Stored) error {
	if err := c.tally.add(v); err != nil {
		return err
	}
	if c.last != nil {
		if bytes.Equal(v.Key, c.last) {
			c.last = nil
		}
		return nil
	}
	c.batch = append(c.batch, value.Stored{Key: bytes.Clone(v.Key), Value: bytes.Clone(v.Value)})
	if c.size += len(v.Key) + len(v.Value); c.size < c.limit {
		return nil
	}
	return c.write(ctx)
}

func (c *copier) write(ctx context.Context) error {
	if len(c.batch) == 0 {
		return nil
	}
	err := c.to.Write(ctx, c.batch)
	c.batch, c.size = c.batch[:0], 0
	return err
}

func (c *copier) end(ctx context.Context) error {
	if c.last != nil { // a source that does not change has it
		return fmt.Errorf("the copy ends at %s, which the source does not have: %w", value.PrintableKey(c.last), ErrOther)
	}
	return c.write(ctx)
}
