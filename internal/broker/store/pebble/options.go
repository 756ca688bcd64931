package pebble

import (
	"crypto/rand"
	"log/slog"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options of a store. Only Dir is required.
type Options struct {
	// Dir is the directory of the store; it is created when it is missing,
	// for the owner only: works can carry Secrets.
	Dir string
	// FS is the file system, nil for that of the machine.
	FS vfs.FS
	// Log hears of failures, nil for nobody.
	Log *slog.Logger
	// NewID makes an epoch or a term: no two calls may return the same, and no
	// result may contain "/" or be empty. nil for 26 random characters.
	NewID func() string
	// CacheBytes is the size of the cache of blocks read from disk, 0 for 16 MiB.
	CacheBytes int64

	ringSize      uint64 // 0 for 4096 changes
	memTableBytes uint64 // 0 for 64 MiB; tests want to see flushes soon
}

const (
	// Idle, a broker shall fit into 80 MiB of memory, and what it reads most
	// (metas, and the specs of the last changes) are a few MiB: beyond that the
	// cache of the operating system is as good.
	defaultCacheBytes = 16 << 20
	// Works are large beside their keys: a small table would be flushed, and
	// compacted, several times a second. Two of them exist while one is flushed;
	// the engine begins with small ones, so a broker that idles from the start
	// has none of this. A batch above half of it is flushed by itself, so it must
	// exceed twice what a group commit gathers.
	defaultMemTableBytes = 64 << 20
	openFiles            = 500
	// So many of the last changes are handed over in process, without a look at
	// the disk. It is about 1 MiB.
	defaultRingSize = 4096
)

func (o *Options) setDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.NewID == nil {
		o.NewID = rand.Text
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	if o.memTableBytes == 0 {
		o.memTableBytes = defaultMemTableBytes
	}
	if o.ringSize == 0 {
		o.ringSize = defaultRingSize
	}
}

func engineOptions(o *Options, files vfs.FS, f *failure) *engine.Options {
	e := &engine.Options{
		FS:        files,
		CacheSize: o.CacheBytes,
		// The newest format of this release, by name: an upgrade of the library
		// must not make a downgrade of the broker impossible by itself.
		FormatMajorVersion: engine.FormatValueSeparation,
		MemTableSize:       o.memTableBytes,
		// Write stalls come late: a burst of works is flushed at the speed of
		// the disk, and L0 may grow while it is compacted.
		MemTableStopWritesThreshold: 4,
		// At 2 the broker spends 3 % more processor time on each publish.
		L0CompactionThreshold: 4,
		L0StopWritesThreshold: 1000,
		MaxOpenFiles:          openFiles,
		EventListener:         f.listener(),
		Logger:                logger{f},
	}
	for i := range e.Levels {
		// Most lookups of a new work are for keys that are not there.
		e.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		e.Levels[i].FilterType = engine.TableFilter
	}
	return e
}
