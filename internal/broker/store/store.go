package store

import (
	"context"
	"errors"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Head is the identity and position of a store.
type Head struct {
	StoreID     string // written at creation
	Incarnation string // random per opening
	Revision    uint64 // of the last commit, 0 when empty
	// TermStart is the first revision that this term may assign.
	TermStart uint64
}

// MaxIncarnations is how many openings a store remembers; whoever comes with a cursor
// of an older one starts anew.
const MaxIncarnations = 128

// Cursor is a position in the history of a store.
type Cursor = codec.Cursor

// Digest says which live records a party holds: those that are neither
// tombstones nor graves.
type Digest = codec.Digest

// Errors of a Store. Any other error is one of the disk or a bug: nothing of the
// batch may be acknowledged and the store refuses further commits.
var (
	// ErrNotFound: no record with this key.
	ErrNotFound = errors.New("record not found")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrReadOnly: a write failed or damage was found; restart after repair.
	ErrReadOnly = errors.New("store is read-only after an error")
	// ErrLow: the disk is nearly full, and the store shall get nothing but what makes
	// room ([Op.FreesQuota]). It would write something else all the same.
	ErrLow = errors.New("store is low on room and takes only what makes room")
	// ErrNoSpace: there is no room on the disk, or no file descriptor left. Nothing is
	// written until there is, and nothing has to be started again.
	ErrNoSpace = errors.New("store waits for room or for a file descriptor")
	// ErrBackup: another backup of the store is being made.
	ErrBackup = errors.New("another backup of this store is being made; wait until it is done")
)

// DamageError names a value whose checksum or form is wrong. The store turns
// read-only when it meets one.
type DamageError struct {
	Key  string // printable form of the storage key
	What string
}

// Error says which value is damaged.
func (e *DamageError) Error() string { return "store: damaged value at " + e.Key + ": " + e.What }

// Scope selects records of one data type: all, those of a cluster, of an
// owner, or of both.
type Scope struct {
	DataType codec.DataType
	Cluster  string // "" = all
	Owner    string // "" = all
}

// Store keeps records. All methods may be called concurrently; Commit calls
// are applied one after the other.
type Store interface {
	// Commit applies ops in order, each on the state the previous ones left,
	// writes and syncs once, and returns one outcome per op. When it returns
	// nil, everything accepted survives a power loss and is visible to Get,
	// Scan and Changes. On error nothing was applied.
	Commit(ctx context.Context, ops []Op) ([]Outcome, error)
	// Get returns the record, payloads included, or ErrNotFound.
	Get(ctx context.Context, k Key) (Record, error)
	// Meta returns the record without its payloads, or ErrNotFound.
	Meta(ctx context.Context, k Key) (Meta, error)
	// Scan calls f for the Meta of every record in scope (tombstones and graves
	// too) in key order, on one consistent snapshot. An error of f ends the
	// scan and is returned.
	Scan(ctx context.Context, s Scope, f func(Meta) error) error
	// ScanAfter is Scan of one cluster, which s names, for the records behind an id.
	ScanAfter(ctx context.Context, s Scope, id string, f func(Meta) error) error
	// Changes returns up to limit changes (at least 1) with a revision above
	// after, in revision order, each (record, part) once with its latest
	// revision. It waits until there is one or ctx ends.
	Changes(ctx context.Context, after uint64, limit int) ([]Change, error)
	// Head returns identity and position.
	Head() Head
	// Since calls f for the Meta of every record in scope of which the given
	// half changed after a revision, in the order of these changes, on one
	// consistent snapshot. For SpecPart the scope names a cluster (live records
	// and tombstones), for StatusPart an owner (what has a status, and graves);
	// another part or scope is an error. If it names both, records that the
	// other one does not fit are left out. It costs what it reports, not what
	// exists. An error of f ends it and is returned.
	Since(ctx context.Context, s Scope, part Part, after uint64, f func(Meta) error) error
	// Tombstones calls f for every tombstone of a cluster, in the order of
	// their spec revisions, as Since does. It costs what it reports.
	Tombstones(ctx context.Context, dt codec.DataType, cluster string, f func(Meta) error) error
	// ConfirmedTombstones returns the keys of an owner's graves that go when it has seen them (see
	// [Meta.CollectableWhenAcked]), with a status revision not above upTo, in the order of
	// these, at most limit (at least 1). It costs what it returns.
	ConfirmedTombstones(ctx context.Context, dt codec.DataType, owner string, upTo uint64, limit int) ([]Key, error)
	// Clusters returns the names of the clusters that have records of a data type,
	// graves aside, or were marked as subscribed to it, sorted. A grave that waits for
	// an agent of a name that is misspelt makes no cluster. It reads no disk.
	Clusters(dt codec.DataType) []string
	// ClusterHead reads no disk. Records that are gone do not count, so revision
	// and sequence id may be lower after a reopening.
	ClusterHead(dt codec.DataType, cluster string) ClusterHead
	// Rows returns the use of sources, or of clusters, by name: those after one, at most limit
	// (at least 1). It reads no disk.
	Rows(of quota.Scope, after string, limit int) []quota.Row
	// Digests returns the digest of an owner's live records, and of what waits
	// behind its tombstones to become live, on every cluster where it has some,
	// or has tombstones, sorted by cluster. It reads no disk.
	Digests(dt codec.DataType, owner string) []codec.ClusterDigest
	// ValidCursor reports whether c is a position of this store: its epoch is
	// the store's, its term is known, and its revision lies before the next
	// term's first and is not above the head. Of the terms the last [MaxIncarnations]
	// are known.
	ValidCursor(c Cursor) bool
	// MarkSubscribed remembers durably that an agent of the cluster subscribed
	// to the data type; Subscribed asks. Clusters are never unmarked except by
	// UnbindCluster. An empty uid does not replace one given earlier. From then
	// on tombstones of that cluster wait for a confirmation; until then one
	// without a status confirms itself.
	MarkSubscribed(ctx context.Context, dt codec.DataType, cluster, uid string) error
	// Subscribed returns the cluster uid an agent gave ("" when it gave none)
	// and whether any agent ever subscribed.
	Subscribed(dt codec.DataType, cluster string) (uid string, ok bool)
	// UnbindCluster removes what MarkSubscribed remembered.
	UnbindCluster(ctx context.Context, cluster string) error
	// SetBookmarks remembers small values under names durably, all of them or,
	// on an error, none; a nil value (an empty one is none such) forgets the
	// name. Names have 1 to 1024 bytes and no zero byte, values at most
	// [MaxBookmark].
	SetBookmarks(ctx context.Context, set map[string][]byte) error
	// Bookmarks returns the bookmarks whose names start with prefix; the map is
	// the caller's. It reads no disk.
	Bookmarks(prefix string) map[string][]byte
	// Err is nil while the store takes every write. Else it says why not: [ErrLow],
	// [ErrNoSpace] or [ErrReadOnly]. It does not block.
	Err() error
	// Fatal gives at most one error: why the store cannot go on, and its process
	// has to end. Whatever was not acknowledged before never will be.
	Fatal() <-chan error
	// Close wakes waiting calls of Changes with ErrClosed, waits for running
	// calls, syncs and releases the files. It must not be called from f of
	// Scan, Since or Tombstones. A second Close returns ErrClosed.
	Close() error
}
