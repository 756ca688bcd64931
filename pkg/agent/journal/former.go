package journal

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Former versions had no log, but a file for each thing, of format 1. A file begins
// with the format and a byte 0 and ends with a CRC-32C over its name and all before.
// A work's is works/NAME, where NAME is the SHA-256 of its resource id in hex. Such a
// directory is read once; what it says of statuses and objects only spared work, and
// is not read.
const (
	formerFormat = 1
	formerWorks  = "works"
	formerDraft  = ".new" // ends the name of a file that was being written
)

var formerFiles = []string{"instance", "cursor", "sequence", "binding", "reported", "left"}

// formerRecords is Journal.records of such a directory.
func (j *Journal) formerRecords(yield func(record, error) bool) {
	more := true
	read := func(name string) []byte {
		body, err := j.readFormer(name)
		more = more && (absent(err) == nil || yield(record{}, err))
		return body
	}
	h := head{Instance: string(read("instance")), Reserved: string(read("sequence"))}
	h.Cursor, _ = codec.ParseCursor(string(read("cursor"))) // the zero one if it is not there
	binding := read("binding")
	for _, text := range []*string{&h.Binding.ClusterUID, &h.Binding.Cluster, &h.Binding.HubHash, &h.Binding.AgentID} {
		if size, n := binary.Uvarint(binding); n > 0 && size <= uint64(len(binding)-n) {
			*text, binding = string(binding[n:][:size]), binding[n:][size:]
		}
	}
	more = more && yield(jsonRecord(recordHead, h), nil)
	names, err := j.disk.list(formerWorks)
	more = more && (absent(err) == nil || yield(record{}, err))
	for i := 0; more && i < len(names); i++ {
		if isFormerWork(names[i]) {
			more = yield(j.readFormerWork(formerWorks + "/" + names[i]))
		}
	}
}

func (j *Journal) readFormerWork(name string) (r record, err error) {
	b, err := j.readFormer(name)
	if err != nil {
		return r, err
	}
	e, err := codec.Unmarshal(b)
	if err == nil {
		r, err = workRecord(e)
	}
	return r, j.locate(name, err)
}

// readFormer returns the body of a file.
func (j *Journal) readFormer(name string) (body []byte, err error) {
	f, err := j.disk.open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if body, err = unseal(path.Base(name), b, formerFormat); err == nil {
		body = body[1:]
	}
	return body, j.locate(name, err)
}

func isFormerWork(name string) bool {
	b, err := hex.DecodeString(name)
	return err == nil && len(b) == sha256.Size
}

// removeFormer removes what former versions left. What no agent made is left alone.
func (j *Journal) removeFormer() error {
	names, err := j.disk.list(formerWorks)
	if absent(err) != nil {
		return err
	}
	own := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !isFormerWork(strings.TrimSuffix(name, formerDraft)) })
	var errs []error
	for _, name := range own {
		errs = append(errs, absent(j.disk.remove(formerWorks+"/"+name)))
	}
	for _, name := range formerFiles {
		errs = append(errs, absent(j.disk.remove(name)), absent(j.disk.remove(name+formerDraft)))
	}
	if len(own) == len(names) {
		errs = append(errs, absent(j.disk.remove(formerWorks)))
	}
	return errors.Join(errs...)
}
