package store

import (
	"context"
	"errors"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Head is the identity and position of a store.
type Head struct {
	StoreID     string // identity of the store, written at creation
	Incarnation string // random id of this opening
	Revision    uint64 // of the last commit, 0 if empty
	// FirstRevision is the first revision that this incarnation may assign.
	FirstRevision uint64
}

// MaxIncarnations is the number of openings that a store remembers. A client with an older cursor starts from
// the beginning.
const MaxIncarnations = 128

// Cursor is a position in the history of a store.
type Cursor = codec.Cursor

// Digest identifies the set of live records that a client holds. It excludes tombstones and confirmed
// tombstones.
type Digest = codec.Digest

// Errors of a Store. Any other error comes from the disk or a bug: then nothing of the batch may be
// acknowledged, and the store rejects further commits.
var (
	// ErrNotFound: there is no record with this key.
	ErrNotFound = errors.New("record not found")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrReadOnly: a write failed or damage was found; restart after repair.
	ErrReadOnly = errors.New("store is read-only after an error")
	// ErrLow: the disk is nearly full, and callers must only write ops that free space ([Op.FreesQuota]). The store
	// itself does not enforce that.
	ErrLow = errors.New("store is low on disk space and accepts only deletions")
	// ErrNoSpace: the disk is full, or no file descriptor is left. Writes fail until there is space; no restart is
	// needed.
	ErrNoSpace = errors.New("store is read-only until disk space or a file descriptor is free")
	// ErrCompacted: the store has dropped removals that the reader of the feed has not seen. The reader must begin
	// again, from the state of the store.
	ErrCompacted = errors.New("the change feed no longer has all removals since this revision")
	// ErrUnavailable: the database of the store does not answer, or rejects writes. Nothing of the batch may be
	// acknowledged. A later call may succeed.
	ErrUnavailable = errors.New("the database of the store is not available")
	// ErrBackup: another backup of the store is being made.
	ErrBackup = errors.New("another backup of this store is being made; wait until it is done")
)

// DamageError names a value with a wrong checksum or form. The store becomes read-only when it reads one.
type DamageError struct {
	Key  string // printable form of the storage key
	What string
}

// Error names the damaged value.
func (e *DamageError) Error() string { return "store: damaged value at " + e.Key + ": " + e.What }

// Scope selects records of one data type: all, those of a cluster, those of an owner, or both.
type Scope struct {
	DataType codec.DataType
	Cluster  string // "" = all
	Owner    string // "" = all
}

// Committer writes.
type Committer interface {
	// Commit applies ops in order, each on the state that the previous ones left. It writes and syncs once, and
	// returns one outcome per op. If it returns nil, everything accepted survives a power loss and is visible to
	// Get, Scan and Changes. On an error nothing was applied. Commit calls run one after the other.
	Commit(ctx context.Context, ops []Op) ([]Outcome, error)
	// Err returns nil while the store accepts all writes, otherwise [ErrLow], [ErrNoSpace], [ErrReadOnly] or
	// [ErrUnavailable]. It does not block.
	Err() error
}

// Records reads records.
type Records interface {
	// Get returns the record with its payloads, or ErrNotFound.
	Get(ctx context.Context, k Key) (Record, error)
	// Meta returns the record without its payloads, or ErrNotFound.
	Meta(ctx context.Context, k Key) (Meta, error)
	// Scan calls f for the Meta of each record in scope, tombstones and confirmed tombstones included, in key order
	// on one consistent snapshot. An error of f ends the scan and is returned.
	Scan(ctx context.Context, s Scope, f func(Meta) error) error
	// ScanAfter is Scan for one cluster, which s must name, from the first id above id.
	ScanAfter(ctx context.Context, s Scope, id string, f func(Meta) error) error
	// Since calls f for the Meta of each record in scope whose given part changed after a revision. The order is
	// that of these changes, on one consistent snapshot. For SpecPart the scope must name a cluster; the result is
	// live records and tombstones. For StatusPart it must name an owner; the result is records with a status and
	// confirmed tombstones. Another part or scope is an error. If the scope names both, only records that match
	// both are reported. The cost depends on the number of results, not of records. An error of f ends it and is
	// returned.
	Since(ctx context.Context, s Scope, part Part, after uint64, f func(Meta) error) error
	// Tombstones calls f for each unconfirmed tombstone of a cluster, in the order of their spec revisions, as
	// Since does. The cost depends on the number of results.
	Tombstones(ctx context.Context, dt codec.DataType, cluster string, f func(Meta) error) error
	// ConfirmedTombstones returns the keys of an owner's confirmed tombstones that are collectable when
	// acknowledged (see [Meta.CollectableWhenAcked]). It returns those with a status revision of at most upTo, in
	// the order of these, at most limit (at least 1). The cost depends on the number of results.
	ConfirmedTombstones(ctx context.Context, dt codec.DataType, owner string, upTo uint64, limit int) ([]Key, error)
}

// Feed is the change feed.
type Feed interface {
	// Changes returns up to limit changes (at least 1) with a revision above after, in revision order. Each part of
	// a record, and each bookmark, occurs once, with its latest revision. Only a removal may also occur before the
	// change that undid it. Changes waits until there is a change or ctx ends. It returns ErrCompacted if it has no
	// longer all removals above after. A reader that begins at 0 has nothing, so it needs none of them.
	Changes(ctx context.Context, after uint64, limit int) ([]Change, error)
	// Passed informs the store that this process needs no change up to a revision any more. The store keeps each
	// removal until all processes that use it have passed it; opening a store is a new process.
	Passed(revision uint64)
}

// Replica is what one process of the broker keeps in memory about a store. It is a function of the change feed
// up to the revision of Head. Only Reach and Replicas wait; no other method reads a disk.
type Replica interface {
	// Head returns the identity of the store and the position of the replica.
	Head() Head
	// Reach waits until the replica has the changes that were committed before the call, by any process.
	Reach(ctx context.Context) error
	// Replicas returns the ids of the processes that have the store open now, this one first. Each opening has another
	// id. A process that crashed may count for some seconds.
	Replicas(ctx context.Context) ([]string, error)
	// ValidCursor reports whether c is a position of this store: the store id matches, the incarnation is known,
	// and the revision belongs to it. So the revision is below the first one of the next incarnation and at most
	// the head. The last [MaxIncarnations] incarnations are known.
	ValidCursor(c Cursor) bool
	// Clusters returns the sorted names of the clusters that have records of a data type, or a binding. Confirmed
	// tombstones do not count, so that a misspelt name with only such records is no cluster.
	Clusters(dt codec.DataType) []string
	// ClusterHead returns the summary of a cluster. Removed records do not count, so revision and sequence id may be
	// lower after the store is opened again.
	ClusterHead(dt codec.DataType, cluster string) ClusterHead
	// Rows returns the use of sources or of clusters, sorted by name: the names above after, at most limit (at
	// least 1).
	Rows(of quota.Scope, after string, limit int) []quota.Row
	// Digests returns the digests of an owner's live records and queued live specs, one per cluster, sorted by
	// cluster. Clusters where the owner only has tombstones are included.
	Digests(dt codec.DataType, owner string) []codec.ClusterDigest
	// Subscribed returns the cluster uid that is bound to a name ("" if no agent sent one), and whether any agent
	// ever subscribed; see [BindCluster].
	Subscribed(dt codec.DataType, cluster string) (uid string, ok bool)
	// Bookmark returns the bookmark with a name. Bindings are not bookmarks here and in Bookmarks. The value must
	// not be modified.
	Bookmark(name string) (b Bookmark, ok bool)
	// Bookmarks returns the values of the bookmarks whose names start with prefix. The caller owns the map.
	Bookmarks(prefix string) map[string][]byte
}

// Store keeps records, and small values beside them. All methods are safe for concurrent use.
type Store interface {
	Committer
	Records
	Feed
	Replica
	// Fatal delivers at most one error: the store cannot continue, and its process must end. Writes that are not
	// acknowledged yet are never acknowledged. A shared store may have lost commits that this process has seen. Then
	// no later call returns anything of the history that replaced them, so a position in the feed needs no
	// incarnation.
	Fatal() <-chan error
	// Close makes waiting calls of Changes return ErrClosed, waits for running calls, syncs and releases the files.
	// It must not be called from f of Scan, Since or Tombstones. A second Close returns ErrClosed.
	Close() error
}
