package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// ErrNoStore means that the directory holds no store.
var ErrNoStore = errors.New("there is no store in this directory")

// maxNamed is the maximum number of damaged values that a report names.
const maxNamed = 1000

// Report describes the content of a store and its damage.
type Report struct {
	Dir     string
	StoreID string
	// Incarnation is the id of the last opening, Revision that of the last commit.
	Incarnation string
	Revision    uint64
	// Closed is true if the store was closed, or is a backup. Otherwise its broker ended without a close. Then a
	// lost end of the log looks like the torn write of a power loss.
	Closed bool
	// Clusters has one entry per cluster and data type with records, in key order.
	Clusters []ClusterReport
	// Bookmarks and Values are counts, Bytes is the size of all values.
	Bookmarks, Values, Bytes int
	// Damage names the first 1000 damaged values, each once. Damaged is their total number.
	Damage  []store.DamageError
	Damaged int
}

// ClusterReport describes the records of one data type for one cluster.
type ClusterReport struct {
	DataType codec.DataType
	Cluster  string
	// Number of records by state, and the digest of the live ones.
	Live, Tombstones, ConfirmedTombstones int
	Digest                                store.Digest
}

// DamagedError is the error about a damaged store.
type DamagedError struct{ Report *Report }

// Error names the first damage.
func (e *DamagedError) Error() string {
	first := e.Report.Damage[0]
	if e.Report.Damaged == 1 {
		return fmt.Sprintf("%s: %v", e.Report.Dir, &first)
	}
	return fmt.Sprintf("%s: %v, and %d more", e.Report.Dir, &first, e.Report.Damaged-1)
}

// Err returns a [*DamagedError], or nil if nothing is damaged.
func (r *Report) Err() error {
	if r.Damaged == 0 {
		return nil
	}
	return &DamagedError{r}
}

// Check reads all values of the store in dir, which no broker may have open, and compares the indexes with the
// records in both directions. It changes nothing and begins no incarnation. The report has the damage. An error
// means that the check is not complete. It is [ErrInUse], [ErrNoStore], [ErrIncomplete], a [*FormatError], or
// the error of ctx or of the file system.
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
		report: &Report{Dir: dir}, memIndex: newState(),
		named: make(map[store.DamageError]bool), cut: make(map[byte]bool),
	}
	o := Options{Dir: dir}
	o.setDefaults()
	e := engineOptions(&o, files, newFailure(o.Log)) // damage goes into the report
	e.ReadOnly, e.Lock = true, lock
	var err error
	if c.db, err = openEngine(dir, e); err != nil {
		return c.report, c.notOpened(err)
	}
	return c.report, errors.Join(c.all(ctx, files), c.db.Close())
}

// notOpened reports damage that prevents the engine from opening.
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

// checker reads a store once, in key order, and collects the damage. In key order, the values that it keeps in
// memory come first, the records as the last of them. Then come index entries and payloads. So it compares each
// index entry and payload with the records when it reads it.
type checker struct {
	memIndex
	db     *engine.DB
	report *Report
	named  map[store.DamageError]bool
	cut    map[byte]bool // kinds that could not be read completely

	expected []expectation // values that the records need; sorted by key once all records are read
	next     int           // index of the first expectation that was not found yet
	turned   bool          // all records are read
}

// expectation is a value that must exist, or may exist.
type expectation struct {
	key, body string
	payload   presence // the value never for an index entry
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

// wrong adds damage of the value at a key.
func (c *checker) wrong(key []byte, format string, args ...any) {
	c.add(store.DamageError{Key: value.PrintableKey(key), What: fmt.Sprintf(format, args...)})
}

// note adds err to the report, so that the check continues with the next value. It returns errors that make the
// whole check useless.
func (c *checker) note(key []byte, err error) error {
	var damaged *store.DamageError
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(*value.FormatError)), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &damaged):
		c.add(*damaged)
	default: // the disk cannot read the value
		c.wrong(key, "%v", err)
	}
	return nil
}

