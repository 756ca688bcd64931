package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"path"
	"strings"

	"github.com/hawser-io/hawser/internal/fields"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Former versions had one file per item instead of a log, in format 1. A file begins with the format and a 0
// byte, and ends with a CRC-32C over its name and everything before. The file of a work is works/NAME, where
// NAME is the SHA-256 of its resource id in hex. Such a directory is read once. Its files about statuses and
// objects only saved work and are not read.
const (
	formerFormat = 1
	formerWorks  = "works"
	formerDraft  = ".new" // suffix of a file that was being written
)

// formerKeys replaces the keys of a cursor in the head that former releases wrote. Remove it with the release
// after the first one that writes the new keys: an agent writes its head again at each start. JSON escapes
// quotes, so no value contains one of the former keys.
var formerKeys = strings.NewReplacer(`"cursor":{"Epoch":`, `"cursor":{"storeID":`, `,"Term":`, `,"incarnation":`, `,"Revision":`, `,"revision":`)

var formerFiles = []string{"instance", "cursor", "sequence", "binding", "reported", "left"}

// readFormer reads a directory of format 1. An unreadable part of the head does not affect the other parts.
func (l *log) readFormer(yield func(record, error) bool) {
	var errs []error
	read := func(name string) []byte {
		body, err := l.readFormerFile(name)
		errs = append(errs, absent(err))
		return body
	}
	cursor, _ := codec.ParseCursor(string(read("cursor"))) // the zero cursor if it does not exist
	h := head{Instance: string(read("instance")), Reserved: string(read("sequence")), Binding: formerBinding(read("binding")), Cursor: cursor}
	names, err := l.disk.list(formerWorks)
	for _, err := range append(errs, absent(err)) {
		if err != nil && !yield(record{}, err) {
			return
		}
	}
	more := yield(jsonRecord(recordHead, h), nil)
	for i := 0; more && i < len(names); i++ {
		if isFormerWork(names[i]) {
			more = yield(l.readFormerWork(formerWorks + "/" + names[i]))
		}
	}
}

func formerBinding(b []byte) Binding {
	r := fields.NewReader(b)
	return Binding{ClusterUID: r.String(), Cluster: r.String(), HubHash: r.String(), AgentID: r.String()}
}

func (l *log) readFormerWork(name string) (r record, err error) {
	b, err := l.readFormerFile(name)
	if err != nil {
		return r, err
	}
	e, err := codec.Unmarshal(b)
	if err == nil {
		r, err = workRecord(e)
	}
	return r, l.locate(name, err)
}

// readFormerFile returns the content of a file.
func (l *log) readFormerFile(name string) ([]byte, error) {
	file, err := l.disk.open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(file, maxRecord))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if b, err = unseal(path.Base(name), b, formerFormat); err != nil {
		return nil, l.locate(name, err)
	}
	return b[1:], nil
}

func isFormerWork(name string) bool {
	b, err := hex.DecodeString(name)
	return err == nil && len(b) == sha256.Size
}

// removeFormer removes the files of former versions. Files that no agent created stay.
func (l *log) removeFormer() error {
	names, err := l.disk.list(formerWorks)
	if err = absent(err); err != nil {
		return err
	}
	own, errs := []string{}, []error{}
	for _, name := range names {
		if isFormerWork(strings.TrimSuffix(name, formerDraft)) {
			own = append(own, formerWorks+"/"+name)
		}
	}
	if len(own) == len(names) {
		own = append(own, formerWorks)
	}
	for _, name := range formerFiles {
		own = append(own, name, name+formerDraft)
	}
	for _, name := range own {
		errs = append(errs, absent(l.disk.remove(name)))
	}
	return errors.Join(errs...)
}
