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

// Store keeps records. All methods are safe for concurrent use; Commit calls run one after the other.
type Store interface {
	// Commit applies ops in order, each on the state that the previous ones left. It writes and syncs once, and
	// returns one outcome per op. If it returns nil, everything accepted survives a power loss and is visible to
	// Get, Scan and Changes. On an error nothing was applied.
	Commit(ctx context.Context, ops []Op) ([]Outcome, error)
	// Get returns the record with its payloads, or ErrNotFound.
	Get(ctx context.Context, k Key) (Record, error)
	// Meta returns the record without its payloads, or ErrNotFound.
	Meta(ctx context.Context, k Key) (Meta, error)
	// Scan calls f for the Meta of each record in scope, tombstones and confirmed tombstones included, in key order
	// on one consistent snapshot. An error of f ends the scan and is returned.
	Scan(ctx context.Context, s Scope, f func(Meta) error) error
	// ScanAfter is Scan for one cluster, which s must name, from the first id above id.
	ScanAfter(ctx context.Context, s Scope, id string, f func(Meta) error) error
	// Changes returns up to limit changes (at least 1) with a revision above after, in revision order. Each
	// (record, part) occurs once, with its latest revision. It waits until there is one or ctx ends.
	Changes(ctx context.Context, after uint64, limit int) ([]Change, error)
	// Head returns the identity and the position of the store.
	Head() Head
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
	// Clusters returns the sorted names of the clusters that have records of a data type, or were marked as
	// subscribed to it. Confirmed tombstones do not count, so that a misspelt name with only such records is no
	// cluster. It reads no disk.
	Clusters(dt codec.DataType) []string
	// ClusterHead returns the summary of a cluster. It reads no disk. Removed records do not count, so revision and
	// sequence id may be lower after the store is opened again.
	ClusterHead(dt codec.DataType, cluster string) ClusterHead
	// Rows returns the use of sources or of clusters, sorted by name: the names above after, at most limit (at
	// least 1). It reads no disk.
	Rows(of quota.Scope, after string, limit int) []quota.Row
	// Digests returns the digests of an owner's live records and queued live specs, one per cluster, sorted by
	// cluster. Clusters where the owner only has tombstones are included. It reads no disk.
	Digests(dt codec.DataType, owner string) []codec.ClusterDigest
	// ValidCursor reports whether c is a position of this store: the store id matches, the incarnation is known,
	// and the revision belongs to it. So the revision is below the first one of the next incarnation and at most
	// the head. The last [MaxIncarnations] incarnations are known.
	ValidCursor(c Cursor) bool
	// MarkSubscribed records durably that an agent of the cluster subscribed to the data type. Only UnbindCluster
	// removes that. An empty uid does not replace an earlier one. From then on tombstones of that cluster wait for
	// a confirmation; before that, a tombstone without a status is confirmed at once.
	MarkSubscribed(ctx context.Context, dt codec.DataType, cluster, uid string) error
	// Subscribed returns the cluster uid that an agent sent ("" if it sent none), and whether any agent ever
	// subscribed.
	Subscribed(dt codec.DataType, cluster string) (uid string, ok bool)
	// UnbindCluster removes the record of MarkSubscribed.
	UnbindCluster(ctx context.Context, cluster string) error
	// SetBookmarks stores small values under names durably: all of them, or none on an error. A nil value removes
	// the name; an empty value does not. Names have 1 to 1024 bytes and no zero byte, values at most [MaxBookmark]
	// bytes.
	SetBookmarks(ctx context.Context, set map[string][]byte) error
	// Bookmarks returns the bookmarks whose names start with prefix. The caller owns the map. It reads no disk.
	Bookmarks(prefix string) map[string][]byte
	// Err returns nil while the store accepts all writes, otherwise [ErrLow], [ErrNoSpace] or [ErrReadOnly]. It
	// does not block.
	Err() error
	// Fatal delivers at most one error: the store cannot continue, and its process must end. Writes that are not
	// acknowledged yet are never acknowledged.
	Fatal() <-chan error
	// Close makes waiting calls of Changes return ErrClosed, waits for running calls, syncs and releases the files.
	// It must not be called from f of Scan, Since or Tombstones. A second Close returns ErrClosed.
	Close() error
}