func (c *checker) all(ctx context.Context, files vfs.FS) error {
	// Read these first, because the other values are compared with the head.
	for _, key := range [][]byte{{keyStoreID}, {keyHead}} {
		body, ok, err := get(c.db, key)
		if err == nil && !ok {
			err = value.Damage(key, "it is missing")
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
	if n := len(c.state.Incarnations); n > 0 {
		c.report.Incarnation = c.state.Incarnations[n-1].ID
	} else {
		c.wrong([]byte{value.Incarnation}, "there is no undamaged incarnation")
	}
	r := c.report
	mark, err := readClean(files, r.Dir)
	if r.Closed = mark != nil; mark != nil {
		err = mark.compare(r.Dir, &c.memIndex)
	}
	if err := c.note([]byte(cleanName), err); err != nil {
		return err
	}
	r.StoreID, r.Revision, r.Bookmarks = c.state.At.StoreID, c.state.At.Revision, c.state.Bookmarks.Len()
	c.state.Tally.Sort()
	for i := range r.Clusters {
		in := &r.Clusters[i]
		h := c.state.Tally.ClusterHead(in.DataType, in.Cluster)
		in.Live, in.Tombstones, in.Digest = int(h.Digest.Count), h.Tombstones, h.Digest
	}
	return nil
}

// kinds are the first bytes of all keys, in key order.
var kinds = slices.Sorted(slices.Values(slices.Concat(loaded[:], []byte{value.Removal, keyName, keyOwner, value.Revision}, payloads[:])))

// pass reads all values. If the disk cannot read one, it continues with the next kind.
func (c *checker) pass(ctx context.Context) (err error) {
	it, err := c.db.NewIter(nil)
	if err != nil {
		return c.note(nil, err)
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = c.note(nil, cerr)
		}
	}()
	at := byte(0)
	for valid := it.First(); ; {
		for ; valid; valid = it.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			at = it.Key()[0]
			if err := c.note(it.Key(), c.value(it)); err != nil {
				return err
			}
		}
		if it.Error() == nil {
			break
		}
		c.wrong([]byte{at}, "%v", it.Error())
		c.cut[at] = true
		i := slices.IndexFunc(kinds, func(k byte) bool { return k > at })
		if i < 0 {
			break
		}
		at = kinds[i]
		valid = it.SeekGE([]byte{at})
	}
	c.yield()
	c.missing(nil)
	return nil
}

// value checks one value.
func (c *checker) value(it *engine.Iterator) error {
	key := it.Key()
	v, err := it.ValueAndErr()
	if err != nil {
		return err
	}
	c.report.Values++
	c.report.Bytes += len(v)
	body, err := value.Unseal(key, v)
	if key[0] > value.Meta {
		return c.compare(key, body, err)
	}
	if err != nil {
		return err
	}
	if key[0] == value.Removal {
		return c.removal(key, body)
	}
	m, err := c.load(key, body)
	switch {
	case err != nil:
		return err
	case m != nil:
		c.record(key, m)
	case key[0] == value.Incarnation:
		c.incarnation(key)
	case key[0] == keyFormerCluster:
		dt, cluster, err := parseFormerClusterKey(key)
		if err == nil {
			err = store.CheckScope(dt, cluster)
		}
		if err != nil {
			c.wrong(key, "%v", err)
		}
	case key[0] == value.Bookmark, key[0] == keyFormerBookmark:
		c.bookmark(key)
	}
	return nil
}

// removal checks a removal in the feed. What it removed may be there again.
func (c *checker) removal(key, body []byte) error {
	e, err := value.DecodeChange(key, body)
	if err == nil && e.Revision > c.highest() {
		err = value.Damage(key, fmt.Sprintf("its revision is above the head %d", c.state.At.Revision))
	}
	return err
}

// bookmark checks the bookmark that was read last. It adds the expected entry in the feed, which only former
// formats lack.
func (c *checker) bookmark(key []byte) {
	name := string(key[1:])
	v := c.state.Bookmarks.Get(name)
	if what := store.CheckBookmark(name, v.Value); what != "" {
		c.wrong(key, "%s", what)
	}
	if v.Revision > c.highest() {
		c.wrong(key, "its revision %d is above the head %d", v.Revision, c.state.At.Revision)
	}
	if v.Revision != 0 {
		e := bookmarkChange(name, *v)
		c.expected = append(c.expected, expectation{key: string(value.NumberKey(value.Revision, v.Revision)), body: string(value.AppendChange(nil, &e))})
	}
}

