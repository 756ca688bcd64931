package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	// chunk is how much is written at once, in bytes.
	chunk = 256 << 10
	// waste is how many bytes of a log may not count, however few do.
	waste = 64 << 10
	// maxRecord is the longest record, in bytes.
	maxRecord = 1 << 30
)

// add adds a record to the log.
func (j *Journal) add(r record) error {
	line := r.line()
	j.size += len(line)
	return j.disk.append(logFile, line)
}

func (j *Journal) addStable(r record) error {
	if err := j.add(r); err != nil {
		return err
	}
	return j.disk.sync(logFile)
}

// renew puts a log with this content in the place of the one before. As long as it
// does not get that far, the one before is as good as it was.
func (j *Journal) renew(c Content) error {
	h, err := j.lock()
	// What is found so late is not loaded.
	if j.head.Reserved = cmp.Or(j.head.Reserved, h.Reserved); err == nil {
		err = j.writeDraft(c)
	}
	if err != nil { // half a draft takes room that may be what is missing
		return errors.Join(err, absent(j.disk.remove(draftFile)))
	}
	if j.err = j.disk.rename(draftFile, logFile); j.err == nil {
		j.err = j.disk.sync(".")
	}
	if j.err != nil {
		return j.err
	}
	j.outdated = false
	return j.removeFormer()
}

func (j *Journal) writeDraft(c Content) error {
	err := errors.Join(absent(j.disk.remove(draftFile)), j.disk.write(draftFile, nil))
	var lines []byte
	size := 0
	put := func(r record, atOnce int) {
		line := r.line()
		size += len(line)
		if lines = append(lines, line...); err == nil && len(lines) >= atOnce {
			err = j.disk.append(draftFile, lines)
			lines = lines[:0]
		}
	}
	// The head is there twice: damage costs one of them.
	first := j.head
	first.Cursor = codec.Cursor{}
	put(jsonRecord(recordHead, first), chunk)
	for e, workErr := range c.Works {
		var r record
		if workErr == nil {
			r, workErr = workRecord(e)
		}
		if err = errors.Join(err, workErr); err != nil {
			return err
		}
		put(r, chunk)
	}
	put(jsonRecord(recordReported, c.Reported), chunk)
	put(jsonRecord(recordLeft, c.Left), chunk)
	put(jsonRecord(recordHead, j.head), 0)
	if err == nil {
		err = j.disk.sync(draftFile)
	}
	j.size, j.renewed = size, size
	return err
}

// records reads the log. An error is about one record, or errTorn, or says that the
// rest cannot be read.
func (j *Journal) records(yield func(record, error) bool) {
	f, err := j.disk.open(logFile)
	if errors.Is(err, fs.ErrNotExist) {
		j.formerRecords(yield)
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
			err = errTorn
		}
		more = yield(r, j.locate(logFile, err))
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
func (j *Journal) locate(name string, err error) error {
	if err == nil {
		return nil
	}
	path := filepath.Join(j.dir, name)
	var newer *FormatError
	if errors.As(err, &newer) {
		return &FormatError{Path: path, Format: newer.Format}
	}
	return fmt.Errorf("%s: %w", path, err)
}
