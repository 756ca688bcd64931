package journal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Open locks the directory, which it makes if needed, and finds out its
// instance id. A directory that is there and cannot be used is no error: what the
// methods return says so, until it can. The error is a *LockedError, a
// *FormatError, or an *Error if there is no such directory and none can be made.
// Load comes next.
func Open(c Config) (*Journal, error) {
	j := &Journal{
		dir: c.Dir, disk: c.disk, width: c.width, log: c.Log, instance: rand.Text(),
		obstacles: map[string]bool{}, unsynced: map[string]string{}, suspect: map[string]string{}, dirty: map[string]lapse{},
	}
	if j.disk == nil {
		j.disk, j.width = osDisk{dir: c.Dir}, syncsAtOnce
	}
	if j.log == nil {
		j.log = slog.New(slog.DiscardHandler)
	}
	if err := j.mkdir("."); err != nil {
		return nil, err
	}
	err := j.acquire()
	var locked *LockedError
	switch {
	case errors.As(err, &locked), isNewer(err):
		return nil, err
	case err != nil:
		j.log.Error("state directory cannot be used: the agent works without what it knew", "error", err)
		return j, nil
	}
	if err := j.identify(); err != nil {
		return nil, errors.Join(err, j.unlock())
	}
	return j, nil
}

// acquire locks the directory.
func (j *Journal) acquire() error {
	if j.unlock != nil {
		return nil
	}
	unlock, err := j.disk.lock(lockFile)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return &LockedError{Dir: j.dir}
	} else if err != nil {
		return j.failure("lock", lockFile, err)
	}
	// It may be too late for Load to say so, and what is there is discarded then.
	if _, err := decoded(j, bindingFile, maxSmall, decodeBinding); isNewer(err) {
		return errors.Join(err, unlock())
	}
	j.unlock = unlock
	return nil
}

// identify reads the instance id, or makes one.
func (j *Journal) identify() error {
	instance, err := decoded(j, instanceFile, maxSmall, decodeInstance)
	switch {
	case err == nil:
		j.instance = instance
		return nil
	case isNewer(err):
		return err
	case !errors.Is(err, fs.ErrNotExist):
		j.log.Warn("state directory: the instance id cannot be read, a new one is made", "error", err)
	}
	if err := j.replaceSynced(instanceFile, encodeInstance(j.instance)); err != nil {
		// It serves this process all the same; the next one waits for the Lease.
		j.log.Warn("state directory: the instance id cannot be stored", "error", err)
	}
	return nil
}

// Load reads what an earlier process left under the same binding, and calls take
// for each work in it; that the directory cannot be read or written is no error
// here, but leads to an empty State, or to errors of Put and Checkpoint. take
// must not call the Journal. When it returns an error, the entry is of no use:
// it counts as damaged. The error of Load is a *FormatError; the journal is of
// no use then. Load is called once, before the other methods.
func (j *Journal) Load(b Binding, take func(codec.Event) error) (State, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.phase != opened {
		return State{}, errLoaded
	}
	j.binding = b
	ours, err := j.recognize()
	if err != nil {
		return State{}, err
	}
	var s State
	if ours {
		if s, err = j.load(take); err != nil {
			return State{}, err
		}
	} else {
		j.stale = true // it covers what is not ours
		// Whoever used them: ids above do no harm.
		if s.Reserved, err = decoded(j, sequenceFile, maxSmall, decodeSequence); isNewer(err) {
			return State{}, err
		}
	}
	j.phase, j.bound = loaded, ours
	if err = j.bind(); err == nil {
		err = j.settle()
	}
	if err != nil {
		j.log.Warn("state directory cannot be put in order: until it can, the next start asks the broker for everything", "dir", j.dir, "error", err)
	}
	return s, nil
}

// recognize reports whether the directory is bound as it should be.
func (j *Journal) recognize() (ours bool, err error) {
	if j.unlock == nil {
		return false, nil
	}
	held, err := decoded(j, bindingFile, maxSmall, decodeBinding)
	switch {
	case isNewer(err):
		return false, err
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		j.log.Warn("state directory: it cannot be read whose works these are, they are discarded", "error", err)
		return false, nil
	case held != j.binding:
		j.log.Warn("state directory: its works are of another cluster, hub or agent, they are discarded", "dir", j.dir,
			"held_cluster_uid", held.ClusterUID, "held_cluster", held.Cluster, "held_hub_hash", held.HubHash, "held_agent_id", held.AgentID)
		return false, nil
	}
	return true, nil
}