// incarnation checks the incarnation that was read last.
func (c *checker) incarnation(key []byte) {
	n := len(c.state.Incarnations) - 1
	t := c.state.Incarnations[n]
	var before memindex.Incarnation
	if n > 0 {
		before = c.state.Incarnations[n-1]
	}
	switch {
	case t.ID == "" || slices.ContainsFunc(c.state.Incarnations[:n], func(o memindex.Incarnation) bool { return o.ID == t.ID }):
		c.wrong(key, "its id is empty, or another incarnation has the same id")
	case t.First < before.First:
		c.wrong(key, "it begins at revision %d, below the previous incarnation at %d", t.First, before.First)
	case t.First > c.highest()+1:
		c.wrong(key, "it begins at revision %d, above the head %d", t.First, c.state.At.Revision)
	}
}

// record checks one record and adds the expected index entries and payloads.
func (c *checker) record(key []byte, m *store.Meta) {
	c.count(m)
	for _, what := range c.form(m) {
		c.wrong(key, "%s", what)
	}
	if id := store.QueuedID(m); id != "" {
		if other, twice := c.behind[m.Key.Beside(id)]; twice {
			c.wrong(key, "%q is queued behind it, and also behind %q", id, other)
		}
	}
	c.addRecord(m)
	var buffer [maxEntries]entry
	for _, e := range entries(buffer[:0], m) {
		c.expected = append(c.expected, expectation{key: string(e.appendKey(nil, m.Key)), body: string(e.appendBody(nil, m))})
	}
	for _, kind := range payloads {
		if is := payloadOf(kind, m); is != never {
			c.expected = append(c.expected, expectation{key: string(value.Key(kind, m.Key)), payload: is})
		}
	}
}

// count adds to the report what the tally does not count. Records of one cluster and data type are adjacent in
// key order.
func (c *checker) count(m *store.Meta) {
	n := len(c.report.Clusters)
	if n == 0 || c.report.Clusters[n-1].DataType != m.DataType || c.report.Clusters[n-1].Cluster != m.Cluster {
		c.report.Clusters = append(c.report.Clusters, ClusterReport{DataType: m.DataType, Cluster: m.Cluster})
		n++
	}
	if m.State == store.ConfirmedTombstone {
		c.report.Clusters[n-1].ConfirmedTombstones++
	}
}

// form returns the inconsistencies of a meta.
func (c *checker) form(m *store.Meta) []string {
	var out []string
	must := func(ok bool, what string) {
		if !ok {
			out = append(out, what)
		}
	}
	confirmed, above := m.State == store.ConfirmedTombstone, c.aboveHead(m)
	must(m.Owner != "" && m.Name != "", "it has no owner or no name")
	must(m.SpecRevision != 0, "it has no revision")
	must(above == "", above)
	must(m.State != store.Live || m.DeletedAt.IsZero(), "it is live and has a deletion time")
	must(confirmed == !m.ConfirmedAt.IsZero(), "it is a confirmed tombstone without a time of confirmation, or the reverse")
	must(!confirmed || m.StatusRevision != 0, "it is a confirmed tombstone without a final status")
	must(m.Queued == nil || m.State == store.Tombstone, "it has a queued spec, but is no tombstone")
	must(confirmed || !m.SpecSupersedes || m.Version <= m.Superseded, "its version is above the one it superseded")
	if w := m.Queued; w != nil {
		must(w.Owner == m.Owner, "its queued spec has another owner")
		must(w.ResourceID != "" && w.Name != "", "its queued spec has no id or no name")
		must(w.ResourceID != m.ResourceID || !w.Deleting, "it has its own deletion as queued spec")
	}
	return out
}

// yield is called when all records are read: it sorts the expectations and finds conflicts between them.
func (c *checker) yield() {
	if c.turned {
		return
	}
	c.turned = true
	slices.SortStableFunc(c.expected, func(a, b expectation) int { return strings.Compare(a.key, b.key) })
	c.expected = slices.CompactFunc(c.expected, func(a, b expectation) bool {
		if a.key != b.key {
			return false
		}
		c.wrong([]byte(a.key), "it belongs to two records: %s and %s", a.record(), b.record())
		return true
	})
	for k, tombstone := range c.behind {
		c.waits(k, k.Beside(tombstone))
	}
}

