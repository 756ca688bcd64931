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

	// chunk is the number of bytes per write.
	chunk = 256 << 10
	// waste is the number of outdated bytes that a log may have in any case.
	waste = 64 << 10
	// maxRecord is the length of the longest record, in bytes.
	maxRecord = 1 << 30
)

// log is a file to which records are appended, and that is replaced as a whole.
type log struct {
	disk disk
	dir  string
	// size is the present length of the log, renewed its length after the last compaction.
	size, renewed int
	// outdated: the log may have outdated or unreadable records.
	outdated bool
	// err is why nothing can be appended. After a failed write the data may be on disk or not. After a failed sync
	// the data may be readable and still be lost with the page cache. Another sync of the same file would succeed
	// either way.
	err error
}

// fail sets why nothing can be appended; nil if records can be appended.
func (l *log) fail(err error) { l.err = err }

// found marks the log as that of an earlier process, which may have ended before the rename was on stable
// storage. damaged is the error of unreadable records: nothing is appended to such a log.
func (l *log) found(damaged error) {
	l.outdated = true
	l.fail(errors.Join(damaged, l.disk.sync(".")))
}

func (l *log) due() bool { return l.err != nil || l.outdated || l.size > 2*l.renewed+waste }

// add appends records. stable: it syncs the log, so that they survive a power loss.
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

// replace replaces the log by one with these records. If it fails before the rename, the former log is
// unchanged.
func (l *log) replace(first record, works iter.Seq2[codec.Event, error], last ...record) error {
	size, err := l.writeDraft(first, works, last)
	if err != nil { // an incomplete draft uses space that may be needed
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

// appender is an io.Writer that appends to a file.
type appender struct {
	disk disk
	name string
}

func (a appender) Write(b []byte) (int, error) { return len(b), a.disk.append(a.name, b) }

// read calls yield with the records of the log, or of a directory of the former format. An error concerns one
// record, is errTorn, or means that the rest is unreadable.
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
			// A record that lacks only its newline is valid: the next record adds it.
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

// splitLine is a bufio.SplitFunc; the newline is part of the line.
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

// locate adds the path to an error about the contents of a file.
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