// load reads a directory that is ours. It changes nothing on disk.
func (j *Journal) load(take func(codec.Event) error) (State, error) {
	var s State
	var bad casualties
	var err error
	if s.Cursor, err = decoded(j, cursorFile, maxSmall, decodeCursor); gone(err) != nil {
		bad.add(err)
	}
	names, err := j.list(worksDir)
	if j.listed = err == nil; err != nil {
		bad.add(err) // also if it is not there: no process loses it
	}
	for _, name := range names {
		if err := j.loadEntry(name, take); err != nil {
			bad.add(err)
		}
	}
	s.Works = len(j.unsynced)
	// An earlier process may have ended without a sync.
	j.changed = true
	if bad.n > 0 && bad.newer == nil {
		j.stale, s.Cursor = true, codec.Cursor{}
		j.log.Warn("state directory: files that cannot be used are dropped, the broker sends the works again", "files", bad.n, "first", bad.first)
	}
	j.cursor = s.Cursor
	if s.Reported, err = decoded(j, reportedFile, maxReported, decodeReported); gone(err) != nil {
		// Statuses are sent again, no more; the next SaveReported replaces it.
		j.log.Warn("state directory: the statuses that the broker has cannot be read", "error", err)
		bad.add(err)
	}
	if s.Left, err = decoded(j, leftFile, maxReported, decodeLeft); gone(err) != nil {
		// Some objects are written again, no more; the next SaveLeft replaces it.
		j.log.Warn("state directory: how objects were left cannot be read", "error", err)
		bad.add(err)
	}
	if s.Reserved, err = decoded(j, sequenceFile, maxSmall, decodeSequence); gone(err) != nil {
		j.log.Warn("state directory: it cannot be read which sequence ids were used", "error", err)
		bad.add(err)
	}
	s.Damaged = bad.n
	return s, bad.newer
}

// casualties are files that cannot be used: how many, what is wrong with the
// first, and the first that a newer release wrote.
type casualties struct {
	n            int
	first, newer error
}

func (c *casualties) add(err error) {
	if c.n++; c.n == 1 {
		c.first = err
	}
	if c.newer == nil && isNewer(err) {
		c.newer = err
	}
}

func isNewer(err error) bool {
	var newer *FormatError
	return errors.As(err, &newer)
}

// decoded reads a file. The error names it.
func decoded[T any](j *Journal, name string, limit int64, decode func([]byte) (T, error)) (v T, err error) {
	b, err := j.read(name, limit)
	if err != nil {
		return v, err
	}
	if v, err = decode(b); err != nil {
		return v, j.locate(name, err)
	}
	return v, nil
}

// locate puts the path into an error about the contents of a file.
func (j *Journal) locate(name string, err error) error {
	path := filepath.Join(j.dir, name)
	var newer *FormatError
	if errors.As(err, &newer) {
		return &FormatError{Path: path, Format: newer.Format}
	}
	return fmt.Errorf("%s: %w", path, err)
}

// ours reports whether a name in works/ is one that a Journal gives.
func ours(name string) bool { return isEntryName(strings.TrimSuffix(name, draftSuffix)) }

// loadEntry takes what is under a name in works/. The error says that it is
// damaged; then it is in the way.
func (j *Journal) loadEntry(name string, take func(codec.Event) error) error {
	path := worksDir + "/" + name
	switch {
	case !ours(name):
		j.log.Warn("state directory: a file that no agent made, it is left alone", "file", filepath.Join(j.dir, path))
		return nil
	case !isEntryName(name): // a draft
		j.obstacles[name] = true
		return nil
	}
	var id string
	_, err := decoded(j, path, maxEntry, func(b []byte) (_ struct{}, err error) {
		var event codec.Event
		if id, event, err = decodeEntry(name, b); err == nil {
			err = take(event)
		}
		return struct{}{}, err
	})
	if err != nil {
		j.obstacles[name] = true
		return err
	}
	j.unsynced[name] = id
	return nil
}