// waits checks the id k of a spec that is queued behind a tombstone. The only record of such an id may be a
// confirmed tombstone of the same owner.
func (c *checker) waits(k, tombstone store.Key) {
	r, ok := c.lookup(k)
	t, tok := c.lookup(tombstone)
	switch {
	case !ok || !tok || r == nil || t == nil:
	case r.State != store.ConfirmedTombstone:
		c.wrong(value.Key(value.Meta, tombstone), "%q is queued behind it, but has a record that is no confirmed tombstone", k.ResourceID)
	case r.Owner != t.Owner:
		c.wrong(value.Key(value.Meta, tombstone), "%q is queued behind it, but its confirmed tombstone has another owner", k.ResourceID)
	}
}

// lookup returns a record, nil if there is none. ok is false if it cannot be read; then the report has the
// damage.
func (c *checker) lookup(k store.Key) (m *store.Meta, ok bool) {
	m, err := getMeta(c.db, k)
	return m, err == nil
}

// record returns the printable key of the record or the bookmark of an expectation.
func (x expectation) record() string {
	key, err := leadsTo([]byte(x.key), []byte(x.body))
	if err != nil { // cannot happen: the key was made from a record
		return value.PrintableKey([]byte(x.key))
	}
	return value.PrintableKey(key)
}

// missing adds damage for each expectation with a key below before that was not found. nil means all keys.
func (c *checker) missing(before []byte) {
	for ; c.next < len(c.expected) && (before == nil || c.expected[c.next].key < string(before)); c.next++ {
		if x := c.expected[c.next]; x.payload != maybe && !c.cut[x.key[0]] {
			c.wrong([]byte(x.key), "it is missing, and %s must have it", x.record())
		}
	}
}

// compare compares a value that comes after the records with the expectations. err is set if the value cannot
// be read.
func (c *checker) compare(key, body []byte, err error) error {
	c.yield()
	c.missing(key)
	if c.next == len(c.expected) || c.expected[c.next].key != string(key) {
		if err == nil {
			err = c.unexpected(key, body)
		}
		return err
	}
	x := c.expected[c.next]
	c.next++
	if err != nil || x.payload != never || x.body == string(body) {
		return err
	}
	if key[0] == value.Revision {
		is, err := value.DecodeChange(key, body)
		if err != nil {
			return err
		}
		must, err := value.DecodeChange(key, []byte(x.body))
		if err != nil {
			return err
		}
		// A status entry keeps the state that its record had when it was written.
		if must.Part == store.StatusPart {
			must.State = is.State
		}
		if appended := value.AppendChange(nil, &must); bytes.Equal(appended, body) {
			return nil
		}
	}
	return value.Damage(key, "it differs from "+x.record())
}

// unexpected returns the error about a value that belongs to no record.
func (c *checker) unexpected(key, body []byte) error {
	if !slices.Contains(kinds, key[0]) {
		return value.Damage(key, "no release wrote such a key")
	}
	owner, err := leadsTo(key, body)
	if err != nil || c.cut[owner[0]] {
		return err
	}
	switch exists, ok := c.exists(owner); {
	case !ok:
		return nil
	case !exists:
		return value.Damage(key, fmt.Sprintf("it refers to %s, but this record does not exist", value.PrintableKey(owner)))
	default:
		return value.Damage(key, fmt.Sprintf("it refers to %s, but this record does not have it", value.PrintableKey(owner)))
	}
}

// exists reports whether there is a bookmark or a record with this storage key. ok is false if it cannot be
// read; then the report has the damage.
func (c *checker) exists(key []byte) (exists, ok bool) {
	if key[0] == value.Bookmark {
		_, exists, err := get(c.db, key)
		return exists, err == nil
	}
	k, err := value.ParseKey(key)
	if err != nil { // cannot happen: the key was made from that of a record
		return false, false
	}
	m, ok := c.lookup(k)
	return m != nil, ok
}
