package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"slices"
	"strings"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// ErrNoStore says that a directory holds no store.
var ErrNoStore = errors.New("there is no store in this directory")

// maxNamed is how many damaged values a report names.
const maxNamed = 1000

// Report says what a store holds and what is wrong with it.
type Report struct {
	Dir   string
	Epoch string
	// Term is that of the last opening, Revision that of the last commit.
	Term     string
	Revision uint64
	// Closed: the store was closed, or is a backup. Else its broker ended
	// without, and the end of the log cannot be told from the torn write of a
	// power loss.
	Closed bool
	// Clusters has one entry for each cluster and data type with records, in
	// key order.
	Clusters []ClusterReport
	// Bookmarks and Values are how many there are, Bytes the size of all values.
	Bookmarks, Values, Bytes int
	// Damage names the first 1000 damaged values, each once; Damaged is how
	// many there are.
	Damage  []store.DamageError
	Damaged int
}

// ClusterReport is what a store holds of one data type for one cluster.
type ClusterReport struct {
	DataType codec.DataType
	Cluster  string
	// Records by state; of the live ones the digest.
	Live, Tombstones, Graves int
	Digest                   store.Digest
}

// DamagedError says that a store is damaged, and where.
type DamagedError struct{ Report *Report }

// Error names the first damage.
func (e *DamagedError) Error() string {
	first := e.Report.Damage[0]
	if e.Report.Damaged == 1 {
		return fmt.Sprintf("%s: %v", e.Report.Dir, &first)
	}
	return fmt.Sprintf("%s: %v, and %d more", e.Report.Dir, &first, e.Report.Damaged-1)
}

// Err returns a [*DamagedError], nil when nothing is damaged.
func (r *Report) Err() error {
	if r.Damaged == 0 {
		return nil
	}
	return &DamagedError{r}
}

// Check reads every value of the store in dir, which no broker may have open,
// and compares what finds records with the records, both ways. It changes
// nothing and begins no term. Damage is in the report; an error says that there
// was nothing to check, or that the check was not finished: [ErrInUse],
// [ErrNoStore], [ErrIncomplete], a [*FormatError], or the error of ctx or of the
// file system.
func Check(ctx context.Context, dir string) (*Report, error) {
	return checkDir(ctx, vfs.Default, dir)
}

func checkDir(ctx context.Context, files vfs.FS, dir string) (*Report, error) {
	lock, err := lockToRead(files, dir)
	if err != nil {
		return nil, fmt.Errorf("store: check %s: %w", dir, err)
	}
	r, err := checkLocked(ctx, files, dir, lock)
	if err = errors.Join(err, lock.Close()); err != nil {
		return nil, fmt.Errorf("store: check %s: %w", dir, err)
	}
	return r, nil
}

// lockToRead keeps brokers off a store that is there.
func lockToRead(files vfs.FS, dir string) (*engine.Lock, error) {
	if _, err := files.List(dir); err != nil {
		return nil, err
	}
	if err := checkComplete(files, dir); err != nil {
		return nil, err
	}
	return lockDirectory(frozen{files}, dir)
}

// checkLocked checks a store whose lock is held.
func checkLocked(ctx context.Context, files vfs.FS, dir string, lock *engine.Lock) (*Report, error) {
	c := &checker{
		report: &Report{Dir: dir}, tally: store.NewTally(), quiet: newFailure(slog.New(slog.DiscardHandler), nil),
		named: make(map[store.DamageError]bool), unreadable: make(map[string]bool), behind: make(map[store.Key]string),
	}
	if err := c.open(files, lock); err != nil {
		return c.report, c.notOpened(err)
	}
	c.seek = newSeeker(c.db, c.quiet)
	err := c.all(ctx, files)
	if err = errors.Join(err, c.note(nil, c.seek.close()), c.db.Close()); err != nil {
		return nil, err
	}
	return c.report, nil
}

