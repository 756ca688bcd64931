package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

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

func checkDir(ctx context.Context, files vfs.FS, dir string) (r *Report, err error) {
	lock, err := lockToRead(files, dir)
	if err == nil {
		r, err = checkLocked(ctx, files, dir, lock)
		err = errors.Join(err, lock.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("store: check %s: %w", dir, err)
	}
	return r, nil
}

// checkLocked checks a store whose lock is held.
func checkLocked(ctx context.Context, files vfs.FS, dir string, lock *engine.Lock) (*Report, error) {
	c := &checker{
		report: &Report{Dir: dir}, state: newState(),
		named: make(map[store.DamageError]bool), cut: make(map[byte]bool),
	}
	o := Options{Dir: dir}
	o.setDefaults()
	e := engineOptions(&o, files, newFailure(o.Log)) // what is found goes into the report
	e.ReadOnly, e.Lock = true, lock
	var err error
	if c.db, err = openEngine(dir, e); err != nil {
		return c.report, c.notOpened(err)
	}
	return c.report, errors.Join(c.all(ctx, files), c.db.Close())
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

// checker reads a store once, in key order, and collects what is wrong with it.
// What it keeps in memory comes first on disk, the records at the end of that;
// then comes what leads to them and what belongs to them, each kind in the order
// of its keys. So it is compared with what the records say as it is read.
type checker struct {
	state
	db     *engine.DB
	report *Report
	named  map[store.DamageError]bool
	cut    map[byte]bool // kinds of which not all could be read

	expected []expectation // what the records say, in key order once all are read
	next     int           // the first one that was not met
	turned   bool          // all records were read
}

// expectation is a value that there must be, or may be.
type expectation struct {
	key, body string
	payload   presence // never: it is an entry of an index
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

// wrong adds what is wrong with the value at a key.
func (c *checker) wrong(key []byte, format string, args ...any) {
	c.add(store.DamageError{Key: printable(key), What: fmt.Sprintf(format, args...)})
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
		c.wrong(key, "%v", err)
	}
	return nil
}

func (c *checker) all(ctx context.Context, files vfs.FS) error {
	// The others are judged by the head.
	for _, key := range [][]byte{{keyEpoch}, {keyHead}} {
		body, ok, err := get(c.db, key)
		if err == nil && !ok {
			err = damage(key, "it is missing")
		}
		if err == nil {
			_, err = c.load(key, body)
		}
		if err := c.note(key, err); err != nil {
			return err
		}
	}
	if err := c.pass(ctx); err != nil {
		return err
	}
	if len(c.terms) == 0 {
		c.wrong([]byte{keyTerm}, "there is no sound one")
	}
	mark, err := readClean(files, c.report.Dir)
	if c.report.Closed = mark != nil; mark != nil {
		err = mark.compare(c.report.Dir, &c.state)
	}
	if err := c.note([]byte(cleanName), err); err != nil {
		return err
	}
	c.summarise()
	return nil
}

// summarise ends the report.
func (c *checker) summarise() {
	r := c.report
	r.Bookmarks = len(c.marks)
	c.tally.Sort()
	r.Epoch, r.Revision = c.head.Epoch, c.head.Revision
	if n := len(c.terms); n > 0 {
		r.Term = c.terms[n-1].ID
	}
	for i := range r.Clusters {
		r.Clusters[i].Digest = c.tally.ClusterHead(r.Clusters[i].DataType, r.Clusters[i].Cluster).Digest
	}
}
