package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"

	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	logFile   = "log"
	draftFile = "log.new" // a log that is being written

	// chunk is how much is written at once, in bytes.
	chunk = 256 << 10
	// waste is how many bytes of a log may not count, however few do.
	waste = 64 << 10
	// maxRecord is the longest record, in bytes.
	maxRecord = 1 << 30
)

// log is a file with records, to which records are added, and that is replaced by
// another one.
type log struct {
	disk disk
	dir  string
	// size is how long the log is, renewed how long it was when it was begun.
	size, renewed int
	// outdated: the log may have what does not count any more, or cannot be read.
	outdated bool
	// err is why nothing can be added. What failed to be written may be there or not,
	// and what a sync failed to make stable may read well and be lost with the page
	// cache: another sync of the same file would succeed whether it is there or not.
	err error
}

// fail notes why nothing can be added; nil if it can.
func (l *log) fail(err error) { l.err = err }

// found says that the log is that of an earlier process, which may have ended before it
// was sure to be the one that is there. damaged is what could not be read of it: nothing
// is added to that.
func (l *log) found(damaged error) {
	l.outdated = true
	l.fail(errors.Join(damaged, l.disk.sync(".")))
}

func (l *log) due() bool { return l.err != nil || l.outdated || l.size > 2*l.renewed+waste }

// add adds records, and syncs the log if they are to survive a power loss too.
func (l *log) add(stable bool, all ...record) error {
	if l.err != nil {
		return l.err
	}
	lines := all[0].line()
	for _, r := range all[1:] {
		lines = append(lines, r.line()...)
	}
	l.size += len(lines)
	if l.err = l.disk.append(logFile, lines); stable {
		return l.sync()
	}
	return l.err
}

func (l *log) sync() error {
	if l.err == nil {
		l.err = l.disk.sync(logFile)
	}
	return l.err
}

// replace puts a log with these records in the place of the one before. As long as it
// does not get that far, the one before is as good as it was.
func (l *log) replace(first record, works iter.Seq2[codec.Event, error], last ...record) error {
	size, err := l.writeDraft(first, works, last)
	if err != nil { // half a draft takes room that may be what is missing
		return errors.Join(err, absent(l.disk.remove(draftFile)))
	}
	if l.err = l.disk.rename(draftFile, logFile); l.err == nil {
		l.err = l.disk.sync(".")
	}
	if l.err != nil {
		return l.err
	}
	l.size, l.renewed, l.outdated = size, size, false
	return l.removeFormer()
}

func (l *log) writeDraft(first record, works iter.Seq2[codec.Event, error], last []record) (size int, err error) {
	if err = errors.Join(absent(l.disk.remove(draftFile)), l.disk.write(draftFile, nil)); err != nil {
		return size, err
	}
	draft := bufio.NewWriterSize(appender{l.disk, draftFile}, chunk)
	put := func(r record) {
		n, _ := draft.Write(r.line()) // Flush returns the error
		size += n
	}
	put(first)
	for e, err := range works {
		r, unusable := workRecord(e)
		if err = cmp.Or(err, unusable); err != nil {
			return size, err
		}
		put(r)
	}
	for _, r := range last {
		put(r)
	}
	if err = draft.Flush(); err == nil {
		err = l.disk.sync(draftFile)
	}
	return size, err
}

// appender is an io.Writer that adds to a file.
type appender struct {
	disk disk
	name string
}

func (a appender) Write(b []byte) (int, error) { return len(b), a.disk.append(a.name, b) }

// read calls yield with the records of the log, or of a directory of the former form. An
// error is about one record, or errTorn, or says that the rest cannot be read.
func (l *log) read(yield func(record, error) bool) {
	f, err := l.disk.open(logFile)
	if errors.Is(err, fs.ErrNotExist) {
		l.readFormer(yield)
		return
	} else if err != nil {
		yield(record{}, err)
		return
	}
	lines, more := bufio.NewScanner(f), true
	lines.Buffer(nil, maxRecord)
	lines.Split(splitLine)
	for more && lines.Scan() {
		line := lines.Bytes()
		if len(line) == 1 {
			continue
		}
		r, err := decodeRecord(line[:len(line)-1])
		if err != nil && !bytes.HasSuffix(line, newline) {
			// One that lacks nothing but its newline counts: the next record brings that.
			if r, err = decodeRecord(line); err != nil {
				err = errTorn
			}
		}
		more = yield(r, l.locate(logFile, err))
	}
	if err := errors.Join(lines.Err(), f.Close()); err != nil && more {
		yield(record{}, err)
	}
}

// splitLine is a bufio.SplitFunc; the newline belongs to the line.
func splitLine(data []byte, atEOF bool) (int, []byte, error) {
	n := bytes.IndexByte(data, newline[0]) + 1
	if n == 0 && atEOF {
		n = len(data)
	}
	if n == 0 {
		return 0, nil, nil
	}
	return n, data[:n], nil
}

// locate puts the path into an error about the contents of a file.
func (l *log) locate(name string, err error) error {
	if err == nil {
		return nil
	}
	path := filepath.Join(l.dir, name)
	if newer, ok := errors.AsType[*FormatError](err); ok {
		return &FormatError{Path: path, Format: newer.Format}
	}
	return fmt.Errorf("%s: %w", path, err)
}