func (c *checker) open(files vfs.FS, lock *engine.Lock) (err error) {
	defer func() {
		if p := recover(); p != nil { // what the engine does about some damage
			err = fmt.Errorf("%w: %v", errFatal, p)
		}
	}()
	o := Options{Dir: c.report.Dir}
	o.setDefaults()
	e := engineOptions(&o, frozen{files}, c.quiet)
	e.ReadOnly, e.Lock = true, lock
	c.db, err = engine.Open(o.Dir, e)
	return err
}

// notOpened makes damage of what keeps the engine from opening.
func (c *checker) notOpened(err error) error {
	switch {
	case errors.Is(err, engine.ErrDBDoesNotExist):
		return ErrNoStore
	case errors.Is(err, fs.ErrPermission):
		return err
	default:
		c.add(store.DamageError{Key: c.report.Dir, What: err.Error()})
		return nil
	}
}

// checker collects what is wrong with one store.
type checker struct {
	db     *engine.DB
	seek   *seeker
	report *Report
	named  map[store.DamageError]bool
	tally  *store.Tally
	quiet  *failure // what is found goes into the report
	// unreadable are the metas, by what follows the kind in their keys, of which
	// is known already that they are damaged.
	unreadable map[string]bool
	behind     map[store.Key]string // id that waits to the id of its tombstone
	terms      []term
	head       uint64
	cut        bool // not all metas could be read
}

func (c *checker) add(d store.DamageError) {
	if c.named[d] {
		return
	}
	c.report.Damaged++
	if len(c.report.Damage) < maxNamed {
		c.named[d] = true
		c.report.Damage = append(c.report.Damage, d)
	}
}

// note takes down what is wrong with a value, so that the check goes on with the
// next one. What makes the whole check useless comes back.
func (c *checker) note(key []byte, err error) error {
	var damaged *store.DamageError
	var newer *FormatError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &newer), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &damaged):
		c.add(*damaged)
	default: // the disk does not give it back
		c.add(store.DamageError{Key: printable(key), What: err.Error()})
	}
	return nil
}

// all checks everything. The order is that in which damage is understood best.
func (c *checker) all(ctx context.Context, files vfs.FS) error {
	for _, step := range []func(context.Context) error{
		c.identity, func(context.Context) error { return c.closed(files) },
		c.records, c.names, c.owners, c.feed, c.subscriptions, c.bookmarks, c.unknown,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	c.tally.Sort()
	for i := range c.report.Clusters {
		r := &c.report.Clusters[i]
		r.Digest = c.tally.ClusterHead(r.DataType, r.Cluster).Digest
	}
	return nil
}

// walk calls f for every sound value whose key starts with lead, in key order;
// lost, if it is not nil, hears of the keys of the others.
func (c *checker) walk(ctx context.Context, lead []byte, f func(key, body []byte) error, lost func(key []byte) error) (err error) {
	it, err := c.db.NewIter(&engine.IterOptions{LowerBound: lead, UpperBound: after(lead)})
	if err != nil {
		return c.note(lead, err)
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = c.note(lead, cerr)
		}
	}()
	for it.First(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		body, err := c.value(it)
		if err == nil {
			err = f(it.Key(), body)
		} else if lost != nil {
			err = errors.Join(err, lost(it.Key()))
		}
		if err := c.note(it.Key(), err); err != nil {
			return err
		}
	}
	if it.Error() != nil && len(lead) > 0 && lead[0] == keyMeta {
		c.cut = true
	}
	return c.note(lead, it.Error())
}

func (c *checker) value(it *engine.Iterator) ([]byte, error) {
	v, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	c.report.Values++
	c.report.Bytes += len(v)
	return unseal(it.Key(), v)
}

// identity checks what the store is, and its terms.
func (c *checker) identity(ctx context.Context) error {
	epoch, ok, err := c.seek.get([]byte{keyEpoch})
	if err == nil && !ok {
		err = damage([]byte{keyEpoch}, "it is missing")
	}
	if err := c.note([]byte{keyEpoch}, err); err != nil {
		return err
	}
	c.report.Epoch = string(epoch)
	if err := c.loadHead(); err != nil {
		return err
	}
	if err := c.walk(ctx, []byte{keyTerm}, c.term, nil); err != nil {
		return err
	}
	if len(c.terms) == 0 {
		return c.note(nil, damage([]byte{keyTerm}, "there is no sound one"))
	}
	return nil
}

func (c *checker) loadHead() error {
	key := []byte{keyHead}
	body, ok, err := c.seek.get(key)
	if err == nil && !ok {
		err = damage(key, "it is missing")
	}
	if err == nil {
		if c.head, err = decodeNumber(body); err == nil {
			c.report.Revision = c.head
			return nil
		}
		err = damage(key, err.Error())
	}
	c.head = math.MaxUint64 - 1 // nothing is above what is not known
	return c.note(key, err)
}

func (c *checker) term(key, body []byte) error {
	if _, err := parseNumberKey(key); err != nil {
		return err
	}
	t, err := decodeTerm(body)
	if err != nil {
		return damage(key, err.Error())
	}
	var before term
	if n := len(c.terms); n > 0 {
		before = c.terms[n-1]
	}
	known := slices.ContainsFunc(c.terms, func(o term) bool { return o.id == t.id })
	c.terms = append(c.terms, t)
	c.report.Term = t.id
	switch {
	case known || t.id == "":
		return damage(key, "another term has its id, or it has none")
	case t.first < before.first:
		return damage(key, fmt.Sprintf("it begins at revision %d, before the one before it at %d", t.first, before.first))
	case t.first > c.head+1:
		return damage(key, fmt.Sprintf("it begins at revision %d, above the head %d", t.first, c.head))
	}
	return nil
}

// closed compares the store with what its last Close wrote.
func (c *checker) closed(files vfs.FS) error {
	mark, ok, err := readClean(files, c.report.Dir)
	if c.report.Closed = ok; ok {
		err = mark.compare(c.report.Dir, c.terms, c.head)
	}
	return c.note([]byte(cleanName), err)
}

// subscriptions checks what MarkSubscribed remembers.
func (c *checker) subscriptions(ctx context.Context) error {
	return c.walk(ctx, []byte{keyCluster}, func(key, _ []byte) error {
		dt, cluster, err := parseClusterKey(key)
		if err == nil {
			if cerr := store.CheckPlace(dt, cluster); cerr != nil {
				err = damage(key, cerr.Error())
			}
		}
		return err
	}, nil)
}

func (c *checker) bookmarks(ctx context.Context) error {
	return c.walk(ctx, []byte{keyBookmark}, func(key, body []byte) error {
		c.report.Bookmarks++
		if err := store.CheckBookmarks(map[string][]byte{string(key[1:]): body}); err != nil {
			return damage(key, err.Error())
		}
		return nil
	}, nil)
}

// kinds are those of the keys that this release writes, but for the two that
// stand alone.
const kinds = string(keyMeta) + string(keySpec) + string(keyStatus) + string(keyWaiting) + string(keyName) +
	string(keyOwner) + string(keyRevision) + string(keyCluster) + string(keyBookmark) + string(keyTerm)

// unknown looks for keys that no release wrote.
func (c *checker) unknown(ctx context.Context) (err error) {
	it, err := c.db.NewIter(nil)
	if err != nil {
		return c.note(nil, err)
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = c.note(nil, cerr)
		}
	}()
	for valid := it.First(); valid; {
		if err := ctx.Err(); err != nil {
			return err
		}
		key := it.Key()
		if len(key) > 0 && strings.IndexByte(kinds, key[0]) >= 0 {
			valid = it.SeekGE(after(key[:1]))
			continue
		}
		_, err := c.value(it)
		if alone := len(key) == 1 && (key[0] == keyEpoch || key[0] == keyHead); err == nil && !alone {
			err = damage(key, "no release wrote such a key")
		}
		if err := c.note(key, err); err != nil {
			return err
		}
		valid = it.Next()
	}
	return c.note(nil, it.Error())
}
